"""`babn vqa-demo`."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from babn.cli._progress import Bars
from babn.cli.version import versions
from babn_paper.cli._visual_answer import show
from babn_paper.visual.visual_demo import run_visual
from babn_paper.visual.visual_demo_page import COLUMNS, PAGE, finding, prepare, table_rows, write


def vqa_demo(
    *,
    out: Path = Path("babn-demo-vqa"),
    seed: int = 0,
    quick: bool = False,
    force: bool = False,
) -> None:
    """Train two networks to answer questions about images, and see what noisy images do.

    Args:
        out: Folder to write the page and the runs to.
        seed: Another number gives another training run.
        quick: Train for a few seconds, only to see that everything runs.
        force: Write into the folder even if it holds other files.
    """
    console = Console(highlight=False)
    prepare(out, force)
    console.print("Two small networks learn to answer questions about images of shapes:")
    console.print("one with softmax attention, one with BABN. Then they meet noisy images.\n")
    with Bars(console) as bars:
        outcome = run_visual(out / "runs", seed, quick, bars)
    write(out, outcome, versions())
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("attention", "noise"):
        made.add_column(name, no_wrap=True)
    for name in COLUMNS.values():
        made.add_column(name, justify="right")
    for row in table_rows(outcome):
        made.add_row(*row)
    console.print("Percentages, without noise on image features and with variance 5:\n")
    console.print(made)
    console.print(f"\n{finding(outcome)}\n", markup=False)
    show(console, outcome.looks[0][1])
    console.print(f"\nPage with pictures: {out / PAGE}", markup=False, soft_wrap=True)
    console.print(
        f"Next: babn vqa {out / 'runs' / 'belief'} --example 3 --out look.png",
        markup=False,
        soft_wrap=True,
    )
