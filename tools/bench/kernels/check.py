"""Whether what was timed is right: some examples against the definition, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faceter.kernels.gdpa.reference import gdpa_reference
from faceter.kernels.jagged_attention.reference import jagged_attention_reference
from faceter.tools.bench.kernels.peers.run import Run
from faceter.tools.bench.kernels.problems import ACTIVATION, Problem

_EXAMPLES = 8
# ||found - expected|| / ||expected|| of eight roundings to bf16 one after the other, as plain torch has in backward.
# Each is off by 2^-9 of its value in the mean, and the inputs are random, so that a sum's error grows as the sum does.
LIMIT = 2**-6


class Oracle:
    """The exact results of a problem, as far as they are looked at; kept for all peers."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.documents = problem.documents
        self._examples: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._shared_dq: dict[tuple[int, int], Tensor] = {}

    def errors(self, run: Run, found: dict[str, Tensor], copy: int) -> dict[str, float]:
        """Relative error of each result; NaN where one is not a number."""
        documents, errors = self.documents, {}
        sides = {"o": documents.o, "dq": documents.q, "dk": documents.kv, "dv": documents.kv}
        for name, x in found.items():
            x, side = run.restore(name, x.detach()), sides[name]
            if side.form == "shared":
                pairs = [(x.double(), self._dq_of_all(copy, run.batch))]
            else:
                pairs = [(side.example(x, b).double(), self._example(copy, b)[name]) for b in self._chosen(run.batch)]
            error = sum(float((a - e).square().sum()) for a, e in pairs)
            errors[name] = math.sqrt(error / sum(float(e.square().sum()) for _, e in pairs))
        return errors

    def _chosen(self, batch: int) -> list[int]:
        """The first and last, the smallest and largest, and some between, of examples with queries and keys."""
        pairs = (self.documents.q.lengths[:batch] * self.documents.kv.lengths[:batch]).tolist()
        there = [b for b in range(batch) if pairs[b]]
        ordered = sorted(there, key=pairs.__getitem__)
        between = there[:: max(1, len(there) // (_EXAMPLES - 3))][: _EXAMPLES - 3]
        return sorted({*between, there[-1], ordered[0], ordered[-1]})

    def _example(self, copy: int, b: int) -> dict[str, Tensor]:
        if (copy, b) not in self._examples:
            self._examples[copy, b] = self._exact(copy, b)
        return self._examples[copy, b]

    def _dq_of_all(self, copy: int, batch: int) -> Tensor:
        """Of a shared q: the sum over the examples."""
        if (copy, batch) not in self._shared_dq:
            there = [b for b in range(batch) if self.documents.kv.lengths[b] > 0]
            self._shared_dq[copy, batch] = sum(self._exact(copy, b)["dq"] for b in there)
        return self._shared_dq[copy, batch]

    def _exact(self, copy: int, b: int) -> dict[str, Tensor]:
        documents, (qk_scale, out_scale) = self.documents, self.documents.scales
        sides = (documents.q, documents.kv, documents.kv, documents.o)
        rows = [s.example(x.detach(), b)[None].double() for x, s in zip(documents.copies[copy], sides, strict=True)]
        qkv, grad = [x.requires_grad_() for x in rows[:3]], rows[3]
        if documents.workload.op == "gdpa":
            o = gdpa_reference(*qkv, None, None, ACTIVATION, qk_scale, out_scale, -1, -1)
        else:
            o, _ = jagged_attention_reference(*qkv, None, None, None, qk_scale, out_scale, -1, -1)
        gradients = torch.autograd.grad(o, qkv, grad)
        return {n: x[0].detach() for n, x in zip(("o", "dq", "dk", "dv"), (o, *gradients), strict=True)}


def verdict(errors: dict[str, float]) -> str:
    """ "" if all are within the limit, or which is not."""
    wrong = [f"{name} is off by {error:.2g}" for name, error in errors.items() if not error <= LIMIT]  # NaN is not
    return ", ".join(wrong)
