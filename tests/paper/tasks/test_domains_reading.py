"""Reading tasks of two domains from folders, and what is refused."""

import json
from pathlib import Path

import pytest
from domain_cases import PAIRS, QUESTIONS, SENTENCES, SWAG, numbered, table

from babn.errors import DataError
from babn_paper.tasks.domains import COMMONSENSE, NLI, PARAPHRASE, TASKS, DomainTask

PARTS = ("train", "dev", "test", "out")


@pytest.fixture
def inference(tmp_path: Path) -> Path:
    """A folder with all that `nli` needs."""
    for part, count in (("train_subset", 4), ("dev", 3), ("test", 5)):
        table(tmp_path / f"snli/{part}.tsv", PAIRS, *numbered(count, f"{part} "))
    table(tmp_path / "mnli/dev_matched.tsv", PAIRS, *numbered(7, "other "))
    table(tmp_path / "mnli/dev_mismatched.tsv", PAIRS, "never read||")
    return tmp_path


def firsts(task: DomainTask, data: Path, part: str) -> list[str]:
    return [each.texts[0] for each in task.read(str(data), part).examples]


def test_the_tasks_show_the_part_of_their_own_domain_first() -> None:
    assert list(TASKS) == ["nli", "paraphrase", "commonsense"]
    assert {task.test_parts for task in TASKS.values()} == {("test", "out", "dev")}
    assert {task.scores for task in TASKS.values()} == {("accuracy",)}


def test_files_of_their_own_are_taken_whole(inference: Path) -> None:
    assert all(NLI.has(str(inference), part) for part in PARTS)
    assert len(firsts(NLI, inference, "train")) == 4
    assert firsts(NLI, inference, "dev") == ["dev 0", "dev 1", "dev 2"]
    test = NLI.read(str(inference), "test")
    assert len(test.examples) == 5 and test.name == "test"
    assert test.origin == str(inference / "snli/test.tsv")


def test_without_a_test_file_the_dev_file_is_halved(inference: Path) -> None:
    (inference / "snli/test.tsv").unlink()
    dev, test = (NLI.read(str(inference), part) for part in ("dev", "test"))
    assert [each.texts[0] for each in dev.examples] == ["dev 0", "dev 2"]
    assert [each.texts[0] for each in test.examples] == ["dev 1"]
    assert dev.origin.endswith("dev.tsv, even places") and test.origin.endswith("odd places")
    assert dev.fingerprint != test.fingerprint


def test_the_target_is_the_half_to_test_on(inference: Path) -> None:
    out = NLI.read(str(inference), "out")
    assert out.name == "out" and "mnli/dev_matched.tsv, odd places" in out.origin
    assert [each.texts[0] for each in out.examples] == ["other 1", "other 3", "other 5"]


@pytest.mark.parametrize("count", [2, 3, 10, 11])
def test_halves_are_disjoint_and_together_whole(tmp_path: Path, count: int) -> None:
    table(tmp_path / "qqp/dev.tsv", QUESTIONS, *numbered(count))
    dev, test = (firsts(PARAPHRASE, tmp_path, part) for part in ("dev", "test"))
    assert not set(dev) & set(test) and abs(len(dev) - len(test)) <= 1
    assert sorted(dev + test, key=int) == [str(i) for i in range(count)]


def test_one_example_cannot_be_halved(tmp_path: Path) -> None:
    table(tmp_path / "qqp/dev.tsv", QUESTIONS, *numbered(1))
    with pytest.raises(DataError, match=r"dev\.tsv has one example"):
        PARAPHRASE.read(str(tmp_path), "test")


@pytest.mark.parametrize("missing", ["-", "-1"])
def test_pairs_without_consensus_do_not_count(tmp_path: Path, missing: str) -> None:
    lines = "a|b|neutral", f"c|d|{missing}", "e|f|2"
    table(tmp_path / "snli/train.tsv", PAIRS, *lines)
    found = NLI.read(str(tmp_path), "train").examples
    assert [(each.texts, each.label) for each in found] == [(("a", "b"), 1), (("e", "f"), 2)]
    table(tmp_path / "snli/train.tsv", PAIRS, lines[1])
    with pytest.raises(DataError, match=r"train\.tsv has no example with a label"):
        NLI.read(str(tmp_path), "train")


def test_halves_count_only_what_has_a_label(tmp_path: Path) -> None:
    table(tmp_path / "snli/dev.tsv", PAIRS, "a|b|0", "c|d|-", "e|f|1", "g|h|2")
    assert firsts(NLI, tmp_path, "dev") == ["a", "g"] and firsts(NLI, tmp_path, "test") == ["e"]


