"""What a person sees of a run: a progress bar on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import datetime
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from faceter.tools.train.metrics import Metrics


def number(value: float | None, form: str = ".4f") -> str:
    return "n/a" if value is None else format(value, form)


def figures_line(figures: dict, eta_seconds: float | None) -> str:
    """`loss 0.5912 NE 0.8710 AUC 0.7421 QPS 5,120 MFU n/a ETA 0:01:10`."""
    eta = "n/a" if eta_seconds is None else str(datetime.timedelta(seconds=round(eta_seconds)))
    return (
        f"loss {number(figures['loss'])} NE {number(figures['ne'])} AUC {number(figures['auc'])} "
        f"QPS {number(figures['qps'], ',.0f')} MFU {number(figures['mfu'], '.1%')} ETA {eta}"
    )


class Display:
    """Shows a run; silent in all processes but the main one.

    Args:
        visible: whether this process shows anything.
        console: where to; standard output by default.
    """

    def __init__(self, visible: bool, console: Console | None = None):
        self.visible = visible
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_) -> None:
        self.end_steps()

    def message(self, text: str) -> None:
        """A line of its own."""
        if self.visible:
            self.console.print(text, markup=False)

    def warning(self, text: str) -> None:
        """A line on standard error."""
        if self.visible:
            print(f"faceter train: warning: {text}", file=sys.stderr, flush=True)

    def step(self, step: int, steps: int | None, epoch: str, figures: dict, eta_seconds: float | None) -> None:
        """New figures after a step; `steps` is how many there will be, if known."""
        if not self.visible:
            return
        line = figures_line(figures, eta_seconds)
        if not self.console.is_terminal:
            self.message(f"step {step}/{steps or '?'} epoch {epoch} {line}")
            return
        self.advance(step, steps, f"epoch {epoch}", line)

    def advance(self, step: int, steps: int | None, epoch: str | None = None, line: str | None = None) -> None:
        """Moves the bar; on no terminal there is none."""
        if not self.visible or not self.console.is_terminal:
            return
        if self._bar is None:
            columns = [TextColumn("{task.fields[epoch]}"), BarColumn(24), MofNCompleteColumn()]
            self._bar = Progress(*columns, TextColumn("{task.fields[line]}"), console=self.console)
            self._task = self._bar.add_task("", total=steps, epoch=epoch or "", line=line or "")
            self._bar.start()
        fields = {name: text for name, text in (("epoch", epoch), ("line", line)) if text is not None}
        self._bar.update(self._task, completed=step, total=steps, **fields)

    def end_steps(self) -> None:
        """Leaves the bar as it is and goes on below it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def table(self, title: str, report: dict[str, dict[str, Metrics]]) -> None:
        """Metrics per task and domain."""
        if not self.visible:
            return
        self.end_steps()
        table = Table(title=title, title_justify="left")
        for name in ("task", "domain", "rows", "base rate", "NE", "AUC", "calibration"):
            table.add_column(name, justify="left" if name in ("task", "domain") else "right")
        for task, domains in report.items():
            for domain, m in domains.items():
                cells = (number(m.base_rate), number(m.ne), number(m.auc), number(m.calibration))
                table.add_row(task, domain, f"{m.rows:,}", *cells)
        self.console.print(table)
