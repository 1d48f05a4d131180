"""`babn vqa-demo`."""

from pathlib import Path


def vqa_demo(
    *, out: Path = Path("babn-demo-vqa"), seed: int = 0, quick: bool = False, force: bool = False
) -> None:
    """Train two small models to answer questions about images, and test them on noisy images.

    Args:
        out: Folder for the page and the runs.
        seed: Seed of training and samples.
        quick: Train for a few seconds only, as a smoke test.
        force: Write into the folder even if it holds other files.
    """
    from babn.cli._terminal import Bars, plain_table
    from babn.cli.version import versions
    from babn_paper.cli._terminal import make_console, print_answer
    from babn_paper.visual.visual_demo import (
        COLUMNS,
        PAGE,
        finding,
        prepare,
        run_visual,
        table_rows,
        write,
    )

    console = make_console()
    prepare(out, force)
    console.print("Two small models learn to answer questions about images of shapes: one with")
    console.print("softmax attention, one with BABN. Then both are tested on noisy images.\n")
    with Bars(console) as bars:
        outcome = run_visual(out / "runs", seed, quick, bars)
    write(out, outcome, versions())
    console.print("Percentages, without noise on image features and with noise of variance 5:\n")
    columns = ["attention", "noise", *COLUMNS.values()]
    console.print(plain_table(columns, table_rows(outcome), texts=2))
    console.print(f"\n{finding(outcome)}\n")
    print_answer(console, outcome.answers[0][1])
    console.print(f"\nPage with figures: {out / PAGE}")
    console.print(f"Next: babn vqa {out / 'runs' / 'belief'} --example 3 --out answer.png")
