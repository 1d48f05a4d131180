"""`babn bench`."""

from pathlib import Path
from typing import Annotated


def bench(
    *,
    out: Annotated[Path, "FILE"] = Path("babn-bench.json"),
    quick: bool = False,
    routes: bool = False,
) -> None:
    """Measure what stochastic attention costs in time and memory, beside softmax in the same run.

    Uses random weights in the shape of ALBERT-base: on a GPU compiled models in bfloat16 for 128,
    512 and 2048 tokens (several minutes), on a CPU fewer layers and shorter texts in float32.
    Compare the ratios: absolute times depend on what else the machine does.

    Args:
        out: JSON file to write the numbers to; until all are measured, its name has .partial added.
        quick: Measure one tiny size once, only to see that everything runs.
        routes: Measure training with cheaper upward paths instead: low rank, shared by layers.
    """
    import json
    from dataclasses import replace

    import torch
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from babn.benchmark import results, suite
    from babn.benchmark.steps import Size
    from babn.cli.version import versions
    from babn.files import replace_text

    _check_place(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = suite.GPU if device.type == "cuda" else suite.CPU
    if quick:
        plan = suite.Plan(((Size(16, 2, layers=2, width=32, heads=2), "eager"),), repeats=1)
    plan = replace(plan, routes=routes)
    console = Console(highlight=False)
    console.print(f"Measuring on {versions()['device']} with torch {torch.__version__}.")
    rows = []
    partial = out.with_name(f"{out.name}.partial")
    with console.status("") as status:
        for row in suite.run(plan, device, status.update):
            rows.append(row)
            replace_text(partial, json.dumps(results.plain(rows, versions()), indent=1))
    partial.replace(out)
    for task, title in results.TITLES.items():
        columns, lines = results.shown(rows, task)
        if not lines:
            continue
        printed = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in columns:
            longest = max(len(word) for word in name.split())
            printed.add_column(name, no_wrap=name == "rule", min_width=longest)
        for line in lines:
            printed.add_row(*line)
        console.print(printed)
    console.print("Each method in its faster form.")
    console.print(f"All numbers: {out}")


def _check_place(out: Path) -> None:
    """Validates, before anything is measured, that results can be written to a file."""
    from babn.errors import BabnError
    from babn.files import parse_json

    if out.is_dir():
        raise BabnError(f"--out {out} is a folder: name a file, such as {out / 'babn-bench.json'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        return
    try:
        found = parse_json(out.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"versions", "rows"} <= found.keys():
        raise BabnError(f"--out {out} exists, and was not written by babn bench: name another file")
