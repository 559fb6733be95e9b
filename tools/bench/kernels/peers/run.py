"""A peer that is ready to compute a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from faceter.tools.bench.kernels.problems import Problem


class Unavailable(Exception):
    """The peer can't compute the problem; the message says why."""


@dataclass
class Run:
    """Attributes:
    forward: (q, k, v) -> o in the peer's layout.
    inputs: (q, k, v) of each copy in the peer's layout, leaves.
    grads: the gradient of o of each copy.
    batch: documents (see `Problem.documents`) that it computes: the first ones.
    scale: how many times its time all documents would take.
    restore: (name, x) -> x in the problem's form; name is o, dq, dk or dv.
    note: what a reader of the number must know.
    forward_only: why it has no backward pass.
    """

    forward: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: list[tuple[Tensor, Tensor, Tensor]]
    grads: list[Tensor]
    batch: int
    scale: float = 1.0
    restore: Callable[[str, Tensor], Tensor] = lambda name, x: x
    note: str = ""
    forward_only: str = ""

    def call(self, direction: str) -> Callable[[int], dict[str, Tensor]]:
        """What is timed: copy -> name -> result, for direction forward, backward (of a graph that is there) or both."""

        def backward(o: Tensor, copy: int, retain_graph: bool) -> dict[str, Tensor]:
            gradients = torch.autograd.grad(o, self.inputs[copy], self.grads[copy], retain_graph=retain_graph)
            return dict(zip(("dq", "dk", "dv"), gradients, strict=True))

        def forward(copy: int) -> dict[str, Tensor]:
            with torch.no_grad():
                return {"o": self.forward(*detached[copy])}

        def both(copy: int) -> dict[str, Tensor]:
            o = self.forward(*self.inputs[copy])
            return {"o": o.detach(), **backward(o, copy, False)}

        if direction == "forward":
            detached = [tuple(x.detach() for x in inputs) for inputs in self.inputs]
            return forward
        if self.forward_only:
            raise Unavailable(self.forward_only)
        if direction == "both":
            return both
        outputs = [self.forward(*inputs) for inputs in self.inputs]
        return lambda copy: backward(outputs[copy], copy, True)


def on_jagged(problem: Problem, forward: Callable[[Tensor, Tensor, Tensor], Tensor], note: str = "") -> Run:
    """A run on the problem's own tensors."""
    inputs, grads = [(q, k, v) for q, k, v, _ in problem.copies], [grad for *_, grad in problem.copies]
    return Run(forward, inputs, grads, problem.documents.batch, note=note)
