"""The comparison of methods in two domains, as `paper/domain_table.py` makes it."""

import runpy
from pathlib import Path

from babn_paper.experiments.records import Record

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "paper/domain_table.py"))
domain_tables = SCRIPT["domain_tables"]
MODES = {"softmax": ("mean", "dropout"), "belief": ("mean", "sampled")}


def run(method: str, setting: str, seed: int, dev: float, out: float) -> Record:
    """A run of NLI with such an NLL, a tenth of it as ECE, and half of both with a temperature."""
    numbers = {"dev": dev, "test": dev, "out": out}
    measures = {
        part: {
            mode: {
                f"{name}{suffix}": nll * share * (0.5 if suffix else 1)
                for name, share in (("NLL", 1), ("ECE-10", 0.1))
                for suffix in ("", " + TS", " + TS (in domain)")
            }
            for mode in MODES[method]
        }
        for part, nll in numbers.items()
    }
    label = f"nli-{method}{setting}"
    experiment = {"task": "nli", "method": method, "seed": seed}
    return Record(label, experiment, {"measures": measures}, {})


def test_settings_are_chosen_by_development_data_of_the_own_domain() -> None:
    records = [
        run("softmax", "", 0, dev=0.4, out=0.9),
        run("belief", "", 0, dev=0.5, out=0.2),
        run("belief", "+settings.rho=1.5", 0, dev=0.3, out=0.8),
        run("belief", "+settings.rho=1.5", 1, dev=0.1, out=0.6),
        Record("nli-belief+settings.rho=9", {"task": "nli", "method": "belief"}, {}, {}),
    ]
    (table,) = domain_tables(records)
    assert table.columns == ["SNLI to MNLI", "NLL", "NLL, out", "ECE", "ECE, out", "setting"]
    rows = {row[0]: row[1:] for row in table.rows}
    names = ["softmax", "softmax + TS", "softmax, MC dropout", "softmax, MC dropout + TS"]
    assert list(rows) == [*names, "BABN", "BABN + TS"]
    assert rows["BABN"] == [
        "0.200 ± 0.141",
        "0.700 ± 0.141",
        "2.0 ± 1.4",
        "7.0 ± 1.4",
        "rho 1.5",
    ]
    assert rows["softmax + TS"] == ["0.200", "0.450", "2.0", "4.5", "–"]
    assert table.best == {(5, 1), (5, 2), (5, 3), (5, 4)}


def test_models_stand_below_each_other_and_the_best_of_a_row_is_bold() -> None:
    found = {
        "large": [run("softmax", "", 0, 0.4, 0.6), run("belief", "", 0, 0.5, 0.2)],
        "small": [run("softmax", "", 0, 0.4, 0.3), run("belief", "", 0, 0.5, 0.8)],
    }
    column = ("ECE, out", "out", "ECE-10", True)
    table = SCRIPT["side_by_side"](found, column, ("softmax + TS", "BABN"))
    assert table.columns == ["ECE, out", "softmax + TS", "BABN"]
    assert table.rows == [
        ["large, SNLI to MNLI", "3.0", "2.0"],
        ["small, SNLI to MNLI", "1.5", "8.0"],
    ]
    assert table.best == {(0, 2), (1, 1)}
