"""Training and checking approximate posteriors of the one-layer attention model."""

import torch
from jaxtyping import Float
from torch import Tensor

from babn.validation import check_count
from babn_paper.maximise import maximise
from babn_paper.simulation.attention_encoders import AttentionPosterior, bound_terms
from babn_paper.simulation.attention_model import AttentionModel


def train(
    posterior: AttentionPosterior,
    seen: Float[Tensor, "observation valuedim"] | None = None,
    steps: int = 2000,
    batch_size: int = 256,
    draws: int = 2,
    rate: float = 0.01,
    seed: int = 0,
) -> list[float]:
    """Maximises the evidence bound with Adam and a cosine schedule of the learning rate.

    Args:
        posterior: The posterior, trained in place.
        seen: Observations used in every step; by default new ones are simulated at every step.
        steps: Number of optimizer steps.
        batch_size: Simulated observations per step.
        draws: Draws per observation.
        rate: Initial learning rate.
        seed: Seed of data and noise; the global random state is restored.

    Returns:
        The mean bound at every step.
    """
    for name, value in {"batch_size": batch_size, "draws": draws}.items():
        check_count(name, value)
    model, count = posterior.model, batch_size if seen is None else len(seen)

    def bound() -> Tensor:
        batch = model.observe(model.draw_weights(batch_size)) if seen is None else seen
        fit, kl = bound_terms(posterior, batch, draws)
        return (fit - kl).mean()

    return maximise(
        bound,
        [p for p in posterior.parameters() if p.requires_grad],
        steps=steps,
        rate=rate,
        seed=seed,
        # A sum over observations, so that the step size of free parameters does not depend on their
        # number.
        weight=1 if seen is None else count,
        largest=10.0 * count**0.5,
    )


def gradient_variance(
    posterior: AttentionPosterior,
    seen: Float[Tensor, "observation valuedim"],
    analytic: bool,
    repeats: int = 200,
) -> tuple[float, float]:
    """Returns the squared norm of the bound's mean gradient, and the total variance of a gradient.

    Args:
        posterior: The approximate posterior.
        seen: Observations over which the bound is averaged.
        analytic: Whether the KL is computed exactly or estimated from the draw.
        repeats: Number of gradients, of one draw each, from which the variance is estimated.
    """
    check_count("repeats", repeats)
    trained = [p for p in posterior.parameters() if p.requires_grad]
    rows = []
    for _ in range(repeats):
        fit, kl = bound_terms(posterior, seen, 1, analytic)
        parts = torch.autograd.grad((fit - kl).mean(), trained, allow_unused=True)
        rows.append(torch.cat([part.flatten() for part in parts if part is not None]))
    gradients = torch.stack(rows)
    return gradients.mean(0).square().sum().item(), gradients.var(0).sum().item()


def exact_attention(
    model: AttentionModel,
    seen: Float[Tensor, "observation valuedim"],
    draws: int,
    proposals: int = 20_000,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "draw observation key"]:
    """Draws weights from the exact posterior by importance resampling of prior draws.

    The number of proposals must be large enough for many of them to have a high likelihood.
    """
    found: list[Tensor] = []
    for each in seen:
        weights = model.draw_weights(proposals, generator)
        share = torch.softmax(model.log_likelihood(weights, each), 0)
        chosen = torch.multinomial(share, draws, replacement=True, generator=generator)
        found.append(weights[chosen])
    return torch.stack(found, 1)
