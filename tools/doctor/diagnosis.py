"""From facts to what is wrong, what to type against it, and what is usable.  Pure functions."""

from typing import NamedTuple

from faceter.tools.doctor.facts import Facts
from faceter.tools.doctor.matrix import MATRIX, TESTED, TORCHMETRICS, fit_for, minor

# What torchrec imports besides torch, fbgemm and torchmetrics.
_TORCHREC_NEEDS = ("tensordict", "pyre-extensions", "tqdm")


class Problem(NamedTuple):
    """What is wrong, and the command or step that mends it."""

    what: str
    fix: str


class Verdict(NamedTuple):
    """Whether something is usable; ``why`` names the device or the reason against it."""

    ok: bool
    why: str


def fbgemm_variant(facts: Facts) -> str | None:
    """``"cpu"``, ``"cuda"``, ``"both"`` (they overwrite each other's files) or None."""
    found = [v for name, v in (("fbgemm-gpu-cpu", "cpu"), ("fbgemm-gpu", "cuda")) if name in facts.packages]
    return {0: None, 1: found[0] if found else None, 2: "both"}[len(found)]


def wants_cuda(facts: Facts) -> bool:
    """Whether the CUDA build of fbgemm is the right one: it needs a CUDA torch and the driver's libraries."""
    return facts.cuda is not None and facts.driver is not None


def install_set(facts: Facts, fbgemm: str) -> str:
    """The command that installs one fbgemm/torchrec release for this machine's torch.

    torchrec asks for ``fbgemm-gpu``, of any version: pip would bring the newest CUDA build, so on a CPU it is kept from
    looking at torchrec's requirements at all.
    """
    variant = fbgemm_variant(facts)
    wrong = {None: [], "both": ["fbgemm-gpu", "fbgemm-gpu-cpu"]}.get(variant)
    if wrong is None:
        wrong = {("cpu", True): ["fbgemm-gpu-cpu"], ("cuda", False): ["fbgemm-gpu"]}.get(
            (variant, wants_cuda(facts)), []
        )
    remove = f"pip uninstall -y {' '.join(wrong)} && " if wrong else ""
    if wants_cuda(facts):
        return f'{remove}pip install "fbgemm-gpu=={fbgemm}.*" "torchrec=={fbgemm}.*"'
    needs = " ".join(_TORCHREC_NEEDS)
    return (
        f'{remove}pip install "fbgemm-gpu-cpu=={fbgemm}.*" torchmetrics=={TORCHMETRICS} {needs}'
        f' && pip install --no-deps "torchrec=={fbgemm}.*"'
    )


def _torch_problems(facts: Facts) -> list[Problem]:
    problems = []
    version = facts.packages["torch"]
    fit = fit_for(version) or TESTED
    reinstall = f'pip install --force-reinstall "torch=={fit.torch}.*"'
    if "torch" in facts.broken:
        problems.append(Problem(f"torch {version} does not import: {facts.broken['torch']}", reinstall))
    elif facts.driver and facts.cuda is None:
        what = f"an NVIDIA driver ({facts.driver}) and a CPU build of torch ({version}); PyPI has CUDA builds"
        problems.append(Problem(what, reinstall))
    elif facts.driver and not facts.gpus:
        fix = f"update the NVIDIA driver to one for CUDA {facts.cuda}, or install a torch built for an older CUDA"
        problems.append(Problem(f"torch {version} (CUDA {facts.cuda}) sees no GPU with driver {facts.driver}", fix))
    return problems


def _fbgemm_problems(facts: Facts) -> list[Problem]:
    torch, fit, variant = facts.packages["torch"], fit_for(facts.packages["torch"]), fbgemm_variant(facts)
    if fit is None:
        known = ", ".join(f.torch for f in MATRIX)
        command = f'pip install "torch=={TESTED.torch}.*" && {install_set(facts, TESTED.fbgemm)}'
        return [Problem(f"no fbgemm is known for torch {torch} (known: {known})", command)]
    fix = install_set(facts, fit.fbgemm)
    if variant is None:
        return [Problem("fbgemm is not installed", fix)]
    if variant == "both":
        return [Problem("fbgemm-gpu and fbgemm-gpu-cpu are both installed and overwrite each other's files", fix)]
    name = "fbgemm-gpu" if variant == "cuda" else "fbgemm-gpu-cpu"
    version = facts.packages[name]
    if minor(version) != fit.fbgemm:
        return [Problem(f"{name} {version} is not built for torch {torch}, which wants {fit.fbgemm}", fix)]
    if "fbgemm" in facts.broken:
        # The right release, so what lies there is damaged or lacks a library: pip must not take it for done.
        fix = fix.replace("pip install", "pip install --force-reinstall --no-deps", 1)
        return [Problem(f"{name} {version} does not load: {facts.broken['fbgemm']}", fix)]
    if variant == "cpu" and wants_cuda(facts):
        return [Problem(f"{name} {version} has no GPU operators: embeddings can't train on the GPU", fix)]
    return []


def _torchrec_problems(facts: Facts) -> list[Problem]:
    fit = fit_for(facts.packages["torch"])
    if fit is None:
        return []  # said for fbgemm already, with a command that brings both
    fix = install_set(facts, fit.fbgemm)
    version = facts.packages.get("torchrec")
    if version is None:
        return [Problem("torchrec is not installed", fix)]
    if minor(version) != fit.fbgemm:
        return [Problem(f"torchrec {version} does not belong to torch {facts.packages['torch']}", fix)]
    absent = [name for name in _TORCHREC_NEEDS if name not in facts.packages]
    if facts.packages.get("torchmetrics") != TORCHMETRICS:
        absent.append(f"torchmetrics=={TORCHMETRICS}")
    if absent:
        return [Problem(f"torchrec {version} lacks {', '.join(absent)}", f"pip install {' '.join(absent)}")]
    if "torchrec" in facts.broken and "fbgemm" not in facts.broken:
        return [Problem(f"torchrec {version} does not import: {facts.broken['torchrec']}", fix)]
    return []


