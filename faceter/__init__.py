"""faceter: a training compiler for large recommendation models, and a model to prove it on.

The folders of the repo are subpackages of this one: ``faceter.data``, ``faceter.model``, ``faceter.kernels``,
``faceter.passes``, ``faceter.tools``.  They and the public names are imported at first use: ``import faceter`` alone
loads no torch.
"""

import importlib
import os.path

__version__ = "0.1.0"

_here = os.path.dirname(__file__)  # not resolved: in a run-time tree that would lead out of it
if os.path.isfile(os.path.join(_here, "BUILD")):
    # A checkout or Bazel's run-time tree: the folders lie beside this one.  In a wheel, which has no BUILD
    # files, they lie inside it.
    __path__.append(os.path.dirname(_here))

_SUBPACKAGES = ("data", "kernels", "model", "passes", "tools")
# Public name -> module that defines it.
_PUBLIC = {
    "Batch": "faceter.data.batch",
    "DataError": "faceter.data.errors",
    "GemConfig": "faceter.model.config",
    "Schema": "faceter.data.schema",
    "debug": "faceter.kernels.operands",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value  # the next access does not come here
        return value
    if name in _SUBPACKAGES:
        return importlib.import_module(f"faceter.{name}")
    raise AttributeError(f"module 'faceter' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_SUBPACKAGES})
