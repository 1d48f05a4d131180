"""Compares the attention posterior with exact integration, on simulated data.

    python paper/posterior_checks.py [--seeds 0 1 2] [--steps 1500] [--out FILE]

One attention layer over a few keys with its own gamma prior as the known prior, and noisy
observations of the attended value. Trains babn's layer on the evidence bound and measures the gap
to the evidence, the coverage of credible intervals for attention weights, and the variance of
gradients with the analytic and with the estimated KL. Writes the numbers and a figure.
"""

import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from seeded_checks import parser_for, run

import babn
from babn_paper.plots.posteriors import posterior_checks
from babn_paper.simulation.attention_model import AttentionModel
from babn_paper.simulation.attention_posteriors import (
    AttentionPosterior,
    BeliefPosterior,
    FreePosterior,
    bound_terms,
    draw_attention,
    exact_attention,
    gradient_variance,
    train,
)
from babn_paper.simulation.draws import coverage

KEYS, DIM, VALUE_DIM, DEVIATION = 3, 4, 2, 0.3
HELD_OUT, DRAWS = 500, 2000
PLAIN = babn.BeliefConfig.pairs(
    rho=1.0,
    sigma=1.0,
    scores="raw",
    max_length=KEYS,
    noise="exact",
    kl_reduction="sum",
    kl_weight=1.0,
)
SETTINGS = {
    "belief": PLAIN,
    "normalised scores": replace(PLAIN, scores="normalized"),
    "no upward path": replace(PLAIN, rho=0.0, sigma=0.0),
    "truncated noise": replace(PLAIN, noise="truncated"),
}
"""Settings of the layer by name. The KL of the bound does not assume truncated noise."""


def make(config: babn.BeliefConfig, seed: int) -> BeliefPosterior:
    """The layer; keys, values and prior depend on the seed alone."""
    torch.manual_seed(seed)
    keys = 2 * torch.randn(KEYS, DIM)
    values = torch.randn(KEYS, VALUE_DIM)
    posterior = BeliefPosterior(config, keys, values, DEVIATION)
    prior = torch.Generator().manual_seed(seed)
    for parameter in posterior.attention.rule.get_submodule("prior_nets").parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=prior)
    return posterior


def judge(posterior: AttentionPosterior, seen: torch.Tensor, truth: torch.Tensor) -> dict[str, Any]:
    """Bound and coverage on held-out observations."""
    with torch.no_grad():
        fit, kl = bound_terms(posterior, seen, 500)
    evidence = posterior.model.log_evidence(seen)
    bound = (fit - kl).mean(0)
    return {
        "elbo": bound.mean().item(),
        "evidence": evidence.mean().item(),
        "gap": (evidence - bound).mean().item(),
        "coverage": coverage(draw_attention(posterior, seen, DRAWS), truth),
    }


def gradients(posterior: BeliefPosterior, seen: torch.Tensor, stage: str) -> dict[str, Any]:
    """Variances with both forms of the KL."""
    found = {"stage": stage}
    for name, analytic in {"analytic": True, "monte_carlo": False}.items():
        mean, variance = gradient_variance(posterior, seen[:64], analytic)
        found[name] = {"mean_squared": mean, "variance": variance}
    return found


def check(seed: int, steps: int) -> list[dict[str, Any]]:
    """One record for each posterior."""
    generator = torch.Generator().manual_seed(seed)
    model: AttentionModel = make(PLAIN, seed).model
    truth = model.draw_weights(HELD_OUT, generator)
    seen = model.observe(truth, generator)
    exact = exact_attention(model, seen, DRAWS, generator=generator)
    evidence = model.log_evidence(seen).mean().item()
    base: dict[str, Any] = {"seed": seed, "prior": model.log_alpha.exp().tolist()}
    found = {"evidence": evidence, "elbo": evidence, "gap": 0.0, "coverage": coverage(exact, truth)}
    records = [{**base, "posterior": "exact", **found}]
    free = FreePosterior(model, HELD_OUT)
    train(free, seen, steps, draws=8, rate=0.03, seed=seed)
    records.append({**base, "posterior": "free Weibull", **judge(free, seen, truth)})
    for name, config in SETTINGS.items():
        posterior = make(config, seed)
        variances = [gradients(posterior, seen, "start")] if name == "belief" else []
        train(posterior, None, steps, seed=seed)
        if variances:
            variances.append(gradients(posterior, seen, "trained"))
        found = judge(posterior, seen, truth)
        records.append({**base, "posterior": name, **found, "gradients": variances})
    return records


def table(records: list[dict[str, Any]]) -> list[str]:
    """Means over seeds."""
    levels = list(records[0]["coverage"])
    lines = [f"{'posterior':<20}{'gap':>10}" + "".join(f"{'cover ' + x:>12}" for x in levels)]
    for name in dict.fromkeys(record["posterior"] for record in records):
        group = [record for record in records if record["posterior"] == name]
        gap = statistics.fmean(record["gap"] for record in group)
        shares = [statistics.fmean(r["coverage"][x][0] for r in group) for x in levels]
        lines.append(f"{name:<20}{gap:>10.3f}" + "".join(f"{x:>12.3f}" for x in shares))
    for each in (g for record in records for g in record.get("gradients", [])):
        ratio = each["monte_carlo"]["variance"] / each["analytic"]["variance"]
        lines.append(f"{each['stage']}: variance, Monte Carlo over analytic, {ratio:.3f}")
    return lines


def main() -> None:
    """Checks with every seed."""
    parser = parser_for(__file__, __doc__.splitlines()[0], seeds=[0, 1, 2], steps=1500)
    args = parser.parse_args()
    cases = [(f"seed {seed}", partial(check, seed, args.steps)) for seed in args.seeds]
    settings = {
        "keys": KEYS,
        "deviation": DEVIATION,
        "held_out": HELD_OUT,
        "draws": DRAWS,
        "methods": {name: config.to_dict() for name, config in SETTINGS.items()},
    }
    run(args, cases, settings, posterior_checks, table)


if __name__ == "__main__":
    main()
