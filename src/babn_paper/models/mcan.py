"""MCAN, deep modular co-attention for visual questions.

Yu et al. 2019 (https://arxiv.org/abs/1906.10770), in the encoder-decoder form: every layer of the
image attends to the last layer of the question.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from babn.errors import ConfigError
from babn_paper.models.mcan_parts import (
    Flatten,
    GridStem,
    ImageLayer,
    McanConfig,
    QuestionLayer,
    Sequence,
)
from babn_paper.models.pairs import WordEmbedding, WordModel
from babn_paper.models.texts import full_precision


class Mcan(nn.Module):
    r"""Computes one vector of a question and an image.

    An LSTM reads the question; $L$ layers of self-attention follow for its words $y$, then $L$
    layers of self- and guided attention for the image's regions $x$. Both are flattened to vectors
    $\tilde y, \tilde x$ and fused to $\mathrm{LayerNorm}(\tilde x + \tilde y)$.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.embedding = WordEmbedding(config)
        self.reader = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True)
        self.stem = GridStem(config) if config.stem_channels else None
        self.projection = nn.Linear(config.region_size, config.hidden_size)
        self.question = nn.ModuleList(QuestionLayer(config) for _ in layers)
        self.image = nn.ModuleList(ImageLayer(config) for _ in layers)
        self.flatten_question, self.flatten_image = Flatten(config), Flatten(config)
        self.norm = nn.LayerNorm(config.fused_size)

    def forward(self, ids: Tensor, seen: Tensor, regions: Sequence) -> Float[Tensor, "batch fused"]:
        """Returns the fused vectors.

        Args:
            ids: Words, padded on the right.
            seen: Mask of the words.
            regions: Features of the images.
        """
        vectors = self.embedding(ids)
        with full_precision(vectors.device):
            words = Sequence(self.reader(vectors.to(self.reader.weight_ih_l0.dtype))[0], seen)
        for question_layer in self.question:
            words = question_layer(words)
        places = Sequence(self.projection(regions.states), regions.seen)
        for image_layer in self.image:
            places = image_layer(places, words)
        return self.norm(self.flatten_image(places) + self.flatten_question(words))


class McanForQuestionAnswering(WordModel):
    """MCAN that predicts an independent probability for each answer of a fixed list."""

    config_class = McanConfig
    config: McanConfig
    loss_per_example = True

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config)
        self.network = Mcan(config)
        self.classifier = nn.Linear(config.fused_size, int(config.num_labels or 1))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialises weights to preserve the scale of signals, and all answers as improbable."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, nn.LSTM | nn.BatchNorm2d | nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if module is self.classifier:
            nn.init.constant_(module.bias, -math.log(max(module.out_features - 1, 1)))

    def forward(
        self,
        input_ids: Int[Tensor, "batch word"],
        attention_mask: Tensor | None = None,
        regions: Float[Tensor, "batch region feature"] | None = None,
        region_mask: Tensor | None = None,
        pixel_values: Float[Tensor, "batch 3 height width"] | None = None,
        feature_noise: Float[Tensor, "batch most feature"] | None = None,
        labels: Float[Tensor, "batch answer"] | None = None,
    ) -> SequenceClassifierOutput:
        """Returns a logit for each answer, and the loss if labels are given.

        Args:
            input_ids: Words of the questions, padded on the right.
            attention_mask: Mask of the words; by default all but padding tokens.
            regions: Features of the images' regions, for a model without convolutions.
            region_mask: Mask of the regions; by default all.
            pixel_values: Raw images, for a model with convolutions.
            feature_noise: Added to the features of regions, given or computed by convolutions
                (these are standardised). May have more regions than the images.
            labels: Score of each answer, from 0 to 1.
        """
        features = self._features(regions, pixel_values)
        if feature_noise is not None:
            features = features + feature_noise[:, : features.shape[1]]
        if attention_mask is None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if region_mask is None:
            region_mask = torch.ones(features.shape[:2], device=features.device)
        image = Sequence(features, region_mask.bool())
        logits = self.classifier(self.network(input_ids, attention_mask.bool(), image))
        loss: Any = None if labels is None else _loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _features(self, regions: Tensor | None, pixels: Tensor | None) -> Tensor:
        stem = self.network.stem
        given, other = (regions, "pixel_values") if stem is None else (pixels, "regions")
        if given is None:
            wanted = "pixel_values" if other == "regions" else "regions"
            raise ConfigError(f"{wanted}=None, which this model needs instead of {other}. Give it.")
        return given if stem is None else stem(given)


def _loss(logits: Tensor, labels: Tensor) -> Float[Tensor, ""]:
    """Negative log-likelihood of an example: the sum over independent answers."""
    each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
    return each.sum(-1).mean()
