"""Checkpoints: `torch.distributed.checkpoint` folders that are either whole or not there.

A checkpoint is written into `.step-N.partial`, its files and the folder are synced, and the folder is renamed to
`step-N`. Its `manifest.json` names step, identity (what must agree for a run to go on from it) and each file's size and
CRC-32, so that a file which was damaged later is noticed. All processes need to see the same folder.

Inside: the tensors of the model, of its fused and dense optimizers and of the weight average (each once, whatever the
number of processes), and for each process one blob of plain values: reader position, random states, counters.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from faceter.model.config import ConfigError
from faceter.tools.train.parallel import Processes

MANIFEST = "manifest.json"
_PARTIAL = ".partial"
_OLD = ".old"


def pack(tree: object) -> Tensor:
    """Plain values and tensors as one uint8 tensor: read back without running any code (`unpack`)."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(blob: Tensor) -> object:
    return torch.load(io.BytesIO(blob.numpy().tobytes()), weights_only=True)


def differences(saved: dict, now: dict, where: str = "") -> list[str]:
    """Where two nested dicts of plain values differ: `key: saved, now`."""
    lines = []
    for key in dict.fromkeys((*saved, *now)):
        a, b = saved.get(key, "absent"), now.get(key, "absent")
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{where}{key}.")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and a and isinstance(a[0], dict):
            lines += differences(dict(enumerate(a)), dict(enumerate(b)), f"{where}{key}.")
        elif a != b:
            lines.append(f"{where}{key} was {a!r}, is {b!r}")
    return lines


class CheckpointStore:
    """The checkpoints of one run. All methods are called by all processes together.

    Args:
        folder: where the `step-N` are.
        processes: of the run.
        identity: nested dict of plain values; a checkpoint with another one is refused.
        keep: how many of the newest stay.
        background: `save` returns when the tensors are copied; `poll` completes it.
        warn: told of each checkpoint that is passed over.
    """

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        identity: dict,
        keep: int = 3,
        background: bool = False,
        warn: Callable[[str], None] = print,
    ):
        self.folder = Path(folder)
        self.processes = processes
        self.identity = json.loads(json.dumps(identity))  # as it will come back from a manifest
        self.keep = keep
        self.warn = warn
        self.background = background
        # Its collectives run beside those of the training loop, so they need a group of their own.
        self._group = dist.new_group(backend="gloo") if background else processes.control
        self._pending: _Write | None = None

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(self, step: int, tensors: dict, host: dict, best_step: int | None = None) -> None:
        """Writes `step-N`.

        Args:
            tensors: nested dict of tensors (plain, ShardedTensor or DTensor).
            host: this process's plain values and tensors.
            best_step: the checkpoint that stays as long as this one does.
        """
        self.finish()
        manifest = {"step": step, "best_step": best_step, "identity": self.identity}
        self._pending = _Write(self.path(step), self.processes, self._group, tensors, host, manifest, self.background)
        if not self.background:
            self.finish()

    def poll(self) -> None:
        """Completes a background save that all processes are done with."""
        if self._pending is not None and not self.processes.any(not self._pending.done()):
            self.finish()

    def finish(self) -> None:
        """Completes a background save, waiting for it."""
        if self._pending is None:
            return
        self._pending.complete()
        self._pending = None
        if self.processes.is_main:
            self._prune()
        self.processes.barrier()

    def write_to(self, folder: Path, step: int, tensors: dict, host: dict) -> None:
        """Like `save`, to another place, which is not counted among the run's checkpoints."""
        manifest = {"step": step, "best_step": None, "identity": self.identity}
        _Write(folder, self.processes, self._group, tensors, host, manifest, background=False).complete()

    def newest(self) -> Path | None:
        """The newest good checkpoint; None if there is none at all. Removes what an interrupted write has left.

        Raises:
            ConfigError: it has another identity, or there are checkpoints but none is good.
        """
        found, error = None, None
        if self.processes.is_main:
            try:
                found = self._newest()
            except ConfigError as raised:
                error = str(raised)
        found, error = self.processes.share((found, error))
        if error is not None:
            raise ConfigError(error)
        return found

    def _newest(self) -> Path | None:
        for left in self.folder.glob(f".step-*{_PARTIAL}"):
            self.warn(f"{left} is incomplete (its writing was interrupted): removed")
            shutil.rmtree(left)
        for left in self.folder.glob(f".step-*{_OLD}"):
            shutil.rmtree(left)
        steps = self._steps()
        for step in reversed(steps):
            path = self.path(step)
            problem = damage(path)
            if problem:
                self.warn(f"checkpoint {path} is damaged ({problem}): passed over")
                continue
            different = differences(json.loads((path / MANIFEST).read_text())["identity"], self.identity)
            if different:
                more = f" and {len(different) - 8} more" if len(different) > 8 else ""
                raise ConfigError(
                    f"checkpoint {path} is of another configuration: {'; '.join(different[:8])}{more}. "
                    "Go back to that configuration, name another folder with --out, or start over with --resume never"
                )
            return path
        if steps:
            raise ConfigError(f"no checkpoint in {self.folder} is good. Start over with --resume never")
        return None

    def load(self, path: Path, tensors: dict) -> dict:
        """Reads a checkpoint into `tensors`, in place.

        Args:
            tensors: what was saved, or a part of it.

        Returns:
            this process's plain values.
        """
        reader = dcp.FileSystemReader(path)
        key = f"host.{self.processes.rank}"
        size = reader.read_metadata().state_dict_metadata[key].size
        state = {**tensors, key: torch.empty(size, dtype=torch.uint8)}
        alone = self.processes.world_size == 1
        with quiet():
            dcp.load(state, storage_reader=reader, process_group=self.processes.control, no_dist=alone)
        return unpack(state[key])

    def clear(self) -> None:
        """Removes all checkpoints."""
        if self.processes.is_main:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.processes.barrier()

    def _steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        names = (re.fullmatch(r"step-(\d+)", p.name) for p in self.folder.glob("step-*"))
        return sorted(int(m[1]) for m in names if m)

    def _prune(self) -> None:
        steps = self._steps()
        stay = set(steps[-self.keep :])
        for step in list(stay):
            manifest = self.path(step) / MANIFEST
            if manifest.is_file():
                stay.add(json.loads(manifest.read_text())["best_step"])
        for step in steps:
            if step not in stay:
                # Under another name first: an interrupted removal must not look like a damaged checkpoint.
                old = self.folder / f".step-{step}{_OLD}"
                self.path(step).rename(old)
                shutil.rmtree(old)


