import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faceter.model.padding import pad_jagged, unpad_jagged


def jagged(lengths, dim, dtype):
    values = torch.randn(sum(lengths), dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    return values, torch.tensor([0, *lengths]).cumsum(0)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    dim=st.integers(1, 5),
    rows=st.integers(1, 8),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_against_a_loop(lengths, dim, rows, dtype):
    values, offsets = jagged(lengths, dim, dtype)
    values.requires_grad_()
    padded, mask = pad_jagged(values, offsets, rows)
    want, want_mask = torch.zeros(len(lengths), rows, dim, dtype=dtype), torch.zeros(len(lengths), rows, dtype=bool)
    want_back = torch.zeros_like(values)
    for b, n in enumerate(lengths):
        for t in range(min(n, rows)):
            want[b, t] = values.detach()[offsets[b] + t]
            want_back[offsets[b] + t] = values.detach()[offsets[b] + t]
            want_mask[b, t] = True
    assert padded.dtype == dtype
    torch.testing.assert_close(padded, want, rtol=0, atol=0)
    assert torch.equal(mask, want_mask)

    padded_grad = torch.randn(padded.shape).to(dtype)
    back = unpad_jagged(padded, offsets, sum(lengths))
    torch.testing.assert_close(back, want_back, rtol=0, atol=0)
    (grad,) = torch.autograd.grad(padded, values, padded_grad)
    torch.testing.assert_close(grad, unpad_jagged(padded_grad, offsets, sum(lengths)), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_unpad_gradient_is_pad_and_reads_no_padding(dtype):
    _, offsets = jagged([2, 0, 3], 2, dtype)
    padded = torch.full((3, 4, 2), float("nan"), dtype=dtype)
    mask = torch.arange(4) < torch.tensor([2, 0, 3])[:, None]
    padded[mask] = torch.arange(10, dtype=dtype).view(5, 2)
    padded.requires_grad_()
    values = unpad_jagged(padded, offsets, 5)
    assert values.flatten().tolist() == list(range(10))
    values.backward(torch.ones_like(values))
    assert torch.equal(padded.grad, mask[..., None].expand(3, 4, 2).to(dtype))


def test_integers():
    values, offsets = torch.arange(5)[:, None], torch.tensor([0, 2, 2, 5])
    assert pad_jagged(values, offsets, 3)[0].squeeze(2).tolist() == [[0, 1, 0], [0, 0, 0], [2, 3, 4]]


@pytest.mark.filterwarnings("ignore:_check_is_size")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_compiles_and_runs_on_meta(dtype):
    def there_and_back(values, offsets):
        padded, mask = pad_jagged(values, offsets, 4)
        return unpad_jagged(padded * 2, offsets, values.shape[0]), mask

    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ([2, 0, 3], [1, 4, 0, 2]):
        values, offsets = jagged(lengths, 2, dtype)
        values.requires_grad_()
        out, _ = compiled(values, offsets)
        out.sum().backward()
        assert torch.equal(values.grad, torch.full_like(values, 2))
    out, mask = there_and_back(values.detach().to("meta"), offsets.to("meta"))
    assert out.shape == (7, 2)
    assert mask.shape == (4, 4)
