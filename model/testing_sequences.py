"""Drawn sequences and the checks that every block over padded sequences must pass. For tests only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

Block = Callable[[Tensor, Tensor, Tensor], Tensor]  # (s_BNE, mask_BN, delta_BN) -> (B, N, E) or (B, K, E)

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def sequences(
    lengths: list[int], dim: int, rows: int | None = None, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """s (B, N, dim), zeros past the length, mask (B, N) and delta (B, N), seconds falling to 0. The same for any N."""
    rows = max(1, *lengths) if rows is None else rows
    generator = torch.Generator().manual_seed(sum(lengths) + dim)
    s = torch.zeros(len(lengths), rows, dim, dtype=dtype)
    delta = torch.zeros(len(lengths), rows, dtype=dtype)
    for b, n in enumerate(lengths):
        s[b, :n] = torch.randn(n, dim, generator=generator, dtype=dtype)
        delta[b, :n] = torch.rand(n, generator=generator, dtype=dtype).mul(1e6).sort(descending=True).values
    return s, torch.arange(rows) < torch.tensor(lengths)[:, None], delta


def check_padding(block: Block, module: nn.Module, lengths: list[int], dim: int, by_row: bool) -> None:
    """More padding, and garbage in it, changes neither the outputs nor any gradient; padded rows get no gradient.

    Args:
        by_row: the block's output is (B, N, E) and its padded rows must be zero; else it is (B, K, E).
    """
    rows = max(1, *lengths)

    def run(extra: int, garbage: float):
        s, mask, delta = sequences(lengths, dim, rows + extra)
        generator = torch.Generator().manual_seed(1)
        s = torch.where(mask[..., None], s, garbage * torch.randn(s.shape, generator=generator, dtype=s.dtype))
        delta = torch.where(mask, delta, garbage * torch.rand(delta.shape, generator=generator, dtype=s.dtype))
        s.requires_grad_()
        out = block(s, mask, delta)
        if by_row and not garbage:
            assert not out[~mask].any()
        out = out[mask] if by_row else out
        module.zero_grad()
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=s.dtype)).sum().backward()
        assert s.grad is None or not s.grad[~mask].any()
        return out, None if s.grad is None else s.grad[mask], {n: p.grad for n, p in module.named_parameters()}

    want = run(0, 0.0)
    for extra, garbage in ((3, 0.0), (0, 1e3), (70, 1e3)):
        torch.testing.assert_close(run(extra, garbage), want, rtol=1e-9, atol=1e-9)


def check_flops(block: Block, flops: Callable[[Tensor], dict[str, Tensor]], dim: int, rows: int) -> None:
    """`flops` is what torch counts where nothing is padded, sums over examples, and less where something is."""
    s, mask, delta = sequences([rows] * 3, dim, dtype=torch.float32)
    # The formula of the fused CPU kernel is not among torch's: count the unfused one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(s, mask, delta)
    full = flops(torch.full((3,), rows))
    assert all(part.dtype == torch.float64 and part.shape == (3,) for part in full.values())
    assert sum(part.sum().item() for part in full.values()) == counter.get_total_flops()

    total_B = torch.stack(list(flops(torch.tensor([0, 1, rows - 1, rows])).values())).sum(0)
    assert (total_B.diff() > 0).all()


def check_autocast(block: Block, dim: int) -> None:
    """bf16 autocast on the CPU stays near float32 and its gradients are finite."""
    s, mask, delta = sequences([7, 0, 1, 5], dim, dtype=torch.float32)
    s.requires_grad_()
    want = block(s, mask, delta)
    with torch.autocast("cpu", torch.bfloat16):
        got = block(s, mask, delta)
    got.float().sum().backward()
    assert s.grad.isfinite().all()
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    assert not torch.equal(got.float(), want)


def check_compiles(block: Block, dim: int) -> None:
    """One graph, also for other batch sizes and lengths, that computes the same."""
    compiled = torch.compile(block, backend="eager", fullgraph=True, dynamic=True)
    for lengths in ([7, 0, 1, 5], [70, 3]):
        case = sequences(lengths, dim, dtype=torch.float32)
        torch.testing.assert_close(compiled(*case), block(*case))


def check_meta(build: Callable[[], nn.Module], call: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor], dim: int):
    """Built on meta it runs there; given memory and reset, it has the parameters of one built on the CPU."""
    s, mask, delta = sequences([7, 0, 5], dim, dtype=torch.float32)
    with torch.device("meta"):
        module = build()
    out = call(module, s.to("meta"), mask.to("meta"), delta.to("meta"))
    torch.manual_seed(0)
    module.to_empty(device="cpu")
    for child in module.modules():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()
    got = call(module, s, mask, delta)
    assert out.shape == got.shape
    assert got.isfinite().all()
