r"""The evidence lower bound, the objective that converted models are trained with.

For an example $x$ with target $y$ and unnormalised attention weights $S = (S_1, \dots, S_L)$ of $L$
layers, training minimises

$$-\mathrm{ELBO}_w = -\log p(y \mid x, S) + w \sum_{l=1}^L
\mathrm{KL}\big(q(S_l \mid x, S_{<l}) \,\|\, p(S_l \mid x, S_{<l})\big), \qquad S \sim q$$

(Zhang et al. 2021, <https://arxiv.org/abs/2106.05251>, with $w = 1$ after annealing). The KL of
Weibull from gamma variables is analytic (`babn.distributions`); one sample per forward pass
estimates the expectation over $S$. This module defines how the KL is used:

- **reduction** (`reduce_kl`): over the variables of a layer, `"sum"` per example, which is the true
  bound for $w = 1$, or `"mean"`, which makes $w$ independent of the length;
- **unit** (`nll_factor`, `rows_per_example`): with `"sum"` all terms are those of one example, the
  unit that has one target: a text, a pair of texts, a question with its choices, a window of a
  text with its answer span, a source with its whole translation. Losses that models average over
  other units are converted to the NLL of an example before the KL is added:

  | loss of the model | NLL of an example |
  |---|---|
  | cross-entropy of a class, or of one of several choices | the loss |
  | cross-entropy of tokens, averaged over tokens | the loss times target tokens per example |
  | cross-entropies of start and end of a span, averaged | 2 times the loss |
  | squared error of $d$ numbers, averaged | $d/2$ times the loss: unit variance, no constant |
  | binary cross-entropy of $d$ labels, averaged | $d$ times the loss |

  With `"mean"` losses stay as they are: the weight is free, and so is the unit;
- **weight** $w$ (`set_kl_weight`): `kl_weight` of the configuration;
- **annealing** (`KLAnnealing`): how $w$ grows over training;
- **loss** (`add_to_loss`): a converted model adds $w$ times the sum over layers to its loss in
  training; `weighted_kl` is the same term for hand-written losses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from babn.conversion.state import belief_states
from babn.errors import ConfigError, NoKLError
from babn.validation import check_at_least, check_choices, check_share

IGNORED = -100
"""Marks labels that do not count, as in torch's cross-entropy."""

Counted = Callable[[Tensor | int], Tensor]
"""Turns the count of one process into the divisor of all, as `babn.across_processes` does."""

_AXES = (-4, -3, -2, -1)


def reduce_kl(
    kl: Float[Tensor, "*layer batch head #query key"],
    mask: Bool[Tensor, "*layer #batch #head #query #key"] | None,
    reduction: Literal["mean", "sum"],
    counted: Counted | None = None,
) -> Float[Tensor, "*layer"]:
    """Reduces the KL of a layer's variables to one number.

    Args:
        kl: The KL of each variable, of one layer or of several along a first axis.
        mask: The variables that count; by default all.
        reduction: `"mean"` over the variables, or `"sum"` over those of an example, averaged over
            the batch.
        counted: Maps the number of variables or examples to the divisor.

    Example:
        >>> kl = torch.tensor([[[[1.0, 3.0]]], [[[5.0, 7.0]]]])
        >>> reduce_kl(kl, None, "mean"), reduce_kl(kl, None, "sum")
        (tensor(4.), tensor(8.))
    """
    if mask is not None:
        kl = kl.masked_fill(~mask, 0.0)
    return _divide(kl.sum(_AXES), mask, kl.shape[-4:], reduction, counted)


def reduce_kl_rows(
    kl_rows: Float[Tensor, "*layer batch head query"],
    rows: Bool[Tensor, "*layer #batch #head query"] | None,
    mask: Bool[Tensor, "*layer #batch #head #query key"] | None,
    pairs: tuple[int, int, int, int],
    reduction: Literal["mean", "sum"],
    counted: Counted | None = None,
) -> Float[Tensor, "*layer"]:
    """Reduces the KL of query-key pairs of shape `pairs` that a kernel has summed over keys.

    The result is that of `reduce_kl` with the mask `mask & rows[..., None]`, for one layer or for
    several along a first axis.
    """
    if rows is not None:
        kl_rows = kl_rows.masked_fill(~rows, 0.0)
        mask = rows.unsqueeze(-1) if mask is None else mask & rows.unsqueeze(-1)
    return _divide(kl_rows.sum(_AXES[1:]), mask, pairs, reduction, counted)


