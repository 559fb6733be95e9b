"""For tests: runs of `faceter train` in processes that start at once and can be killed.

A server process imports all modules, computes nothing, and forks a child for each run: a child is then as a fresh
process would be, without the seconds that imports take, whatever threads the test process has started.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path


class Server:
    """The test process's end. One is enough for all tests of a session (`server`)."""

    def __init__(self):
        # Not `-m`: the folder of this file must not be on the path, nor the caller's.
        code = "from faceter.tools.train import testing_forked as forked; forked.serve()"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BUILD_WORKING_DIRECTORY"):
            env.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        atexit.register(self._process.kill)

    def train(self, argv: list[str], output: Path, env: dict[str, str] | None = None) -> int:
        """Starts `faceter train`; its output is added to a file. Returns its pid."""
        return self._ask(argv=[str(a) for a in argv], output=str(output), env=env or {})

    def code(self, pid: int) -> int | None:
        """Exit code of a run, minus the signal's number if one killed it; None while it runs."""
        return self._ask(pid=pid)

    def wait(self, pid: int, seconds: float = 120) -> int:
        """Exit code of a run when it has ended.

        Raises:
            TimeoutError: it has not, and was killed.
        """
        end = time.monotonic() + seconds
        while (code := self.code(pid)) is None:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                raise TimeoutError(f"process {pid} ran for more than {seconds} s")
            time.sleep(0.005)
        return code

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


_server: list[Server] = []


def server() -> Server:
    """The session's server; the first call takes the seconds that the imports take."""
    if not _server:
        _server.append(Server())
    return _server[0]


def serve() -> None:
    """The server's end: answers one line of JSON with one."""
    import torch.utils.tensorboard  # noqa: F401  for the children

    from faceter.tools.train import loop  # noqa: F401
    from faceter.tools.train.main import main

    codes: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "argv" in request:
            answer = os.fork()
            if not answer:
                _child(main, **request)
        else:
            answer = codes.get(request["pid"])
            if answer is None:
                done, status = os.waitpid(request["pid"], os.WNOHANG)
                if done:
                    answer = codes[done] = os.waitstatus_to_exitcode(status)
        print(json.dumps(answer), flush=True)


def _child(main, argv: list[str], output: str, env: dict[str, str]) -> None:
    code = 70
    try:
        os.environ.update(env)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


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
