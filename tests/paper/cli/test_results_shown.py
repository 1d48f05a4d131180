"""What the terminal shows of a run."""

from rich.console import Console

from babn_paper.cli._terminal import print_results
from vqa_cases import tiny


def test_the_terminal_shows_types_in_a_table_of_their_own() -> None:
    measures = {"accuracy": 0.5}
    for number in range(20):
        measures |= {f"accuracy [how {number}]": 0.6, f"questions [how {number}]": 7.0}
    results = {
        "measures": {"test": {"mean": measures, "sampled": measures}},
        "scores": ["accuracy"],
        "parameters": 1,
        "steps": 1,
        "seconds_per_step": None,
    }
    console = Console(record=True, width=100)
    print_results(console, results, tiny())
    shown = console.export_text()

    assert "accuracy by question type" in shown and "[" not in shown
    assert "other (6 types)" in shown and " 42 " in shown and shown.count("0.6000") == 2 * 15
