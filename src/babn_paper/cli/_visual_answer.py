"""What a model makes of a question about an image, in the terminal."""

import math

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn_paper.visual.question import Look

SIGNS = " .:-=+*#%@"
"""Signs for weights from none to the largest."""

ALPHA = 0.05


def show(console: Console, look: Look) -> None:
    """Answers, how sure they are, and where the model looked."""
    console.print(look.question, style="bold", markup=False)
    for note in look.notes:
        console.print(note, style="yellow", markup=False)
    console.print(_answers(look))
    console.print(_certainty(look), markup=False)
    weights = look.word_weights.mean[0, 0, 0].tolist()
    spread = look.word_weights.relative_std[0, 0, 0].tolist()
    words = [
        f"{word} {weight:.2f} (±{100 * std:.0f} %)"
        for word, weight, std in zip(look.words, weights, spread, strict=False)
    ]
    console.print(f"Words that regions looked at: {', '.join(words)}", markup=False)
    if isinstance(look.boxes, tuple):
        console.print("Regions that it looked at, the more the darker:", markup=False)
        for line in _grid(look, look.boxes):
            console.print(f"  {line}", markup=False)


def _answers(look: Look) -> Table:
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("answer", no_wrap=True)
    made.add_column("probability", justify="right")
    made.add_column("std over samples", justify="right")
    for each in look.answers:
        made.add_row(each.answer, f"{each.probability:.3f}", f"{each.std:.3f}")
    return made


def _certainty(look: Look) -> str:
    if math.isnan(look.p_value):
        return "One sample says nothing about uncertainty of attention."
    sure = "agree" if look.p_value < ALPHA else "do not agree"
    return (
        f"The samples {sure} on the first answer (p = {look.p_value:.2g}); mutual information "
        f"{look.information:.3f} nats."
    )


def _grid(look: Look, shape: tuple[int, int]) -> list[str]:
    weights = look.region_map.mean[0, 0, 0, : shape[0] * shape[1]]
    levels = (weights / weights.max() * (len(SIGNS) - 1)).round().long()
    rows = levels.reshape(shape).tolist()
    return ["".join(SIGNS[level] * 2 for level in row) for row in rows]