def test_each_domain_has_columns_of_its_own(tmp_path: Path) -> None:
    table(tmp_path / "qqp/test.tsv", QUESTIONS, "a|b|1", "c||0")
    table(tmp_path / "twitter_url/test.tsv", SENTENCES, "x|y|1", "d|e|0")
    found = [PARAPHRASE.read(str(tmp_path), part).examples for part in ("test", "out")]
    assert [each.texts for part in found for each in part] == [("a", "b"), ("c", ""), ("d", "e")]
    assert not PARAPHRASE.has(str(tmp_path), "dev") and not PARAPHRASE.has(str(tmp_path), "train")
    with pytest.raises(DataError, match=r"qqp has no file for 'dev'\. Put dev\.tsv"):
        PARAPHRASE.read(str(tmp_path), "dev")


def test_endings_follow_the_words_that_they_share(tmp_path: Path) -> None:
    table(tmp_path / "swag/val.tsv", SWAG, "A man sits.|He|eats.|runs.|reads.|sings.|2")
    table(tmp_path / "swag/test.tsv", SWAG, "A cat.|It|a|b|c|d|0")
    official = {"ctx_a": "How to cook.", "ctx_b": "", "endings": [*"abcd"], "label": "3"}
    (tmp_path / "hellaswag").mkdir()
    (tmp_path / "hellaswag/test.jsonl").write_text(json.dumps(official) + "\n")
    (swag,) = COMMONSENSE.read(str(tmp_path), "dev").examples
    assert swag.texts == ("A man sits.", "He eats.", "He runs.", "He reads.", "He sings.")
    (other,) = COMMONSENSE.read(str(tmp_path), "out").examples
    assert (other.texts, other.label) == (("How to cook.", *"abcd"), 3)
    assert "He eats." in list(COMMONSENSE.texts([swag, other]))


@pytest.mark.parametrize(
    ("task", "file", "lines", "message"),
    [
        (NLI, "snli", (PAIRS, "a|b|0", "a|b|maybe"), r"test\.tsv:3: label='maybe' is not a class"),
        (NLI, "snli", (PAIRS, "a|b|"), r"test\.tsv:2: label='' marks a missing label"),
        (NLI, "snli", (PAIRS, "a|b|3"), r"test\.tsv:2: label='3' is not a class"),
        (NLI, "snli", (PAIRS, " | |0"), r"test\.tsv:2: premise and hypothesis hold no text"),
        (NLI, "snli", ("premise|label", "a|0"), r"test\.tsv:2: .* no column 'hypothesis'"),
        (NLI, "snli", (PAIRS,), "has no rows"),
        (
            PARAPHRASE,
            "qqp",
            (QUESTIONS, "a|b|-1"),
            r"test\.tsv:2: label='-1' marks a missing label",
        ),
        (PARAPHRASE, "qqp", (SENTENCES, "a|b|1"), r"test\.tsv:2: .* no column 'question1'"),
        (COMMONSENSE, "swag", (SWAG, "a|b|c|d|e|f|4"), r"test\.tsv:2: label='4' is not a class"),
        (COMMONSENSE, "swag", (SWAG, "a|b|c|d||f|1"), r"test\.tsv:2: column 'ending2' has no text"),
        (COMMONSENSE, "swag", (SWAG, " |b|c|d|e|f|1"), r"test\.tsv:2: column 'sent1' has no text"),
        (COMMONSENSE, "swag", (PAIRS, "a|b|1"), r"no column 'sent1' or 'ctx_a' or 'context'"),
    ],
)
def test_wrong_rows_are_refused_with_their_place(
    tmp_path: Path, task: DomainTask, file: str, lines: tuple[str, ...], message: str
) -> None:
    table(tmp_path / file / "test.tsv", *lines)
    with pytest.raises(DataError, match=message):
        task.read(str(tmp_path), "test")


def test_wrong_lists_of_endings_are_refused_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "swag").mkdir()
    row = {"sent1": "a", "endings": ["b", "c"], "label": 0}
    (tmp_path / "swag/test.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl:1: endings=\['b', 'c'\] are not 4 texts"):
        COMMONSENSE.read(str(tmp_path), "test")


def test_folders_and_parts_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        NLI.read(str(tmp_path / "nowhere"), "train")
    with pytest.raises(DataError, match="has no folder 'snli'"):
        NLI.read(str(tmp_path), "train")
    with pytest.raises(DataError, match="'nli' has no part 'dev-mismatched'"):
        NLI.read(str(tmp_path), "dev-mismatched")
    assert not any(NLI.has(str(tmp_path), part) for part in (*PARTS, "other"))
