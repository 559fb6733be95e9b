"""What is true of this machine and its Python: gathered here, judged in ``diagnosis.py``.

Versions come from package metadata.  What must be imported to be known is imported in processes of their own: a library
built for another torch can end the process that loads it.
"""

import concurrent.futures
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import warnings

PACKAGES = (
    "torch",
    "triton",
    "torchrec",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "torchmetrics",
    "tensordict",
    "pyre-extensions",
    "tqdm",
    "numpy",
    "pyarrow",
)
# torch with its libraries can take a minute from a cold network disk.
_TIMEOUT_S = 300

_TORCH = """
import json, torch
import torch.distributed as dist
gpus = []
if torch.version.cuda is not None and torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        gpus.append({"name": p.name, "capability": [p.major, p.minor], "memory_gib": p.total_memory / 2**30})
backends = []
if dist.is_available():
    backends = [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus, "backends": backends}))
"""

# One call of an operator: some versions of fbgemm import without their libraries.
_FBGEMM = """
import torch, fbgemm_gpu
assert torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([2, 3])).tolist() == [0, 2, 5]
print("null")
"""

_TORCHREC = """
import torch, torchrec
kjt = torchrec.KeyedJaggedTensor.from_lengths_sync(["a"], torch.tensor([7, 8]), torch.tensor([2, 0]))
assert kjt.offsets().tolist() == [0, 2, 2]
print("null")
"""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as torch sees it; ``capability`` is (major, minor), memory in GiB."""

    name: str
    capability: tuple[int, int]
    memory_gib: float

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything the diagnosis rests on.

    Attributes:
        python: version of the interpreter.
        packages: version of each installed member of ``PACKAGES``; absent ones are not in it.
        cuda: CUDA version that torch was built for, None for a CPU build or no torch.
        gpus: GPUs that torch can use.
        backends: distributed backends that torch has.
        driver: version of the NVIDIA driver, None without one.
        compiler: a C compiler is on PATH (Triton builds its launcher with it).
        python_headers: Python.h is there (likewise).
        broken: for torch, fbgemm and torchrec, where installed and not usable, the last line of the error.
    """

    python: str
    packages: dict[str, str]
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    backends: tuple[str, ...] = ()
    driver: str | None = None
    compiler: bool = True
    python_headers: bool = True
    broken: dict[str, str] = dataclasses.field(default_factory=dict)


def installed(names=PACKAGES) -> dict[str, str]:
    """Versions of those of ``names`` that are installed, from their metadata alone."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def probe(source: str) -> tuple[object, str | None]:
    """Run Python ``source`` in a process of its own; it prints one line of JSON last.

    Returns:
        (the decoded line, None), or (None, why it failed in one line).
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_TIMEOUT_S} s"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), None
    if done.returncode < 0:
        return None, f"killed by signal {-done.returncode}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # The loader's own words, where there are any, say more than the exception that ends the traceback.
    telling = [line for line in lines if "undefined symbol" in line or "cannot open shared object" in line]
    return None, (telling or lines or [f"exit code {done.returncode}"])[-1]


def nvidia_driver() -> str | None:
    """Version of the NVIDIA driver of this machine, or None."""
    smi = shutil.which("nvidia-smi")
    if smi:
        done = subprocess.run(
            [smi, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    version = pathlib.Path("/proc/driver/nvidia/version")
    if version.exists():
        words = version.read_text().split("Kernel Module")[-1].split()
        return next((word for word in words if word[0].isdigit()), None)
    return None


def gather() -> Facts:
    """Look at this machine; takes about as long as importing torchrec."""
    packages = installed()
    todo = {}
    if "torch" in packages:
        todo["torch"] = _TORCH
        if packages.keys() & {"fbgemm-gpu", "fbgemm-gpu-cpu"}:
            todo["fbgemm"] = _FBGEMM
            if "torchrec" in packages:
                todo["torchrec"] = _TORCHREC
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = dict(zip(todo, pool.map(probe, todo.values()), strict=True))
    seen, _ = results.get("torch", (None, None))
    seen = seen or {"cuda": None, "gpus": [], "backends": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        headers = pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
    return Facts(
        python=platform.python_version(),
        packages=packages,
        cuda=seen["cuda"],
        gpus=tuple(Gpu(g["name"], tuple(g["capability"]), g["memory_gib"]) for g in seen["gpus"]),
        backends=tuple(seen["backends"]),
        driver=nvidia_driver(),
        compiler=any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")),
        python_headers=headers,
        broken={name: error for name, (_, error) in results.items() if error is not None},
    )
