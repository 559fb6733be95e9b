"""The table of models on MovieLens-100K: its rows, and the figure that is drawn from it.

python -m faceter.tools.bench.ml100k_table docs/results.md docs/ml100k.png
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

HEADER = ("model", "validation AUC", "test AUC", "test NE", "seconds")
_NUMBER = re.compile(r"(?P<mean>[\d.]+)(?: ± (?P<deviation>[\d.]+))?")


@dataclass(frozen=True)
class Result:
    """One run of a model.

    Attributes:
        valid_auc: NaN for a model that learned from that part.
        test_auc, test_ne: of the test part.
        seconds: wall time of training and evaluation.
    """

    valid_auc: float
    test_auc: float
    test_ne: float
    seconds: float


def header() -> str:
    """The first two lines of the table."""
    return f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}"


def row(name: str, results: list[Result]) -> str:
    """One line: mean and standard deviation over the results, "-" for what is NaN."""

    def cell(values: tuple[float, ...]) -> str:
        if any(v != v for v in values):
            return "-"
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{spread}"

    *metrics, seconds = zip(*(astuple(r) for r in results), strict=True)
    return f"| {name} | {' | '.join(map(cell, metrics))} | {statistics.fmean(seconds):.0f} |"


def parse(text: str) -> list[tuple[str, float, float]]:
    """(model, mean test AUC, its standard deviation or 0) for each line of the first such table in a Markdown text.

    Raises:
        ValueError: there is no such table, or a line of it has no number where the test AUC should be.
    """
    head = header()
    if head not in text:
        raise ValueError(f"no table with the columns {', '.join(HEADER)}")
    found = []
    for line in text.partition(head)[2].lstrip("\n").splitlines():
        if not line.startswith("|"):
            break
        name, _, auc, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        match = _NUMBER.fullmatch(auc)
        if match is None:
            raise ValueError(f"no test AUC in the line {line!r}")
        found.append((name.strip("*"), float(match["mean"]), float(match["deviation"] or 0)))
    return found


def plot(rows: list[tuple[str, float, float]], path: Path) -> None:
    """Test AUC of each model, best on top; GEM in another colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = sorted(rows, key=lambda r: r[1])
    figure, axes = plt.subplots(figsize=(7.5, 0.42 * len(rows) + 1.1), constrained_layout=True)
    for y, (name, mean, deviation) in enumerate(rows):
        colour = "#c2410c" if name == "GEM" else "#475569"
        axes.errorbar(mean, y, xerr=deviation, fmt="o", color=colour, capsize=3, markersize=6)
        axes.annotate(
            f"{mean:.4f}", (mean, y), (0, 7), textcoords="offset points", ha="center", fontsize=8, color=colour
        )
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(-0.5, len(rows) - 0.2)
    axes.margins(x=0.08)
    axes.set_xlabel("test AUC, mean and standard deviation of 3 seeds")
    axes.set_title("MovieLens-100K, each user's last 10 ratings held out", fontsize=10)
    axes.grid(axis="x", color="#e2e8f0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws the figure from the table.")
    parser.add_argument("results", type=Path, help="Markdown file with the table")
    parser.add_argument("figure", type=Path, help="PNG file to write")
    args = parser.parse_args(argv)
    try:
        rows = parse(args.results.read_text())
    except (OSError, ValueError) as error:
        print(f"ml100k_table: {args.results}: {error}", file=sys.stderr)
        return 2
    plot(rows, args.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