class _Write:
    """One checkpoint on its way to disk."""

    def __init__(self, target, processes: Processes, group, tensors, host, manifest: dict, background: bool):
        self.target, self.processes, self.manifest = Path(target), processes, manifest
        self.partial = self.target.with_name(f".{self.target.name}{_PARTIAL}")
        if processes.is_main:
            shutil.rmtree(self.partial, ignore_errors=True)
            self.partial.mkdir(parents=True)
        processes.barrier()
        state = {**tensors, f"host.{processes.rank}": pack(host)}
        writer = dcp.FileSystemWriter(self.partial, sync_files=True)
        self._files: dict[str, list[int]] | None = None
        self._error: BaseException | None = None
        self._thread = None
        if background:
            saved = dcp.async_save(state, storage_writer=writer, process_group=group)
            self._thread = threading.Thread(target=self._wait, args=(saved,), daemon=True)
            self._thread.start()
        else:
            with quiet():
                dcp.save(state, storage_writer=writer, process_group=group, no_dist=processes.world_size == 1)
            self._files = self._own_files()

    def _wait(self, saved) -> None:
        try:
            saved.result()
            self._files = self._own_files()
        except BaseException as error:  # raised again in the main thread
            self._error = error

    def _own_files(self) -> dict[str, list[int]]:
        """Name -> size and CRC-32 of the files that this process wrote."""
        mine = list(self.partial.glob(f"__{self.processes.rank}_*"))
        if self.processes.is_main:
            mine.append(self.partial / ".metadata")
        return {p.name: [p.stat().st_size, checksum(p)] for p in mine}

    def done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def complete(self) -> None:
        """Waits for the files, then makes them a checkpoint."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        files = self.processes.gather(self._files)
        if not self.processes.is_main:
            return
        self.manifest["files"] = {name: facts for part in files for name, facts in part.items()}
        with (self.partial / MANIFEST).open("w") as file:
            json.dump(self.manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.partial)
        # Only a damaged checkpoint can be in the way: a run never passes a step that it has a good one of.
        shutil.rmtree(self.target, ignore_errors=True)
        self.partial.rename(self.target)
        _sync_folder(self.target.parent)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = manifest["files"]
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"{MANIFEST} can't be read: {error!r}"
    for name, (size, crc) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if checksum(file) != crc:
            return f"{name} has another checksum than when it was written"
    return None


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return crc


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without DCP's remarks that one process is one process, and that torchrec's ShardedTensor has a successor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        warnings.filterwarnings("ignore", ".*ShardedTensor", FutureWarning)
        yield


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
