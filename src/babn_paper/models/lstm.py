"""LSTMs over texts of different lengths."""

from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from babn_paper.models.texts import Text


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """No autocast, which runs an LSTM of cuDNN in float16 whatever it is asked for.

    Gradients of a mean over thousands of words would vanish there. In float32 cuDNN multiplies in
    TF32, and what an LSTM waits for is the step before, not arithmetic.
    """
    return torch.autocast(device.type, enabled=False)


class BiLstm(nn.Module):
    """An LSTM in both directions, which never sees padding.

    Args:
        inputs: Size of its inputs.
        size: Size of each direction.
        layers: How many, one on top of the other.
        dropout: Rate between layers.
    """

    def __init__(self, inputs: int, size: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            inputs,
            size,
            layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if layers > 1 else 0.0,
        )

    def forward(
        self, x: Float[Tensor, "batch token dim"], text: Text
    ) -> Float[Tensor, "batch token size"]:
        """Both directions side by side; zero at padding."""
        lengths = text.lengths.clamp(min=1)
        with full_precision(x.device):
            x = x.to(next(self.lstm.parameters()).dtype)
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            self.lstm.flatten_parameters()
            output, _ = self.lstm(packed)
        padded: Tensor
        padded, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return padded


def ends(states: Float[Tensor, "batch token size"], text: Text) -> Float[Tensor, "batch size"]:
    """What each direction knows when it has read the text: its state at the last or first token."""
    last = (text.seen.sum(1) - 1).clamp(min=0)
    forward, backward = states.unflatten(-1, (2, -1)).unbind(-2)
    at_last = last[:, None, None].expand(-1, 1, forward.shape[-1])
    return torch.cat([forward.gather(1, at_last).squeeze(1), backward[:, 0]], -1)
