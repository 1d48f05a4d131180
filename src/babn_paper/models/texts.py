"""Two texts out of one row of tokens, and attention from one text to another."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from babn_paper.models.config import PairConfig


@dataclass(frozen=True)
class Text:
    """The tokens of one text of each pair, from the left, padded on the right.

    Attributes:
        ids: Tokens; anything at padding.
        seen: Where there is a token.
    """

    ids: Int[Tensor, "batch token"]
    seen: Bool[Tensor, "batch token"]

    @cached_property
    def lengths(self) -> Int[Tensor, "batch"]:
        """How many tokens there are, in main memory; a GPU is waited for once."""
        return self.seen.sum(1).cpu()


def split(
    input_ids: Int[Tensor, "batch token"],
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    config: PairConfig,
) -> tuple[Text, Text]:
    """Premise and hypothesis of each row `[CLS] premise [SEP] hypothesis [SEP]`.

    A separator stays with the text that it ends, where words without a counterpart can attend to
    it, as to the NULL token of Parikh et al.; so a text without words is not empty. `[CLS]` belongs
    to neither text and is left out.

    Args:
        input_ids: Tokens, padded on any side.
        attention_mask: Where there are tokens; by default wherever there is no padding token.
        token_type_ids: 0 in the premise and 1 in the hypothesis; by default the premise ends at
            the first separator.
        config: Has the numbers of the special tokens.
    """
    seen = input_ids.ne(config.pad_token_id) if attention_mask is None else attention_mask.bool()
    if token_type_ids is None:
        ends = input_ids.eq(config.sep_token_id) & seen
        second = ends.cumsum(-1) > ends.long()
    else:
        second = token_type_ids.bool()
    seen = seen & input_ids.ne(config.cls_token_id)
    return left_aligned(input_ids, seen & ~second), left_aligned(input_ids, seen & second)


def left_aligned(ids: Int[Tensor, "batch token"], chosen: Bool[Tensor, "batch token"]) -> Text:
    """The chosen tokens of each row, in their order, padded on the right as far as needed."""
    lengths = chosen.sum(-1, keepdim=True)
    known = lengths.squeeze(-1).cpu()
    longest = max(1, int(known.max()))
    order = chosen.byte().argsort(dim=-1, descending=True, stable=True)[:, :longest]
    text = Text(ids.gather(-1, order), torch.arange(longest, device=ids.device) < lengths)
    vars(text)["lengths"] = known  # so that nobody waits for the device again
    return text


class TextAttention(nn.Module):
    r"""A mean of one text's vectors for every token of a text: $\mathrm{softmax}(QK^\top + b)V$.

    It has no parameters. Every use is a module of its own, since conversion makes a chain of the
    calls of one module that have one shape, and the lengths of two texts may differ or not.
    """

    def forward(
        self,
        query: Float[Tensor, "batch query dim"],
        key: Float[Tensor, "batch key dim"],
        value: Float[Tensor, "batch key valuedim"],
        queries: Bool[Tensor, "batch query"],
        keys: Bool[Tensor, "batch key"],
        bias: Float[Tensor, "query key"] | None = None,
    ) -> Float[Tensor, "batch query valuedim"]:
        """The means, which are zero where there is no query or no key.

        Args:
            query: One vector for each token that asks.
            key: What it is compared with.
            value: What means are taken of.
            queries: Where there are queries; the others must not count in the divergence.
            keys: Where there are keys.
            bias: Added to the scores.
        """
        mask = (queries.unsqueeze(-1) & keys.unsqueeze(-2)).unsqueeze(1)
        if bias is not None:
            mask = bias.to(query.dtype).masked_fill(~mask, -torch.inf)
        q, k, v = (x.unsqueeze(1) for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0).squeeze(1)


class Side(nn.Module):
    """The attention of one text of a pair: to the other text and, if wanted, to itself.

    Conversion knows by the name `cross_attention` that keys are of another text, also where both
    have one length.
    """

    def __init__(self, within: bool = False) -> None:
        super().__init__()
        self.self_attention = TextAttention() if within else None
        self.cross_attention = TextAttention()
