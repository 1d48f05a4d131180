"""Configuration and layers of MCAN (Yu et al. 2019, https://arxiv.org/abs/1906.10770)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedConfig

from babn.errors import ConfigError

ANSWERS = 3129
"""Number of answers of VQA-v2 that occur at least 9 times."""


class McanConfig(PreTrainedConfig):
    """Configuration of MCAN, by default with the sizes of the paper and features from a detector.

    Args:
        vocab_size: Size of the vocabulary.
        embedding_size: Size of a word vector.
        fixed_vectors: Whether word vectors are frozen in training.
        words_found: Number of words whose vectors were read from a file.
        hidden_size: Size of words and regions in all layers.
        num_hidden_layers: Number of layers for the question, and for the image.
        num_attention_heads: Number of attention heads.
        intermediate_size: Inner size of the feed-forward layers.
        fused_size: Size of the fused vector of question and image.
        region_size: Size of the features of an image region.
        stem_channels: Channels of the convolutions that divide raw images into regions, each of
            which halves height and width; empty if the model gets features.
        image_size: Height and width of raw images.
        dropout: Dropout rate of all layers and of attention weights.
        initializer_range: Standard deviation of random word vectors.
        pad_token_id: Id of the padding token.
        problem_type: Answers have independent probabilities, by a sigmoid.
        **kwargs: Further fields of `PreTrainedConfig`.
    """

    model_type = "babn-mcan"

    vocab_size: int = 20_000
    embedding_size: int = 300
    fixed_vectors: bool = False
    words_found: int = 0
    hidden_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    fused_size: int = 1024
    region_size: int = 2048
    stem_channels: list[int] | tuple[int, ...] = ()
    image_size: list[int] | tuple[int, ...] = ()
    dropout: float = 0.1
    initializer_range: float = 1.0
    pad_token_id: int = 0
    problem_type: Any = "multi_label_classification"

    def __post_init__(self, **kwargs: Any) -> None:
        """Validates the fields."""
        if self.id2label is None:
            kwargs.setdefault("num_labels", ANSWERS)
        super().__post_init__(**kwargs)
        self.stem_channels, self.image_size = list(self.stem_channels), list(self.image_size)
        if self.stem_channels:
            self.region_size = self.stem_channels[-1]
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} does not divide "
                f"hidden_size={self.hidden_size}. Give a divisor."
            )
        if bool(self.stem_channels) != bool(self.image_size):
            raise ConfigError(
                f"stem_channels={self.stem_channels} and image_size={self.image_size} must both be "
                "given or both be empty. Give both for raw images, or neither for features."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the regions that the convolutions make of an image."""
        height, width = self.image_size
        for _ in self.stem_channels:
            height, width = -(-height // 2), -(-width // 2)
        return height, width


COLOURS = 5
"""Channels of the input: red, green, blue, and the two coordinates of a pixel."""


@dataclass(frozen=True)
class Sequence:
    """Words of questions, or regions of images.

    Attributes:
        states: One vector for each word or region; arbitrary at padding.
        seen: Mask of the words or regions.
    """

    states: Float[Tensor, "batch place size"]
    seen: Bool[Tensor, "batch place"]


class GridStem(nn.Module):
    """Convolutions that divide raw images into a grid of regions, row by row.

    Each stage halves height and width; the first gets the coordinates of each pixel in addition to
    its colours. The features of a region are standardised, so that noise of a given variance has
    the same effect on every model.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        sizes = [COLOURS, *config.stem_channels]
        # Refining the first feature maps, the largest, would cost more than all other stages.
        self.stages = nn.Sequential(
            *(Halving(i, o, refined=place > 0) for place, (i, o) in enumerate(pairwise(sizes)))
        )

    def forward(
        self, pixels: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch region size"]:
        """Returns the features."""
        found = self.stages(torch.cat([pixels, _coordinates(pixels)], 1))
        features = found.flatten(2).transpose(1, 2)
        return F.layer_norm(features, features.shape[-1:])


class Halving(nn.Module):
    r"""A convolution that halves height and width, with a residual one, $x + \mathrm{ReLU}(Wx)$.

    Batch normalisation and the residual convolution speed up learning from a few thousand
    questions.
    """

    def __init__(self, inputs: int, outputs: int, refined: bool) -> None:
        super().__init__()
        self.halve = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self.refine = nn.Conv2d(outputs, outputs, 3, padding=1) if refined else None

    def forward(
        self, x: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs half_height half_width"]:
        """Returns the feature maps."""
        halved = F.relu(self.norm(self.halve(x)))
        return halved if self.refine is None else halved + F.relu(self.refine(halved))


def _coordinates(pixels: Tensor) -> Float[Tensor, "batch 2 height width"]:
    """Returns the coordinates of each pixel, from -1 to 1."""
    rows, columns = (
        torch.linspace(-1, 1, n, device=pixels.device, dtype=pixels.dtype)
        for n in pixels.shape[-2:]
    )
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(pixels), -1, -1, -1)


class Attention(nn.Module):
    r"""Multi-head attention, $\mathrm{softmax}(QK^\top / \sqrt d)\,V$ in each head."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads, self.rate = config.num_attention_heads, config.dropout
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.output = nn.Linear(size, size)

    def forward(self, queries: Sequence, keys: Sequence) -> Float[Tensor, "batch place size"]:
        """Attends from one sequence to another; padded queries and keys are masked."""
        q = self._headed(self.query(queries.states))
        k, v = (self._headed(map(keys.states)) for map in (self.key, self.value))
        mask = (queries.seen.unsqueeze(-1) & keys.seen.unsqueeze(-2)).unsqueeze(1)
        rate = self.rate if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate)
        return self.output(found.transpose(1, 2).flatten(2))

    def _headed(self, x: Tensor) -> Float[Tensor, "batch head place headsize"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Two layers with ReLU and dropout between them."""

    def __init__(self, inputs: int, inside: int, outputs: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(inputs, inside), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inside, outputs)
        )


class Residual(nn.Module):
    """Adds the output of a sublayer, after dropout, and normalises the sum."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, x: Sequence, output: Tensor) -> Sequence:
        """Returns the sequence with new states."""
        return Sequence(self.norm(x.states + self.dropout(output)), x.seen)


class QuestionLayer(nn.Module):
    """Self-attention (SA): words attend to words."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attention = Attention(config)
        self.feed_forward = FeedForward(size, config.intermediate_size, size, config.dropout)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, words: Sequence) -> Sequence:
        """Returns the words with new states."""
        words = self.residuals[0](words, self.self_attention(words, words))
        return self.residuals[1](words, self.feed_forward(words.states))


class ImageLayer(nn.Module):
    """Self- and guided attention (SGA): regions attend to regions, and then to words."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attention = Attention(config)
        self.cross_attention = Attention(config)
        self.feed_forward = FeedForward(size, config.intermediate_size, size, config.dropout)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(self, regions: Sequence, words: Sequence) -> Sequence:
        """Returns the regions with new states."""
        regions = self.residuals[0](regions, self.self_attention(regions, regions))
        regions = self.residuals[1](regions, self.cross_attention(regions, words))
        return self.residuals[2](regions, self.feed_forward(regions.states))


class Flatten(nn.Module):
    r"""Attention pooling of a sequence, $W \sum_i \mathrm{softmax}_i(\mathrm{MLP}(x_i))\, x_i$."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.scores = FeedForward(size, size, 1, config.dropout)
        self.merge = nn.Linear(size, config.fused_size)

    def forward(self, x: Sequence) -> Float[Tensor, "batch fused"]:
        """Returns one vector for each sequence."""
        return self.merge((self.weights(x).unsqueeze(-1) * x.states).sum(1))

    def weights(self, x: Sequence) -> Float[Tensor, "batch place"]:
        """Returns the weight of each place; 0 at padding."""
        scores = self.scores(x.states).squeeze(-1)
        least = torch.finfo(scores.dtype).min
        return scores.masked_fill(~x.seen, least).softmax(-1).masked_fill(~x.seen, 0.0)
