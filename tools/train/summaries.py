"""The written record of a run: `log.jsonl`, one line of figures per N steps, and the same points for TensorBoard."""

from __future__ import annotations

import json
import os
from pathlib import Path

from faceter.tools.train.metrics import Metrics


class Record:
    """Writes the record of the main process.

    Args:
        folder: the run folder.
        first_step: the step that the run goes on after; later lines, of a run that was killed, are dropped, and so are
            later points in TensorBoard.
    """

    def __init__(self, folder: Path, first_step: int):
        from torch.utils.tensorboard import SummaryWriter  # here: it takes a second to import

        self.path = folder / "log.jsonl"
        kept = []
        if first_step and self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                # The last line may be cut off; those before it are whole.
                if line.endswith("\n") and json.loads(line)["step"] <= first_step:
                    kept.append(line)
        write_whole(self.path, "".join(kept))
        self._log = self.path.open("a")
        self._board = SummaryWriter(folder / "tensorboard", purge_step=first_step + 1 if first_step else None)

    def training(self, step: int, figures: dict) -> None:
        """Figures of training; None is left out of TensorBoard."""
        self._log.write(json.dumps({"step": step, **figures}) + "\n")
        self._log.flush()
        for name, value in figures.items():
            if value is not None:
                self._board.add_scalar(f"train/{name}", value, step)

    def evaluation(self, step: int, part: str, report: dict[str, dict[str, Metrics]]) -> None:
        """Metrics of an evaluation, as TensorBoard points."""
        for task, domains in report.items():
            for domain, metrics in domains.items():
                for name in ("ne", "auc", "calibration", "logloss"):
                    value = getattr(metrics, name)
                    if value is not None:
                        self._board.add_scalar(f"{part}/{task}/{domain}/{name}", value, step)

    def close(self) -> None:
        self._log.close()
        self._board.close()


def write_whole(path: Path, text: str) -> None:
    """Writes a file under another name and renames it: it is whole or not there."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
