"""Padded texts, attention between two of them, and LSTMs over them."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@dataclass(frozen=True)
class Text:
    """A batch of texts, padded on the right.

    Attributes:
        ids: Tokens; arbitrary at padding.
        seen: Mask of the tokens.
    """

    ids: Int[Tensor, "batch token"]
    seen: Bool[Tensor, "batch token"]

    @cached_property
    def lengths(self) -> Int[Tensor, "batch"]:
        """Number of tokens of each text, on the CPU."""
        return self.seen.sum(1).cpu()


def left_aligned(ids: Int[Tensor, "batch token"], chosen: Bool[Tensor, "batch token"]) -> Text:
    """Returns the chosen tokens of each row in their order, padded on the right as needed."""
    lengths = chosen.sum(-1, keepdim=True)
    known = lengths.squeeze(-1).cpu()
    longest = max(1, int(known.max()))
    order = chosen.byte().argsort(dim=-1, descending=True, stable=True)[:, :longest]
    text = Text(ids.gather(-1, order), torch.arange(longest, device=ids.device) < lengths)
    vars(text)["lengths"] = known  # avoids a second synchronisation with the device
    return text


class TextAttention(nn.Module):
    r"""Attention from one text to another without parameters: $\mathrm{softmax}(QK^\top + b)V$.

    Every use has a module of its own: conversion chains the calls of a module that have the same
    shape, and the lengths of two texts may or may not be equal.

    Args:
        recurrent: Whether attention is called once for each token of the attending text.
    """

    def __init__(self, recurrent: bool = False) -> None:
        super().__init__()
        self.recurrent_attention = recurrent

    def forward(
        self,
        query: Float[Tensor, "batch query dim"],
        key: Float[Tensor, "batch key dim"],
        value: Float[Tensor, "batch key valuedim"],
        queries: Bool[Tensor, "batch query"],
        keys: Bool[Tensor, "batch key"],
        bias: Float[Tensor, "*batches query key"] | None = None,
    ) -> Float[Tensor, "batch query valuedim"]:
        """Returns weighted means of the values, which are zero without a query or a key.

        Args:
            query: One vector for each token of the attending text.
            key: One vector for each token of the attended text.
            value: The vectors to average.
            queries: Mask of the queries; padded ones must not count in the KL.
            keys: Mask of the keys.
            bias: Added to the scores, for all texts or for each.
        """
        mask = (queries.unsqueeze(-1) & keys.unsqueeze(-2)).unsqueeze(1)
        if bias is not None:
            mask = bias.unsqueeze(-3).to(query.dtype).masked_fill(~mask, -torch.inf)
        q, k, v = (x.unsqueeze(1) for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0).squeeze(1)


class Side(nn.Module):
    """The attention of one text of a pair to the other text.

    By the name `cross_attention`, conversion recognises that keys are of another text, even if both
    texts have the same length.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cross_attention = TextAttention()


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disables autocast, which runs LSTMs of cuDNN in float16.

    In float16, gradients of a mean over thousands of words underflow. In float32, cuDNN multiplies
    in TF32, and the speed of an LSTM is limited by its sequential steps, not by arithmetic.
    """
    return torch.autocast(device.type, enabled=False)


class BiLstm(nn.Module):
    """A bidirectional LSTM that skips padding.

    Args:
        inputs: Size of the inputs.
        size: Size of each direction.
        layers: Number of layers.
        dropout: Dropout rate between layers.
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
        """Returns the concatenated states of both directions; 0 at padding."""
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
    """Returns the final state of each direction, at the last and at the first token."""
    last = (text.seen.sum(1) - 1).clamp(min=0)
    forward, backward = states.unflatten(-1, (2, -1)).unbind(-2)
    at_last = last[:, None, None].expand(-1, 1, forward.shape[-1])
    return torch.cat([forward.gather(1, at_last).squeeze(1), backward[:, 0]], -1)
