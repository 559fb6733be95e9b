"""Results as JSON, as a table on the terminal, and as Markdown for docs/results.md."""

from __future__ import annotations

import json
import math
import os
import statistics
from pathlib import Path

from faceter.tools.bench.kernels.workloads import FACETER

# Families that memory bounds: their measure is bytes over the copy rate.
MEMORY_BOUND = ("block",)
_COLUMNS = 160  # of a table, also where the terminal is narrower, or none


def save(results: dict, file: Path) -> None:
    """In one step, so that a run that is cut short leaves what it has."""
    temporary = file.with_name(file.name + ".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(json.dumps(_finite(results), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, file)


def load(file: Path) -> dict:
    """Results that `save` wrote.

    Raises:
        ValueError: the file holds something else; OSError: it can't be read.
    """
    results = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(results, dict) or not {"machine", "rates", "rows"} <= results.keys():
        raise ValueError(f"{file} is no result of this benchmark")
    return results


def _finite(x):
    """JSON has no NaN: None stands for it."""
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def add_shares(results: dict) -> None:
    """Adds to each row with a time what depends on other rows and on the rates of the run.

    cublas_share, peak_share, copy_share: of the mean rates before and after, and of the datasheet.
    speedup: of a peer, how many times as long as faceter it takes; of faceter, the same of the best peer.
    """
    rates, peak = results["rates"], results["machine"]["peak_tflops"]
    cublas, copy = (statistics.mean(r[name] for r in rates) for name in ("cublas_tflops", "copy_gbs"))
    groups: dict[tuple, dict[str, dict]] = {}
    for row in results["rows"]:
        if row["status"] != "none":
            groups.setdefault((row["workload"], row["direction"]), {})[row["peer"]] = row
    for group in groups.values():
        for row in group.values():
            if "tflops" in row:
                row["cublas_share"] = row["tflops"] / cublas
                row["peak_share"] = row["tflops"] / peak if peak else None
                row["copy_share"] = row["gbs"] / copy
        right = {peer: row["ms"] for peer, row in group.items() if row["status"] == "ok"}
        ours = right.pop(FACETER, None)
        for peer, row in group.items():
            if ours and right and row["status"] == "ok":
                row["speedup"] = (min(right.values()) if peer == FACETER else row["ms"]) / ours


def families(results: dict) -> list[str]:
    return list(dict.fromkeys(row["family"] for row in results["rows"]))


def table(results: dict, family: str) -> tuple[list[str], list[list[str]]]:
    """(header, lines) of a family: a line for each workload and peer, and no column that is empty."""
    memory = family in MEMORY_BOUND
    rate = ["GB/s", "% copy"] if memory else ["TFLOP/s", "% cuBLAS", "% peak"]
    header = ["workload", "peer", *(f"{d} {n}" for d in ("fwd", "bwd") for n in ("ms", *rate, "×"))]
    header += ["fwd+bwd ms", "×", "error"]
    rows: dict[tuple[str, str], dict[str, dict]] = {}
    for row in results["rows"]:
        if row["family"] == family:
            rows.setdefault((row["workload"], row["peer"]), {})[row["direction"]] = row
    lines = [_line(key, directions, memory) for key, directions in rows.items()]
    kept = [i for i, column in enumerate(zip(*lines, strict=True)) if any(column)]
    return [header[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _line(key: tuple[str, str], rows: dict[str, dict], memory: bool) -> list[str]:
    workload, peer = key
    note = next((row["note"] for row in rows.values() if row.get("note")), "")
    cells = [workload.partition("/")[2], f"{peer} ({note})" if note else peer]
    shares = ("copy_share",) if memory else ("cublas_share", "peak_share")
    for direction in ("forward", "backward"):
        row = rows.get(direction, {})
        cells += [
            _milliseconds(row),
            _number(row.get("gbs" if memory else "tflops"), "{:,.0f}"),
            *(_number(row.get(share), "{:.0%}").rstrip("%") for share in shares),
            _number(row.get("speedup"), "{:.2f}"),
        ]
    both = rows.get("both", {})
    cells += [_milliseconds(both), _number(both.get("speedup"), "{:.2f}")]
    errors = [e for row in rows.values() for e in row.get("errors", {}).values()]
    return [*cells, "" if not errors else "NaN" if None in errors else f"{max(errors):.1e}"]


def _number(x: float | None, form: str) -> str:
    return "" if x is None else form.format(x)


def _milliseconds(row: dict) -> str:
    if row.get("status") == "none":
        return "-"
    form = "{:.4f}" if row.get("ms", 1) < 0.1 else "{:.3f}"
    return _number(row.get("ms"), form) + " wrong" * (row.get("status") == "wrong")


def remarks(results: dict, family: str) -> list[str]:
    """One line for each peer and reason: why there is no number or a wrong one, and what was scaled."""
    found: dict[str, list[str]] = {}
    for row in results["rows"]:
        if row["family"] != family:
            continue
        text = f"{row['status']}: {row['reason']}" if row["reason"] else ""
        if not text and row["peer"] != FACETER and row.get("scale", 1) > 1:
            text = "computed a part of the batch; its times are for all of it"
        if text:
            found.setdefault(f"{row['peer']}: {text}", []).append(row["workload"].partition("/")[2])
    remarks = []
    for text, where in found.items():
        where = list(dict.fromkeys(where))
        remarks.append(f"{text} ({'; '.join(where) if len(where) < 4 else f'{len(where)} workloads'})")
    return remarks


def heading(results: dict) -> list[str]:
    """What was measured where."""
    machine, rates = results["machine"], results["rates"]
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)
    first, last = rates[0], rates[-1]
    return [
        f"{machine['device']}, {versions}, {machine['date']}.",
        f"cuBLAS bf16 8192^3: {first['cublas_tflops']:,.1f} TFLOP/s before, {last['cublas_tflops']:,.1f} after; "
        f"copy of 2 GiB: {first['copy_gbs']:,.0f} GB/s before, {last['copy_gbs']:,.0f} after.",
    ]


def markdown(results: dict) -> str:
    """The tables of all families."""
    parts = ["\n".join(heading(results))]
    for family in families(results):
        header, lines = table(results, family)
        rows = [header, ["---", "---", *["---:"] * (len(header) - 2)], *lines]
        parts.append(f"### {family}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
        parts.append("\n".join(f"- {text}" for text in remarks(results, family)))
    return "\n\n".join(part for part in parts if part) + "\n"


def show(results: dict) -> None:
    """On the terminal, by rich if it is there."""
    print(*heading(results), sep="\n")
    for family in families(results):
        header, lines = table(results, family)
        _show_table(family, header, lines)
        print(*remarks(results, family), sep="\n")


def _show_table(title: str, header: list[str], lines: list[list[str]]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        print(f"\n{title}")
        for line in (header, *lines):
            print(
                "  ".join(
                    cell.ljust(w) if i < 2 else cell.rjust(w)
                    for i, (cell, w) in enumerate(zip(line, widths, strict=True))
                )
            )
        return
    out = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(header):
        out.add_column(name, justify="left" if i < 2 else "right", no_wrap=i < 2)
    for line in lines:
        out.add_row(*line)
    Console(highlight=False, width=max(_COLUMNS, Console().width)).print(out)
