"""Reliability diagrams and risk-coverage curves of runs in two domains.

    python benchmarks/domain_figures.py runs/minilm-domains --out FOLDER [--seeds 0 1 2]

FOLDER gets `TASK_reliability.png` and `TASK_risk.png` for each task, both of the other domain. The
answers of all seeds are drawn together; the ensemble is that of all models with softmax.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from babn import plots
from babn.evaluation.answers import Evaluation
from babn.evaluation.calibration import fit_temperature

TASKS = ("nli", "paraphrase", "commonsense")

METHODS = {
    "softmax": ("softmax", "mean"),
    "softmax, MC dropout": ("softmax", "dropout"),
    "softmax, softer targets": ("softmax+label_smoothing=0.1", "mean"),
    "BAM, k 1.5": ("bam+settings.k=1.5", "sampled"),
    "BABN": ("belief", "sampled"),
    "BABN, rho 1.5": ("belief+settings.rho=1.5", "sampled"),
    "BABN, rho 1.5, softer": ("belief+label_smoothing=0.1+settings.rho=1.5", "sampled"),
}
"""Cells of the grid, and how their models are asked; those that were not run are left out."""


def answers(cell: Path, part: str, mode: str, seeds: Sequence[int]) -> list[Evaluation]:
    """What the models of a cell answered."""
    folders = [cell / f"seed-{seed}" / "answers" / f"{part}-{mode}" for seed in seeds]
    return [Evaluation.load(folder) for folder in folders if folder.is_dir()]


def together(found: Sequence[Evaluation]) -> Tensor:
    """Probabilities of all seeds, one after the other."""
    return torch.cat([each.prediction.probs for each in found])


def tempered(cell: Path, seeds: Sequence[int]) -> Tensor:
    """Softmax's answers, each model's divided by the temperature that suits its own domain."""
    found = []
    for out, dev in zip(
        *(answers(cell, part, "mean", seeds) for part in ("out", "dev")), strict=True
    ):
        temperature = fit_temperature(dev.prediction, dev.labels)
        found.append(out.prediction.tempered(temperature).probs)
    return torch.cat(found)


def methods(runs: Path, task: str, seeds: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
    """Probabilities by method, and the right answers, for the other domain of a task."""
    softmax = answers(runs / f"{task}-softmax", "out", "mean", seeds)
    if not softmax:
        return {}, torch.empty(0)
    labels = torch.cat([each.labels for each in softmax])
    found: dict[str, Tensor] = {}
    for name, (cell, mode) in METHODS.items():
        own = answers(runs / f"{task}-{cell}", "out", mode, seeds)
        if len(own) == len(softmax):
            found[name] = together(own)
        if name == "softmax":
            found["softmax + TS"] = tempered(runs / f"{task}-softmax", seeds)
            members = answers(runs / f"{task}-softmax", "out", "mean", range(100))
            joint = torch.stack([each.prediction.probs for each in members]).mean(0)
            found[f"ensemble of {len(members)}"] = joint.repeat(len(softmax), 1)
    return found, labels


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        found, labels = methods(args.runs, task, args.seeds)
        if found:
            diagram = plots.reliability_diagram(found, labels)
            plots.save(diagram, args.out / f"{task}_reliability.png")
            ordered = {name: probs for name, probs in found.items() if name != "softmax + TS"}
            plots.save(plots.risk_coverage(ordered, labels), args.out / f"{task}_risk.png")


if __name__ == "__main__":
    main()
