"""`babn attack`."""

from pathlib import Path
from typing import Annotated, Any


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
    resources: Annotated[str | None, "FOLDER"] = None,
    overwrite: bool = False,
    jobs: int = 1,
    out: Path = Path("runs/attacks"),
) -> None:
    """Attack trained classifiers by changing words, and report how many attacks fail.

    Needs TextAttack; docs/attacks.md explains how to install it and how to attack without network
    access. Repeat the command to continue after an interruption. Results go to RUN/attacks, with a
    page that shows original and perturbed texts side by side; several runs or recipes also give a
    table.

    Args:
        runs: Folders of finished runs.
        recipe: Attack recipe: textfooler, textbugger or bae; several separated by commas, or all.
        examples: Number of examples to attack, the same ones for every model.
        threat: What the attacker sees: the mean, a fresh sample or an average of samples (mean,
            sample or average); several separated by commas. By default all that apply.
        samples: Samples of attention for average; by default as many as in the run's tests.
        seed: Seed for choosing examples and for all noise.
        part: Part of the data that examples are taken from.
        data: Source of the data: builtin, hub or a folder; by default as in the run.
        resources: Folder with word vectors, sentence encoder and masked language model; by default
            TextAttack downloads its own.
        overwrite: Replace existing attacks.
        jobs: Number of parallel attacks.
        out: Folder for the table of several attacks.
    """
    from babn.cli._terminal import Bars
    from babn_paper.attacks.attack_run import attack as attack_run
    from babn_paper.attacks.attack_run import parse_recipes
    from babn_paper.attacks.plan import parse_threats
    from babn_paper.cli._tables import attack_and_tabulate
    from babn_paper.cli._terminal import make_console

    recipes = parse_recipes(recipe)
    parse_threats(threat)
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
    console = make_console()
    if len(runs) > 1 or len(recipes) > 1:
        attack_and_tabulate(console, runs, recipes, jobs, out, **settings)
        return
    with Bars(console) as bars:
        attacked = attack_run(runs[0], recipes[0], progress=bars, **settings)
    _print(console, attacked)


def _print(console: Any, attacked: list[Any]) -> None:
    from babn.cli._terminal import plain_table
    from babn_paper.attacks.attack_page import resource_lines
    from babn_paper.attacks.attack_records import shown_numbers

    shown = {each.plan.threat: shown_numbers(each.summary) for each in attacked}
    names = dict.fromkeys(name for values in shown.values() for name in values)
    rows = [[name, *(values.get(name, "") for values in shown.values())] for name in names]
    console.print(plain_table(["threat", *shown], rows))
    for kind, text in resource_lines(attacked[0].folder.describe()["identity"]):
        console.print(f"{kind}: {text}", style="dim")
    for each in attacked:
        console.print(f"page: {each.folder.page}")