def _divide(
    total: Tensor,
    mask: Tensor | None,
    shape: Sequence[int],
    reduction: Literal["mean", "sum"],
    counted: Counted | None,
) -> Tensor:
    """Divides a sum by its examples, or by its variables that count; zero for an empty batch."""
    count: Tensor | int = shape[0] if reduction == "sum" else math.prod(shape)
    if reduction == "mean" and mask is not None:
        copies = count // max(math.prod(mask.shape[-4:]), 1)  # along the axes that broadcast
        count = mask.sum(_AXES) * copies
    if counted is not None:
        return total / counted(count)
    return total / (count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1))


def nll_factor(
    model: nn.Module, inputs: Mapping[str, Any], reduction: Literal["mean", "sum"]
) -> Tensor | float:
    """The factor that makes a model's loss the mean negative log-likelihood of an example.

    Inferred from the targets and the model's configuration, as transformers infers the loss. A
    model whose loss is already that of an example has an attribute `loss_per_example = True`.

    Args:
        model: The model.
        inputs: Its keyword arguments, targets included.
        reduction: The reduction of the KL; with `"mean"` the loss stays as it is.

    Example:
        >>> inputs = {"labels": torch.tensor([[1, 2, 3], [4, -100, -100]])}
        >>> nll_factor(nn.Identity(), inputs, "sum")
        tensor(2.)
    """
    if reduction == "mean" or getattr(model, "loss_per_example", False):
        return 1.0
    if inputs.get("start_positions") is not None:
        return 2.0
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor) or labels.ndim == 0 or len(labels) == 0:
        return 1.0
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if labels.is_floating_point() or kind == "regression":
        size = labels[0].numel()
        return size / 2 if size == 1 or kind == "regression" else float(size)
    if labels.ndim == 1 or "CTC" in type(model).__name__:
        return 1.0
    counted = labels[:, 1:] if _predicts_next_token(model) else labels
    return (counted != IGNORED).sum() / len(labels)


