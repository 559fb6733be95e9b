"""Finds the config of a kernel: in the table, in what was tuned here before, or by tuning it now.

`FACETER_TUNE=0` turns tuning off; a kernel then runs with its table's config for all lengths. Each result is a small
file below `$XDG_CACHE_HOME/faceter/configs`, replaced in one step, so that any number of processes may share them; of
several that lack the same one, one tunes and the others wait for it. A file is not read again once the kernel's source,
its candidates or Triton change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton

from faceter.kernels.configs import Config, Key, architecture, table

try:
    import fcntl
except ImportError:  # Windows: processes may tune the same key twice, no more
    fcntl = None

VARIABLE = "FACETER_TUNE"
_REPEATS = 7
_log = logging.getLogger("faceter")
_known: dict[tuple[str, Key], Config] = {}
_recorded: list[Tuned] | None = None
_part: tuple[int, int] | None = None


@dataclass(frozen=True)
class Tuned:
    """Attributes:
    key, config: as in a table.
    milliseconds: median of some launches.
    """

    key: Key
    config: Config
    milliseconds: float


def run(
    kernel: Callable, candidates: Mapping[int, Sequence[Config]], launch: Callable[[Config], None], x: torch.Tensor,
    variant: str, rows: int, loop: int,
) -> None:  # fmt: skip
    """Launches a kernel with its config.

    Args:
        kernel: a `triton.jit` function.
        candidates: to tune with, by bits of an element; the first runs where nothing is known and nothing can be tuned.
        launch: launches the kernel on this call's tensors; doing so several times must do no harm.
        x, variant, rows, loop: as in `Key.of`.
    """
    key = Key.of(kernel.__name__, x, variant, rows, loop)
    arch = architecture(x.device)
    # The interpreter's time goes by the number of tiles.
    candidates = candidates[16 if arch == "interpreter" else key.bits]
    if _part is not None:
        for config in candidates[_part[0] :: _part[1]]:
            try:
                launch(config)
            except Exception as error:
                if not unfit(error):
                    raise
        return
    if _recorded is not None:
        _recorded.extend(_measure(key, candidates, launch))
        return
    if (arch, key) not in _known:
        config = table(arch).get(key)
        if config is None:
            if not _can_tune(x.device):
                # Not remembered: it may be tuned later.
                launch(table(arch).get(key.of_all_lengths, candidates[0]))
                return
            config = _cached_or_tuned(kernel, arch, key, candidates, launch)
        _known[arch, key] = config
    launch(_known[arch, key])


@contextlib.contextmanager
def compiling(part: int, parts: int) -> Iterator[None]:
    """Within it every launch is one of every parts-th candidate: many processes fill Triton's cache sooner than one."""
    global _part
    _part = (part, parts)
    try:
        yield
    finally:
        _part = None


@contextlib.contextmanager
def recording() -> Iterator[list[Tuned]]:
    """Within it every launch is one of each candidate; yields the list that their times go to."""
    global _recorded
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def unfit(error: Exception) -> bool:
    """Whether it is what a config ends in that the device has no room for, or the compiler can't do."""
    return isinstance(error, (triton.OutOfResources, triton.CompilationError)) or "PassManager" in str(error)


def _can_tune(device: torch.device) -> bool:
    if os.environ.get(VARIABLE) == "0" or device.type == "cpu":
        return False
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _measure(key: Key, candidates: Sequence[Config], launch: Callable[[Config], None]) -> list[Tuned]:
    """The candidates that run on this device, fastest first."""
    found, refusals = [], []
    for config in candidates:
        try:
            found.append(Tuned(key, config, _time(lambda config=config: launch(config))))
        except Exception as error:
            if not unfit(error):
                raise
            refusals.append(f"{dict(config)}: {error}")
    if not found:
        raise RuntimeError(f"{key}: no config runs on this device: {'; '.join(refusals)}")
    return sorted(found, key=lambda tuned: tuned.milliseconds)


def _time(call: Callable[[], None]) -> float:
    """Milliseconds, the median of some calls."""
    device = torch.accelerator.current_accelerator().type
    events = [[torch.Event(device, enable_timing=True) for _ in range(2)] for _ in range(_REPEATS)]
    call()  # compiles
    call()
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.accelerator.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def _cached_or_tuned(kernel: Callable, arch: str, key: Key, candidates: Sequence[Config], launch: Callable) -> Config:
    state = (triton.__version__, kernel.cache_key, [sorted(c.items()) for c in candidates])
    name = f"{key.kernel}-{hashlib.sha256(repr((key, state)).encode()).hexdigest()[:16]}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faceter" / "configs" / arch
    found = _read(folder / f"{name}.json")
    if found is not None:
        return found
    with _locked(folder / f"{name}.lock"):
        found = _read(folder / f"{name}.json")  # another process may have been first
        if found is None:
            _log.warning("%s has no config for %s on %s: tuning it, once", key.kernel, key, arch)
            tuned = _measure(key, candidates, launch)[0]
            found = tuned.config
            _write(folder / f"{name}.json", asdict(tuned))
    return found


def _read(file: Path) -> Config | None:
    try:
        return {name: int(value) for name, value in json.loads(file.read_text())["config"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s can't be used and is made again: %s", file, error)
        return None


def _write(file: Path, content: dict) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
            json.dump(content, temporary)
        os.replace(temporary.name, file)
    except OSError as error:
        _log.warning("what was tuned is lost when this process ends: %s", error)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds a lock that other processes wait for, if the file system has locks."""
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(file.open("w"))
            if fcntl:
                fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed
        except OSError as error:
            _log.warning("without a lock, because of: %s", error)
        yield
