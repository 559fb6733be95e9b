"""The diagnosis as a table for people and as JSON for programs."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from faceter.tools.doctor.diagnosis import can_train, diagnose, fbgemm_variant, usable, wants_cuda
from faceter.tools.doctor.facts import PACKAGES, Facts
from faceter.tools.doctor.matrix import MATRIX, fit_for

_SHOWN = [name for name in PACKAGES if not name.startswith("fbgemm")]


def as_json(facts: Facts, faceter_version: str) -> dict:
    """A dict of plain values; ``can_train`` is what the exit code says."""
    return {
        "faceter": faceter_version,
        "python": facts.python,
        "packages": facts.packages,
        "torch_cuda": facts.cuda,
        "fbgemm_variant": fbgemm_variant(facts),
        "driver": facts.driver,
        "gpus": [{"name": g.name, "arch": g.arch, "memory_gib": round(g.memory_gib, 1)} for g in facts.gpus],
        "broken": facts.broken,
        "usable": {name: verdict._asdict() for name, verdict in usable(facts).items()},
        "problems": [problem._asdict() for problem in diagnose(facts)],
        "can_train": can_train(facts),
    }


def _versions(facts: Facts, faceter_version: str) -> Table:
    table = Table(title="Versions", title_justify="left")
    table.add_column("package")
    table.add_column("installed")
    table.add_column("fits this torch")
    torch = facts.packages.get("torch")
    fit = fit_for(torch) if torch else None
    wanted = {}
    if fit:
        wanted = {"triton": fit.triton, "torchrec": fit.fbgemm}
    table.add_row("faceter", faceter_version, "")
    table.add_row("python", facts.python, "")
    for name in _SHOWN:
        version = facts.packages.get(name, "-")
        if name == "torch" and torch:
            version += f" (CUDA {facts.cuda})" if facts.cuda else " (CPU build)"
        table.add_row(name, version, wanted.get(name, ""))
        if name == "torchrec":
            builds = [f"{p} {facts.packages[p]}" for p in ("fbgemm-gpu", "fbgemm-gpu-cpu") if p in facts.packages]
            right = "fbgemm-gpu" if wants_cuda(facts) else "fbgemm-gpu-cpu"
            table.add_row("fbgemm", ", ".join(builds) or "-", f"{right} {fit.fbgemm}" if fit else "")
    return table


def _gpus(facts: Facts) -> Table | Text:
    if not facts.gpus:
        return Text("GPUs: none that torch can use" + (f" (driver {facts.driver})" if facts.driver else ""))
    table = Table(title=f"GPUs (driver {facts.driver})", title_justify="left")
    for column in ("#", "name", "arch", "memory"):
        table.add_column(column)
    for i, gpu in enumerate(facts.gpus):
        table.add_row(str(i), gpu.name, gpu.arch, f"{gpu.memory_gib:.1f} GiB")
    return table


def _usable(facts: Facts) -> Table:
    table = Table(title="Usable", title_justify="left")
    for column in ("what", "", "where, or why not"):
        table.add_column(column)
    for name, verdict in usable(facts).items():
        table.add_row(name, Text("yes", "green") if verdict.ok else Text("no", "red"), verdict.why)
    return table


def print_report(facts: Facts, faceter_version: str, console: Console) -> None:
    console.print(_versions(facts, faceter_version))
    console.print(_gpus(facts))
    console.print(_usable(facts))
    problems = diagnose(facts)
    if not problems:
        console.print("No problems found.")
    for problem in problems:
        console.print(Text("problem: ", "red").append(problem.what, "default"))
        # Unwrapped: a command must survive copying from a narrow terminal.
        console.print(Text("    fix: ", "green").append(problem.fix, "default"), soft_wrap=True)
    if torch := facts.packages.get("torch"):
        known = "; ".join(f"torch {f.torch}: fbgemm, torchrec {f.fbgemm}, triton {f.triton}" for f in MATRIX)
        if fit_for(torch) is None:
            console.print(Text(f"Releases that fit each other: {known}"))
