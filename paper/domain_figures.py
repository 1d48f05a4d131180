"""Reliability diagrams and risk-coverage curves of runs in two domains.

    python paper/domain_figures.py runs/minilm-domains --out FOLDER [--seeds 0 1 2]

FOLDER gets `TASK_reliability.png` and `TASK_risk.png` for each task, both of the other domain. The
predictions of all seeds are drawn together; the ensemble consists of all softmax models.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from babn import plots
from babn.evaluation.predictions import Evaluation, ensemble
from babn.evaluation.temperature_scaling import fit_temperature
from babn.prediction.result import Prediction
from babn_paper.experiments.run_folder import RunFolder

TASKS = ("nli", "paraphrase", "commonsense")

METHODS = {
    "softmax": ("softmax", "mean"),
    "softmax, MC dropout": ("softmax", "dropout"),
    "softmax, label smoothing": ("softmax+label_smoothing=0.1", "mean"),
    "BAM, k 1.5": ("bam+settings.k=1.5", "sampled"),
    "BABN": ("belief", "sampled"),
    "BABN, rho 1.5": ("belief+settings.rho=1.5", "sampled"),
    "BABN, rho 1.5, dropout": ("belief+settings.rho=1.5", "dropout"),
    "BABN, rho 1.5, label smoothing": ("belief+label_smoothing=0.1+settings.rho=1.5", "sampled"),
}
"""Cells of the grid and their kind of prediction; those that were not run are left out."""

SCALED = "softmax + TS"
"""Temperature-scaled softmax, with the temperature of the training domain."""


def load_predictions(cell: Path, part: str, mode: str, seeds: Sequence[int]) -> list[Evaluation]:
    """Predictions of the models of a cell."""
    runs = [RunFolder(cell / f"seed-{seed}") for seed in seeds]
    folders = [run.predictions / f"{part}-{mode}" for run in runs]
    return [Evaluation.load(folder) for folder in folders if folder.is_dir()]


def together(predictions: Iterable[Prediction]) -> Tensor:
    """Concatenates the probabilities of all seeds."""
    return torch.cat([each.probs for each in predictions])


def methods(runs: Path, task: str, seeds: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
    """Probabilities by method, and the labels, for the other domain of a task."""
    cell = runs / f"{task}-softmax"
    outs, devs = (load_predictions(cell, part, "mean", seeds) for part in ("out", "dev"))
    if not outs:
        return {}, torch.empty(0)
    scaled = [
        out.prediction.tempered(fit_temperature(dev.prediction, dev.labels))
        for out, dev in zip(outs, devs, strict=True)
    ]
    every = [int(run.name.removeprefix("seed-")) for run in sorted(cell.glob("seed-*"))]
    members = load_predictions(cell, "out", "mean", every)
    joint = ensemble([member.prediction for member in members]).probs
    found = {
        SCALED: together(scaled),
        f"ensemble of {len(members)}": joint.repeat(len(outs), 1),
    }
    for name, (settings, mode) in METHODS.items():
        own = load_predictions(runs / f"{task}-{settings}", "out", mode, seeds)
        if len(own) == len(outs):
            found[name] = together(each.prediction for each in own)
    return found, torch.cat([out.labels for out in outs])


def main() -> None:
    """Draws the figures."""
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
            ordered = {name: probs for name, probs in found.items() if name != SCALED}
            plots.save(plots.risk_coverage(ordered, labels), args.out / f"{task}_risk.png")


if __name__ == "__main__":
    main()
