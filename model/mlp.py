"""The multi-layer perceptron that every part of the model shares: MLP(x) = W_n act(... act(W_1 x + b_1) ...) + b_n."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from faceter.model.activations import activation as activation_of
from faceter.model.config import Activation


class MLP(nn.Module):
    """(..., in_dim) -> (..., out_dim). Hidden layers: linear, activation, dropout, no norm; the last layer is linear.

    Args:
        in_dim: width of the input.
        hidden: widths of the hidden layers; empty gives one linear layer.
        out_dim: width of the output.
        dropout: rate after each hidden activation.
        activation: name, see `faceter.model.activations`.

    Raises:
        ConfigError: unknown activation.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...],
        out_dim: int,
        dropout: float = 0.0,
        activation: Activation = "gelu",
    ):
        super().__init__()
        widths = (in_dim, *hidden, out_dim)
        self.layers = nn.ModuleList(nn.Linear(m, n) for m, n in pairwise(widths))
        self.activation = activation_of(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.dropout(self.activation(layer(x)))
        return last(x)

    def flops(self, rows_B: Tensor) -> dict[str, Tensor]:
        """Forward FLOPs per example, under the part name "mlp".

        Args:
            rows_B: (B,) number of rows that each example sends through.
        """
        return {"mlp": rows_B.double() * sum(2 * layer.in_features * layer.out_features for layer in self.layers)}
