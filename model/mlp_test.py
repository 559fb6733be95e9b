import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from faceter.model.config import ConfigError
from faceter.model.mlp import MLP


@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(0, 5),
    in_dim=st.integers(1, 9),
    hidden=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    out_dim=st.integers(1, 9),
)
def test_against_a_loop_and_the_flop_counter(rows, in_dim, hidden, out_dim):
    torch.manual_seed(0)
    mlp = MLP(in_dim, hidden, out_dim, activation="silu").double()
    x = torch.randn(2, rows, in_dim, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        y = mlp(x)

    want = x
    for i, layer in enumerate(mlp.layers):
        want = torch.einsum("...i,oi->...o", want, layer.weight) + layer.bias
        if i < len(hidden):
            want = want * torch.sigmoid(want)
    torch.testing.assert_close(y, want)
    assert mlp.flops(torch.tensor([rows, rows]))["mlp"].sum().item() == counter.get_total_flops()


def test_hidden_layers_only_drop():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    deep, flat = MLP(4, (8,), 3, dropout=0.5), MLP(4, (), 3, dropout=0.5)
    assert not torch.equal(deep(x), deep(x))
    assert torch.equal(flat(x), flat(x))
    assert torch.equal(deep.eval()(x), deep(x))


def test_unknown_activation_names_those_there_are():
    with pytest.raises(ConfigError, match="no activation 'gleu'; there are gelu, "):
        MLP(2, (2,), 2, activation="gleu")


def test_meta():
    with torch.device("meta"):
        assert MLP(3, (5,), 2)(torch.empty(7, 3)).shape == (7, 2)
