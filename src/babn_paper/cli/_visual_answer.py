"""Prints a model's answer to a question about an image."""

import math

from rich.console import Console
from rich.table import Table

from babn.cli._terminal import plain_table
from babn_paper.visual.question import VisualAnswer

SIGNS = " .:-=+*#%@"
"""Characters for weights from zero to the largest."""

ALPHA = 0.05


def print_answer(console: Console, answer: VisualAnswer) -> None:
    """Prints the most probable answers, their uncertainty and the attention maps."""
    console.print(answer.question, style="bold", markup=False)
    for note in answer.notes:
        console.print(note, style="yellow", markup=False)
    console.print(_answers(answer))
    console.print(_certainty(answer), markup=False)
    weights = answer.word_weights.mean[0, 0, 0].tolist()
    spread = answer.word_weights.relative_std[0, 0, 0].tolist()
    words = [
        f"{word} {weight:.2f} (±{100 * std:.0f} %)"
        for word, weight, std in zip(answer.words, weights, spread, strict=False)
    ]
    console.print(f"Attention of the regions to the words: {', '.join(words)}", markup=False)
    if isinstance(answer.boxes, tuple):
        console.print("Attention to the regions, darker for larger weights:", markup=False)
        for line in _grid(answer, answer.boxes):
            console.print(f"  {line}", markup=False)


def _answers(answer: VisualAnswer) -> Table:
    rows = [[c.answer, f"{c.probability:.3f}", f"{c.std:.3f}"] for c in answer.candidates]
    return plain_table(["answer", "probability", "std over samples"], rows)


def _certainty(answer: VisualAnswer) -> str:
    if math.isnan(answer.p_value):
        return "One sample does not show the uncertainty of attention."
    sure = "agree" if answer.p_value < ALPHA else "do not agree"
    return (
        f"The samples {sure} on the first answer (p = {answer.p_value:.2g}); mutual information "
        f"{answer.mutual_information:.3f} nats."
    )


def _grid(answer: VisualAnswer, shape: tuple[int, int]) -> list[str]:
    weights = answer.region_map.mean[0, 0, 0, : shape[0] * shape[1]]
    levels = (weights / weights.max() * (len(SIGNS) - 1)).round().long()
    rows = levels.reshape(shape).tolist()
    return ["".join(SIGNS[level] * 2 for level in row) for row in rows]
