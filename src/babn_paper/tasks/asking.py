"""How a trained model is asked: at the posterior mean, or by samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from babn.prediction.modes import evaluating
from babn.prediction.predict import predict
from babn_paper.tasks.encoded import Batch

Mode = Literal["mean", "sampled", "dropout"]
"""Once at the posterior mean, or by samples of attention or of dropout."""

MEMORY = 4.0
"""Gigabytes of a GPU that attention may take in one pass, since other runs may be beside this."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A trained model, and how to ask it.

    Attributes:
        model: The model.
        tokenizer: The tokenizer that goes with it.
        mode: At the posterior mean, or by samples.
        samples: How many of them.
        seed: Decides their noise.
        max_length: The most tokens of a text.
    """

    model: nn.Module
    tokenizer: Any
    mode: Mode
    samples: int
    seed: int
    max_length: int


def ask_once(
    asking: Asking, batch: Batch, number: int, output: Callable[[Any], Tensor]
) -> Float[Tensor, "sample row *output"]:
    """What a model says of a batch in one forward pass, or in one for each sample.

    Args:
        asking: The model, and how to ask it.
        batch: Its arguments.
        number: Of the batch.
        output: Takes the answers from what the model returns.
    """
    if asking.mode == "mean":
        with evaluating(asking.model):
            return output(asking.model(**batch)).unsqueeze(0)
    # Every batch has noise of its own: examples in different ones are independent.
    seed = asking.seed * 1_000_003 + number
    on_gpu = next(asking.model.parameters()).device.type == "cuda"
    found = predict(
        asking.model,
        batch,
        asking.samples,
        seed,
        recenter=False,
        dropout=asking.mode == "dropout",
        memory=MEMORY if on_gpu else None,
        output=output,
    )
    return found.sample_logits
