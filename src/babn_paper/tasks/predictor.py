"""Predictions of a trained model: at the posterior mean, or from samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from babn.attention.noise_source import fold_in
from babn.conversion.state import converted_roots
from babn.prediction.modes import evaluating
from babn.prediction.predict import predict
from babn.prediction.temperature import in_output_units
from babn_paper.tasks.encoded import Batch

Mode = Literal["mean", "sampled", "dropout"]
"""One forward pass at the posterior mean, or samples of attention or of dropout."""

MEMORY = 4.0
"""GPU memory limit for attention in one forward pass, in gigabytes; runs may share a GPU."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A trained model with the settings of prediction.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        mode: Posterior mean, samples of attention, or samples of dropout.
        samples: Number of samples.
        seed: Seed of the samples.
        max_length: Maximum number of tokens of a text.
    """

    model: nn.Module
    tokenizer: Any
    mode: Mode
    samples: int
    seed: int
    max_length: int

    def outputs(
        self, batch: Batch, number: int, output: Callable[[Any], Tensor]
    ) -> Float[Tensor, "sample row *output"]:
        """Computes the outputs for a batch: one sample in mean mode, `samples` otherwise.

        Args:
            batch: The model's arguments.
            number: Index of the batch. Batches have independent noise.
            output: Extracts the tensor of interest from what the model returns.
        """
        if self.mode == "mean":
            with evaluating(self.model):
                found = output(self.model(**batch)).unsqueeze(0)
            return in_output_units(self.model, found) if converted_roots(self.model) else found
        on_gpu = next(self.model.parameters()).device.type == "cuda"
        return predict(
            self.model,
            batch,
            self.samples,
            fold_in(self.seed, number),
            dropout=self.mode == "dropout",
            memory=MEMORY if on_gpu else None,
            output=output,
        ).sample_logits