def _triton_problems(facts: Facts) -> list[Problem]:
    fit, version = fit_for(facts.packages["torch"]), facts.packages.get("triton")
    wanted = fit.triton if fit else TESTED.triton
    if version is None:
        # Without a GPU only tests of the kernels use it, in its interpreter.
        return [Problem("triton is not installed", f'pip install "triton=={wanted}.*"')] if facts.gpus else []
    problems = []
    if fit and minor(version) != fit.triton:
        what = f"triton {version} is not the one that torch {facts.packages['torch']} uses ({fit.triton})"
        problems.append(Problem(what, f'pip install "triton=={fit.triton}.*"'))
    numpy = facts.packages.get("numpy")
    if minor(version) == "3.6" and numpy and tuple(map(int, minor(numpy).split("."))) >= (2, 4):
        what = f"triton {version}'s interpreter does not work with numpy {numpy}"
        problems.append(Problem(what, 'pip install "numpy<2.4"'))
    if facts.gpus and not (facts.compiler and facts.python_headers):
        lacks = " and ".join(
            name for name, there in (("a C compiler", facts.compiler), ("Python.h", facts.python_headers)) if not there
        )
        what = f"Triton builds its launcher at run time and finds no {lacks}"
        problems.append(Problem(what, "apt-get install gcc python3-dev (or your system's equivalent)"))
    return problems


def diagnose(facts: Facts) -> list[Problem]:
    """What is wrong here, the fundamental first."""
    problems = []
    for name in ("numpy", "pyarrow"):
        if name not in facts.packages:
            problems.append(Problem(f"{name} is not installed", f"pip install {name}"))
    if "torch" not in facts.packages:
        command = f'pip install "torch=={TESTED.torch}.*" && {install_set(facts, TESTED.fbgemm)}'
        return [Problem("torch is not installed", command), *problems]
    torch = _torch_problems(facts)
    if "torch" in facts.broken:
        return torch + problems  # nothing that needs torch can be judged
    found = torch + _fbgemm_problems(facts) + _torchrec_problems(facts) + _triton_problems(facts) + problems
    return _once(found)


def _once(problems: list[Problem]) -> list[Problem]:
    """Problems with one and the same fix in one entry."""
    by_fix: dict[str, list[str]] = {}
    for problem in problems:
        by_fix.setdefault(problem.fix, []).append(problem.what)
    return [Problem("; ".join(whats), fix) for fix, whats in by_fix.items()]


def usable(facts: Facts) -> dict[str, Verdict]:
    """What can be done here, in the order of the table."""
    verdicts = {"train on CPU": _train(facts)}
    verdicts["train on GPU"] = _train_gpu(facts, verdicts["train on CPU"])
    verdicts["Triton kernels"] = _triton(facts)
    verdicts["Hopper kernels"] = _on_gpu(facts, verdicts["Triton kernels"], lambda c: c == (9, 0), "no sm_90 GPU")
    verdicts["fp8"] = _on_gpu(facts, verdicts["Triton kernels"], lambda c: c >= (8, 9), "no GPU of sm_89 or newer")
    backends = ", ".join(facts.backends)
    verdicts["distributed"] = Verdict(bool(backends), backends or "torch has no distributed backend")
    return verdicts


def _train(facts: Facts) -> Verdict:
    for name in ("torch", "torchrec", "numpy", "pyarrow"):
        if name not in facts.packages:
            return Verdict(False, f"{name} is missing")
    if fbgemm_variant(facts) is None:
        return Verdict(False, "fbgemm is missing")
    for name in ("torch", "fbgemm", "torchrec"):
        if name in facts.broken:
            return Verdict(False, f"{name} does not load")
    return Verdict(True, "")


def _train_gpu(facts: Facts, cpu: Verdict) -> Verdict:
    if not cpu.ok:
        return cpu
    if not facts.gpus:
        return Verdict(False, "torch is a CPU build" if facts.cuda is None else "no GPU")
    if fbgemm_variant(facts) != "cuda":
        return Verdict(False, "fbgemm has no GPU operators")
    return Verdict(True, f"{len(facts.gpus)} x {facts.gpus[0].name}")


def _triton(facts: Facts) -> Verdict:
    if "triton" not in facts.packages:
        return Verdict(False, "triton is missing")
    if not facts.gpus:
        return Verdict(False, "no GPU; TRITON_INTERPRET=1 runs them on the CPU, slowly, for tests")
    if not (facts.compiler and facts.python_headers):
        return Verdict(False, "no C compiler or no Python.h")
    return Verdict(True, facts.gpus[0].arch)


def _on_gpu(facts: Facts, triton: Verdict, fits, otherwise: str) -> Verdict:
    able = [gpu for gpu in facts.gpus if fits(gpu.capability)]
    if not able:
        return Verdict(False, otherwise if facts.gpus else "no GPU")
    return Verdict(True, able[0].name) if triton.ok else triton


def can_train(facts: Facts) -> bool:
    """Whether ``faceter train`` works here, on whatever device."""
    return usable(facts)["train on CPU"].ok
