import torch
from torch.utils.flop_counter import FlopCounterMode

from faceter.model.dense import DenseTokens


def test_tokens_are_the_mlp_s_output_cut_up():
    block = DenseTokens(in_features=5, hidden=(7,), tokens=3, dim=4)
    dense_Bn = torch.randn(6, 5)
    with FlopCounterMode(display=False) as counter:
        tokens_BNE = block(dense_Bn)
    assert tokens_BNE.shape == (6, 3, 4)
    torch.testing.assert_close(tokens_BNE[:, 1], block.mlp(dense_Bn)[:, 4:8])
    assert block.flops(torch.ones(6))["dense"].sum() == counter.get_total_flops()
