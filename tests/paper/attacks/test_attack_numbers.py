"""Numbers, words, page and table from records made by hand."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from babn_paper.attacks.attack_page import write_page
from babn_paper.attacks.attack_records import (
    FORMAT,
    AttackFolder,
    AttackRecord,
    Outcome,
    shown_numbers,
    summarise,
    words_changed,
)
from babn_paper.attacks.attack_table import (
    PAPER,
    TASKS,
    attack_table,
    descriptions,
    numbers_table,
    write_attack_table,
)
from babn_paper.attacks.plan import Plan, Recipe, Threat
from babn_paper.attacks.resources import Provider
from babn_paper.experiments.result_tables import NONE


def record(outcome: Outcome, place: int = 0, **fields: Any) -> AttackRecord:
    return AttackRecord(place=place, outcome=outcome, **({"original": {"text": "a b"}} | fields))


RECORDS = [
    record("success", words=10, changed=2, queries=30, holds=True),
    record("success", words=4, changed=2, queries=10, holds=False),
    record("success", words=10, changed=2, queries=20, holds=True),
    record("failed", words=10, changed=9, queries=100),
    record("skipped", queries=1),
    record("skipped", queries=1),
    record("error", error="no word"),
]


def test_numbers_by_hand() -> None:
    found = summarise(RECORDS)
    counts = ("examples", "success", "failed", "skipped", "errors")
    assert [found[name] for name in counts] == [6, 3, 1, 2, 1]  # type: ignore[literal-required]
    assert found["failed_share"] == 1 / 4
    assert found["accuracy"] == 4 / 6
    assert found["accuracy_under_attack"] == 1 / 6
    assert found["changed_share"] == pytest.approx((0.2 + 0.5 + 0.2) / 3)
    assert found["queries"] == 40
    assert found["holds"] == pytest.approx(2 / 3)


def test_numbers_that_are_not_defined_are_not_shown() -> None:
    found = summarise([record("error"), record("skipped")])
    assert math.isnan(found["failed_share"])
    assert found["accuracy"] == found["accuracy_under_attack"] == 0
    assert "failed attacks" not in shown_numbers(found)
    assert "failed, two queries" not in shown_numbers(found)
    assert shown_numbers(summarise(RECORDS))["failed attacks"] == "25.0%"


def test_a_success_that_does_not_hold_in_a_second_query_is_a_failure() -> None:
    assert shown_numbers(summarise(RECORDS))["failed, two queries"] == "50.0%"
    assert shown_numbers(summarise([record("failed")]))["failed, two queries"] == "100.0%"


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ("a good film", "a good film", 0),
        ("a good film", "a great film", 1),
        ("a good film", "a go od film", 1),
        ("a good film .", "one great movie .", 3),
        ("good", "great", 1),
        ("good good bad", "good bad", 1),
        ("", "new", 1),
    ],
)
def test_changed_words(before: str, after: str, count: int) -> None:
    assert words_changed(before, after) == count


def describe(
    run: Path,
    recipe: Recipe = "textfooler",
    threat: Threat = "mean",
    *,
    method: str = "belief",
    task: str = "sst2",
    share: float | None = 0.25,
    substituted: bool = False,
) -> AttackFolder:
    """A finished attack without its records."""
    plan = Plan(recipe=recipe, threat=threat)
    place = AttackFolder.of(run, plan)
    place.path.mkdir(parents=True)
    used = {kind: asdict(each) for kind, each in Provider().describe(recipe).items()}
    used["encoder"] |= {"substituted": substituted, "name": "MiniLM" if substituted else "USE"}
    description = {
        "format": FORMAT,
        "state": "done",
        "identity": asdict(plan) | {"resources": used, "model": "m0", "data": "d0"},
        "task": task,
        "base": "albert",
        "method": method,
        "data_origin": "builtin",
        "examples": 277 if task == "rte" else 1000,  # its part has no more
        "trained_with_seed": 0,
        "environment": {
            "started": "2026-01-01T10:00:00",
            "versions": {"babn": "0", "torch": "1.2"},
            "machine": {"gpu": "a GPU"},
        },
        "summary": {**summarise(RECORDS), "failed_share": share},
    }
    place.description.write_text(json.dumps(description))
    return place


def test_the_former_name_of_the_method_is_read(tmp_path: Path) -> None:
    place = describe(tmp_path, method="bam")
    found = place.describe()
    place.description.write_text(place.description.read_text().replace('"method"', '"rule"'))
    assert place.describe() == found and found["method"] == "bam"


def test_the_page_shows_pairs_with_changes_marked_and_everything_escaped(tmp_path: Path) -> None:
    place = describe(tmp_path, threat="sample", substituted=True)
    evil = "<script>alert(1)</script>"
    records = [
        record(
            "success",
            3,
            label="positive",
            before="positive",
            after="negative",
            original={"text": f"a good {evil} film"},
            perturbed={"text": f"a bad {evil} <b>"},
            probs_before=[0.1, 0.9],
            probs_after=[0.75, 0.25],
            holds=False,
        ),
        record("failed", 4, perturbed={"text": "a c"}),
        record("skipped", 5, before="negative", label="positive"),
        record("error", 6, original={"text": ""}, error="<i>no</i> word"),
    ]
    write_page(place, records)
    page = place.page.read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<mark>good</mark>" in page
    assert "<mark>bad</mark>" in page
    assert "<mark>&lt;b&gt;</mark>" in page
    assert page.count("&lt;script&gt;") == 2
    assert "positive 90%" in page
    assert "negative 75%" in page
    assert "the model was right in a second query" in page
    for heading in ("Fooled (1)", "Not fooled (1)", "Wrong before the attack (1)", "attacked (1)"):
        assert heading in page
    assert "(empty)" in page
    assert "one new sample of attention" in page
    assert "MiniLM, in place of Universal Sentence Encoder" in page
    assert "not with published numbers" in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_paper_has_a_row_for_every_attack_and_attention(tmp_path: Path) -> None:
    table = attack_table(descriptions([tmp_path]))
    assert table.columns == (
        ["attack", "attention", "threat", "MRPC", "CoLA", "RTE", "QQP", "SST-2", "Avg."]
    )
    assert [row[2] for row in table.rows] == [*["paper"] * 3, NONE] * 3
    assert len(PAPER) == 9
    assert table.rows[3] == ["TextFooler", "BABN (default)", *[NONE] * 7]
    assert "the mean of the row is 13.7" in table.caption
    assert table.rows[2] == (
        ["TextFooler", "BABN (paper)", "paper", "6.2", "5.1", "17.7", "33.7", "16.4", "15.8"]
    )
    assert not table.best


def test_ours_stand_beside_the_papers(tmp_path: Path) -> None:
    shares = {"softmax": 0.1, "belief": 0.2}
    for method, share in shares.items():
        for task in TASKS:
            describe(tmp_path / f"{method}-{task}-0", method=method, task=task, share=share)
    describe(tmp_path / "belief-sst2-1", method="belief", share=0.4)
    describe(tmp_path / "belief-sst2-1", threat="sample", share=0.9)
    describe(tmp_path / "belief-sst2-2", method="belief", share=None)
    table = attack_table(descriptions(sorted(tmp_path.iterdir())))
    rows = {tuple(row[:3]): row[3:] for row in table.rows}
    assert rows["TextFooler", "softmax", "mean"] == ["10.0"] * 6
    assert rows["TextFooler", "BABN", "mean"] == ["20.0"] * 4 + ["30.0 ± 14.1", "22.0"]
    assert rows["TextFooler", "BABN", "sample"] == ["–"] * 4 + ["90.0", "–"]
    assert not table.best  # one seed has no deviation


def test_clear_differences_over_seeds_are_bold(tmp_path: Path) -> None:
    for method, share in {"softmax": 0.1, "belief": 0.2}.items():
        for task in TASKS:
            for seed in (0, 1):
                own = share + (0.01 if task == "mrpc" else 0.2) * seed
                describe(tmp_path / f"{method}-{task}-{seed}", method=method, task=task, share=own)
    table = attack_table(descriptions(sorted(tmp_path.iterdir())))
    bold = {(tuple(table.rows[i][1:3]), table.columns[j]) for i, j in table.best}
    assert bold == {(("BABN", "mean"), "MRPC")}


def test_all_numbers_of_every_attack_are_kept_and_shown(tmp_path: Path) -> None:
    describe(tmp_path / "runs" / "a", method="softmax", share=0.25)
    describe(tmp_path / "runs" / "b", threat="sample", share=0.5)
    found = descriptions(sorted((tmp_path / "runs").iterdir()))
    page = write_attack_table(found, tmp_path / "out", "babn attack")
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert kept == {"command": "babn attack", "attacks": found}
    table = numbers_table(kept["attacks"])
    failed = list(table.columns).index("failed attacks")
    assert [(row[2], row[3], row[failed]) for row in table.rows] == [
        ("softmax", "mean", "25.0%"), ("BABN", "sample", "50.0%"),
    ]  # fmt: skip
    assert table.markdown() in page.read_text()
    where = "- Examples: 1000. Models: albert, seeds 0. 2026-01-01, a GPU; torch 1.2."
    assert where in page.read_text()


def test_what_several_recipes_use_is_named_once(tmp_path: Path) -> None:
    for recipe in ("textbugger", "textfooler"):
        describe(tmp_path / "run", recipe=recipe, substituted=True)
    caption = attack_table(descriptions([tmp_path / "run"])).caption
    assert "TextFooler, TextBugger: encoder: MiniLM, in place of" in caption


def test_attacks_with_different_resources_are_not_compared(tmp_path: Path) -> None:
    describe(tmp_path / "a", method="softmax", share=0.1)
    describe(tmp_path / "b", share=0.2, substituted=True)
    table = attack_table(descriptions([tmp_path / "a", tmp_path / "b"]))
    assert not table.best
    assert "none is the best" in table.caption
    assert "TextFooler: encoder: MiniLM, in place of" in table.caption
    assert "not with published numbers" in table.caption


def test_without_substitutes_nothing_is_said_about_them(tmp_path: Path) -> None:
    describe(tmp_path / "run")
    caption = attack_table(descriptions([tmp_path / "run"])).caption
    assert "not with published numbers" not in caption
    assert "BABN is BeliefConfig.pairs, neither the published method nor the default" in caption
