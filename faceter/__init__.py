"""faceter: a training compiler for large recommendation models, and a model to prove it on.

The folders of the repo are subpackages of this one: ``faceter.data``, ``faceter.model``, ``faceter.kernels``,
``faceter.passes``, ``faceter.tools``.  They are imported at first use: ``import faceter`` alone loads no torch.
"""

import os.path

__version__ = "0.1.0"

_here = os.path.dirname(__file__)  # not resolved: in a run-time tree that would lead out of it
if os.path.isfile(os.path.join(_here, "BUILD")):
    # A checkout or Bazel's run-time tree: the folders lie beside this one.  In a wheel, which has no BUILD
    # files, they lie inside it.
    __path__.append(os.path.dirname(_here))
