"""`babn attack`."""

from pathlib import Path
from typing import Any


def attack(
    runs: list[Path],
    *,
    recipe: str,
    examples: int = 1000,
    threat: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    part: str = "dev",
    data: str | None = None,
    resources: str | None = None,
    overwrite: bool = False,
    jobs: int = 1,
    out: Path = Path("runs/attacks"),
) -> None:
    """Attack trained models by changing words, and show how often they are not fooled.

    Needs TextAttack; docs/attacks.md tells how to install it, and how to attack without a network.
    The same command goes on after an interruption. Results are kept in RUN/attacks, with a page
    that shows original and changed texts side by side; several runs or recipes give a table too.

    Args:
        runs: Folders of runs.
        recipe: The attack, textfooler, textbugger or bae; several with commas between them, or all.
        examples: How many examples to attack, the same ones for every model.
        threat: What answers a query, mean, sample or average; several with commas between them; by
            default all that apply.
        samples: Samples of attention for the average; by default as many as the run is tested with.
        seed: Another number attacks other examples.
        part: The part of the data that examples are taken from.
        data: Where to read it, builtin, hub or a folder; by default where the run did.
        resources: Folder with word vectors, sentence encoder and masked language model; by default
            TextAttack downloads its own.
        overwrite: Begin again, and replace the attacks that are there.
        jobs: How many attacks at a time, if there are several.
        out: Folder for the table of several attacks.
    """
    from rich.console import Console

    from babn.cli._progress import Bars
    from babn_paper.attacks.many_attacks import recipes_of
    from babn_paper.attacks.plan import threats_of
    from babn_paper.attacks.attack_run import attack as attack_run
    from babn_paper.cli._tables import attack_and_tabulate

    recipes = recipes_of(recipe)
    threats_of(threat)
    settings: dict[str, Any] = {
        "examples": examples,
        "threat": threat,
        "samples": samples,
        "seed": seed,
        "part": part,
        "data": data,
        "resources": resources,
        "overwrite": overwrite,
    }
    console = Console(highlight=False)
    if len(runs) > 1 or len(recipes) > 1:
        attack_and_tabulate(console, runs, recipes, jobs, out, **settings)
        return
    with Bars(console) as bars:
        attacked = attack_run(runs[0], recipes[0], progress=bars, **settings)
    _show(console, attacked)


def _show(console: Any, attacked: list[Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from babn_paper.attacks.attack_page import numbers, resource_lines

    shown = {each.plan.threat: numbers(each.summary) for each in attacked}
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("threat", no_wrap=True)
    for threat in shown:
        table.add_column(threat, justify="right")
    for name in dict.fromkeys(name for values in shown.values() for name in values):
        table.add_row(name, *(values.get(name, "") for values in shown.values()))
    console.print(table)
    for kind, text in resource_lines(attacked[0].folder.describe()["identity"]):
        console.print(f"{kind}: {text}", style="dim", markup=False, soft_wrap=True)
    for each in attacked:
        console.print(f"page: {each.folder.page}", markup=False, soft_wrap=True)