def _predicts_next_token(model: nn.Module) -> bool:
    """Whether the model's loss compares each token with the next label."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    kind = getattr(model, "loss_type", None)
    causal = ("ForCausalLM", "ForConditionalGeneration")
    return kind in causal or (kind is None and "LMHead" in type(model).__name__)


def rows_per_example(inputs: Mapping[str, Any]) -> int:
    """Number of texts of an example: the choices of multiple-choice inputs, else 1."""
    ids = inputs.get("input_ids", inputs.get("inputs_embeds"))
    choices = isinstance(ids, Tensor) and ids.ndim == (3 if "input_ids" in inputs else 4)
    return int(ids.shape[1]) if isinstance(ids, Tensor) and choices else 1


def add_to_loss(output: Any, term: Float[Tensor, ""], factor: Tensor | float = 1.0) -> Any:
    """Adds a term to the loss of a model's output; an output without a loss stays as it is.

    Args:
        output: The output.
        term: The term to add.
        factor: Factor of the loss, applied first.
    """
    if isinstance(output, dict):
        if isinstance(output.get("loss"), Tensor):
            output["loss"] = output["loss"] * factor + term
    elif isinstance(output, tuple) and not hasattr(output, "_fields"):
        if output and isinstance(output[0], Tensor) and output[0].ndim == 0:
            return (output[0] * factor + term, *output[1:])
    elif isinstance(getattr(output, "loss", None), Tensor):
        output.loss = output.loss * factor + term
    return output


def set_kl_weight(model: nn.Module, weight: float) -> None:
    """Sets the weight of the KL in the training loss.

    The weight is a buffer, so that changing it does not recompile a compiled model.
    """
    check_at_least("weight", weight, 0.0)
    for state in belief_states(model):
        state.kl_weight.fill_(weight)


def get_kl_weight(model: nn.Module) -> float:
    """The weight of the KL in the training loss."""
    return float(belief_states(model)[0].kl_weight)


def kl_per_layer(source: Any) -> dict[str, Float[Tensor, ""]]:
    """Returns the KL of each attention call, by chain and step; empty without a prior.

    Args:
        source: A model's output, or a converted model for its last forward pass.

    Raises:
        NoKLError: The pass computed no KL, as in evaluation mode without gradients.
    """
    if not isinstance(source, nn.Module):
        if not hasattr(source, "belief_kl_per_layer"):
            raise NoKLError(
                f"This {type(source).__name__} carries no KL: its model is not converted, its "
                "method has no prior, or it ran in evaluation mode without gradients, where "
                "babn.recording_kl(model) makes it compute one. If a wrapper rebuilt the output, "
                "pass the model."
            )
        return source.belief_kl_per_layer
    layers: dict[str, Tensor] = {}
    for state in belief_states(source):
        if state.last_kl is None:
            raise NoKLError(
                f"The last pass of {type(source).__name__} computed no KL: there was no pass yet, "
                "or it ran in evaluation mode without gradients. Run the pass inside "
                "babn.recording_kl(model)."
            )
        layers |= state.last_kl
    return layers


def belief_kl(model: nn.Module) -> Float[Tensor, ""]:
    """Returns the KL of a converted model's last forward pass, summed over layers, with gradients.

    Zero if the method has no prior; `NoKLError` if the pass computed none, as in `kl_per_layer`.
    """
    values = list(kl_per_layer(model).values())
    return torch.stack(values).sum() if values else torch.zeros(())


def weighted_kl(model: nn.Module) -> Float[Tensor, ""]:
    """Returns the weighted KL of the last forward pass, to add to a hand-written loss.

    With `kl_reduction="sum"` it is the KL of an example, to be added to the mean NLL of an example.
    """
    return belief_states(model)[0].kl_weight * belief_kl(model)


@dataclass(frozen=True, kw_only=True)
class KLAnnealing:
    """Schedule of the KL's weight over training.

    Attributes:
        schedule: `"constant"`, or `"linear"` or `"sigmoid"` from `start` to `weight`.
        weight: The final weight; by default `kl_weight` of the model's
            configuration.
        start: The initial weight.
        warmup: Fraction of training over which the weight grows.

    Example:
        >>> KLAnnealing(weight=1.0, warmup=0.5).at(step=25, total=100)
        0.5
    """

    schedule: Literal["constant", "linear", "sigmoid"] = "linear"
    weight: float | None = None
    start: float = 0.0
    warmup: float = 0.5

    def __post_init__(self) -> None:
        """Validates the fields."""
        check_choices(self)
        if self.weight is not None:
            check_at_least("weight", self.weight, 0.0)
        check_at_least("start", self.start, 0.0)
        check_share("warmup", self.warmup, up_to_one=True)

    def at(self, step: int, total: int) -> float:
        """The weight at a step of `total` steps."""
        if self.weight is None:
            raise ConfigError(
                "weight=None is that of a model. Give a number, or call apply(model)."
            )
        total = max(total, 1)
        step = min(max(step, 0), total)
        growth = min(step / total / self.warmup, 1.0)
        if self.schedule == "constant":
            growth = 1.0
        elif self.schedule == "sigmoid":
            growth = 0.5 + 0.5 * math.tanh(6 * growth - 3) / math.tanh(3)
        return self.start + (self.weight - self.start) * growth

    def apply(self, model: nn.Module, step: int, total: int) -> float:
        """Sets the model's weight for a step, and returns it."""
        weight = belief_states(model)[0].config.kl_weight if self.weight is None else self.weight
        now = replace(self, weight=weight).at(step, total)
        set_kl_weight(model, now)
        return now
