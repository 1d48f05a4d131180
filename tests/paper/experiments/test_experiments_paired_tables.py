"""Tables of two domains."""

from typing import Any

from babn_paper.experiments.records import Record
from babn_paper.experiments.result_pages import main_table, page


def record(method: str, seed: int, mode: str, inside: float, outside: float) -> Record:
    paper = {"accuracy (test)": "90.0", "accuracy (out)": "70.0", "ECE (test)": "2.5"}
    experiment = {"task": "nli", "model": "google-bert/bert-base", "method": method, "seed": seed}
    measures: dict[str, Any] = {
        "test": {mode: {"accuracy": inside, "ECE-10": 0.02, "NLL": 0.3}},
        "out": {mode: {"accuracy": outside, "ECE-10": 0.08, "OOD AUROC (entropy)": 0.6}},
    }
    results = {"measures": measures, "parameters": 100, "seconds_per_step": None}
    return Record(f"nli-bert-{method}", {**experiment, "paper": paper}, results, {})


RECORDS = [
    record("softmax", 0, "mean", 0.9, 0.7),
    record("softmax", 1, "mean", 0.9, 0.72),
    record("belief", 0, "sampled", 0.91, 0.75),
    record("belief", 1, "sampled", 0.91, 0.76),
]


def test_cells_hold_both_domains_beside_the_papers() -> None:
    table = main_table(RECORDS)
    softmax, belief = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert softmax["accuracy"] == "90.0 ± 0.0 / 71.0 ± 1.4"
    assert softmax["accuracy, paper"] == "90.0 / 70.0"
    assert softmax["ECE, paper"] == "2.5 / –"
    assert softmax["NLL"] == "0.300 ± 0.000 / –"
    assert softmax["OOD AUROC, entropy"] == "60.0 ± 0.0"
    assert softmax["OOD AUROC, MI"] == "–"
    assert (belief["attention"], belief["prediction"]) == ("BABN", "sampled")
    assert belief["accuracy, paper"] == "–"
    assert belief["model"] == "bert-base"


def test_the_best_out_of_domain_is_marked() -> None:
    table = main_table(RECORDS)
    marked = {(table.rows[row][2], table.columns[column]) for row, column in table.best}
    assert ("BABN", "accuracy") in marked and ("softmax", "accuracy") not in marked


def test_the_page_explains_its_cells() -> None:
    done = [Record(r.label, r.experiment, r.results, {"started": "2026"}) for r in RECORDS]
    text = page(done, "Table 2", "babn reproduce table2")
    assert "in / out of domain" in text and "Desai and Durrett" in text
    ours = [Record(r.label, {**r.experiment, "paper": {}}, r.results, {}) for r in done]
    text = page(ours, "Ours", "babn sweep")
    assert "in / out of domain" in text and "paper" not in text
