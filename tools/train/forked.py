"""For tests: runs of `faceter train` in forked children.

The parent imports all modules once and computes nothing, so a child starts at once and as a fresh process would.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.utils.tensorboard

from faceter.tools.train import loop  # noqa: F401  imported before the fork, for the children
from faceter.tools.train.main import main


def start(call: Callable[[], int | None], output: Path, env: dict[str, str] | None = None) -> int:
    """Forks a child that calls `call` and exits with what it returns; its output goes to a file. Returns its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ.update(env or {})
        torch.set_num_threads(1)  # the machine may run many tests at once
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        # pytest has put its own objects in their place.
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = call() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(argv: list[str], output: Path, env: dict[str, str] | None = None) -> int:
    """Starts `faceter train` in a child."""
    return start(lambda: main(argv), output, env)


def wait(pid: int, seconds: float = 120) -> int:
    """Exit code of a child; minus the signal's number if one killed it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"child {pid} ran for more than {seconds} s")


def ended(pid: int) -> bool:
    """Whether a child has ended (it stays to be waited for)."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def torchrun_env(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun sets for a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
