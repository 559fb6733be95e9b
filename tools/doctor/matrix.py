"""Which releases fit each other.

fbgemm's libraries are built against the C++ symbols of one minor release of torch and do not load on another (its own
compatibility table, docs.pytorch.org/FBGEMM, says the same).  torchrec is released together with fbgemm.  The triton
minor is the one that torch's CUDA wheel asks for.
"""

import re
from typing import NamedTuple


class Fit(NamedTuple):
    """One row of the matrix, all of them ``major.minor``; torchrec's is fbgemm's."""

    torch: str
    fbgemm: str
    triton: str


MATRIX = (
    Fit(torch="2.11", fbgemm="1.6", triton="3.6"),
    Fit(torch="2.12", fbgemm="1.7", triton="3.7"),
    Fit(torch="2.13", fbgemm="1.8", triton="3.7"),
    Fit(torch="2.14", fbgemm="1.9", triton="3.8"),
)
# What faceter is developed and tested on.
TESTED = MATRIX[2]
# The torchmetrics that every torchrec of the matrix asks for.
TORCHMETRICS = "1.0.3"


def minor(version: str) -> str:
    """``"2.13"`` for ``"2.13.0+cpu"``, ``"2.13.0a0"`` and ``"2.13"``.

    Raises:
        ValueError: the text does not begin with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return f"{match[1]}.{match[2]}"


def fit_for(torch_version: str) -> Fit | None:
    """The row for a torch version, or None where the matrix has none."""
    return next((fit for fit in MATRIX if fit.torch == minor(torch_version)), None)
