import torch

from faceter.model.wide import WideLogits


def test_is_its_equation():
    wide = WideLogits(columns=3, embedding_dim=4, in_features=2, tasks=2)
    for parameter in wide.parameters():
        parameter.data = torch.randn_like(parameter)
    e_BMD, x_Bn = torch.randn(5, 3, 4), torch.randn(5, 2)
    want = x_Bn @ wide.dense_weight_n
    for i in range(3):
        want += e_BMD[:, i] @ wide.weight_MD[i]
        for j in range(i):
            want += (e_BMD[:, i] * e_BMD[:, j]).sum(1)
    torch.testing.assert_close(wide(e_BMD, x_Bn), want[:, None] * wide.scale_T)


def test_nothing_to_add_up_is_zero():
    wide = WideLogits(columns=1, embedding_dim=4, in_features=0, tasks=3)
    logits = wide(torch.randn(5, 1, 4), torch.zeros(5, 0))  # one column has no pair, and its weight starts at zero
    torch.testing.assert_close(logits, torch.zeros(5, 3), atol=1e-6, rtol=0)


def test_fp32_logits():
    wide = WideLogits(2, 4, 1, 1)
    assert wide(torch.randn(3, 2, 4).bfloat16(), torch.randn(3, 1).bfloat16()).dtype == torch.float32
