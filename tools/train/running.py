"""Running figures of training: what is shown between evaluations."""

from __future__ import annotations

from collections import deque

from faceter.tools.train.metrics import Predictions
from faceter.tools.train.parallel import Processes


class RunningFigures:
    """Mean loss, rows, FLOPs and seconds since the last `take`, and NE and AUC on the newest rows of this process.

    Args:
        tasks: number of tasks.
        window_rows: how many rows NE and AUC are computed on.
    """

    def __init__(self, tasks: int, window_rows: int):
        self.tasks = tasks
        self.window_rows = window_rows
        self._window: deque[Predictions] = deque()
        self._rows_in_window = 0
        self._sums = [0.0] * 5

    def add(self, predictions: Predictions, loss: float, flops: float, seconds: float) -> None:
        """One step of this process: `loss` is the mean over its rows."""
        weight = float(predictions.weights.sum())
        self._window.append(predictions)
        self._rows_in_window += len(predictions)
        while self._rows_in_window - len(self._window[0]) >= self.window_rows:
            self._rows_in_window -= len(self._window.popleft())
        for i, value in enumerate((loss * weight, weight, len(predictions), flops, seconds)):
            self._sums[i] += value

    def take(self, processes: Processes) -> dict[str, float | None]:
        """Figures over all processes since the last call (NE and AUC: of the first task, of this process)."""
        loss, weight, rows, flops, seconds = processes.reduce(self._sums)
        seconds /= processes.world_size
        self._sums = [0.0] * 5
        window = self.window()
        primary = window.task(0)
        return {
            "loss": loss / weight if weight > 0 else None,
            "ne": primary.ne,
            "auc": primary.auc,
            "qps": rows / seconds if seconds > 0 else None,
            "flops": flops,
            "seconds": seconds,
        }

    def window(self) -> Predictions:
        return Predictions.concatenate([Predictions.empty(self.tasks), *self._window]).newest(self.window_rows)

    def state_dict(self) -> dict:
        window = self.window()
        return {"window": dict(vars(window)), "sums": list(self._sums)}

    def load_state_dict(self, state: dict) -> None:
        window = Predictions(**state["window"])
        self._window, self._rows_in_window = deque([window]), len(window)
        self._sums = list(state["sums"])
