"""Own data: files of every type, the hub, classes of any name, and what is wrong with a file."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from domain_cases import Hub, Rows

from babn.errors import BabnError, ConfigError, DataError, MissingExtraError
from babn.text import word_tokenizer
from babn_paper.experiments.config_files import own_experiment
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.own_files import FILES
from babn_paper.tasks.own_texts import OwnClassification, OwnMultipleChoice, OwnRegression
from babn_paper.tasks.reading import read_source

ROWS = [{"text": f"text {i}, with a comma", "label": "-1" if i % 2 else "1"} for i in range(20)]


def csv_file(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [f'"text {i}, with a comma",{"-1" if i % 2 else "1"}' for i in range(20)]
    return csv_file(tmp_path / "my.csv", "text,label", *lines)


def experiment(task: str = "classification", **flags: Any) -> Any:
    return own_experiment(task, {"model": "small", **flags}, {})


def test_every_file_type_has_the_same_rows(data: Path, tmp_path: Path) -> None:
    objects = "".join(json.dumps(row) + "\n" for row in ROWS)
    table = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS)
    (tmp_path / "my.jsonl").write_text(objects)
    (tmp_path / "my.tsv").write_text(table)
    (tmp_path / "my.jsonl.gz").write_bytes(gzip.compress(objects.encode()))
    csv_file(
        tmp_path / "semicolons.csv", "text;label", *(f"{r['text']};{r['label']}" for r in ROWS)
    )
    for name in ("my.csv", "my.jsonl", "my.tsv", "my.jsonl.gz", "semicolons.csv"):
        rows, print_ = read_source(str(tmp_path / name), "train")
        assert [row.values for row in rows] == ROWS, name
        assert len(print_) == 16


def test_texts_in_quotes_may_have_several_lines(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "text,label", '"one', 'and ""two""",x', "", "three,y")
    rows, _ = read_source(str(path), "train")
    assert [row.values["text"] for row in rows] == ['one\nand "two"', "three"]
    assert rows[1].place == f"{path}:5"


def test_parquet_needs_pyarrow_only_if_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*babn\[data\]"):
        read_source(str(path), "train")
    parquet = ModuleType("pyarrow.parquet")
    parquet.read_table = lambda _: SimpleNamespace(to_pylist=lambda: ROWS)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert [row.values for row in read_source(str(path), "train")[0]] == ROWS


def test_data_sets_have_names_splits_and_class_names(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub({"text": "a", "label": 1}, {"text": "b", "label": 0}, {"text": "c", "label": -1})
    Rows.features = {"label": SimpleNamespace(names=["no", "yes"]), "text": object()}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    try:
        rows, print_ = read_source("hub:owner/name", "validation")
        read_source("hub:owner/name:config:dev", "validation")
    finally:
        del Rows.features  # type: ignore[attr-defined]
    assert [row.values["label"] for row in rows] == ["yes", "no", None]
    assert hub.requests == [("owner/name", None, "validation"), ("owner/name", "config", "dev")]
    assert print_ == "0123abcd"


def test_rows_are_held_out_of_the_training_split(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(*({"text": f"t{i}", "label": str(i % 2)} for i in range(20)))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    made = experiment(train="hub:owner/name")
    task = find_task(made.task, made.options)
    train, dev = (task.read(FILES, part).examples for part in ("train", "dev"))
    assert (len(train), len(dev)) == (18, 2) and not {*train} & {*dev}
    assert {split for _, _, split in hub.requests} == {"train"}


def test_classes_are_found_in_order_and_names_may_be_numbers(data: Path) -> None:
    made = experiment(train=str(data))
    assert made.options["classes"] == ["-1", "1"] and made.data == FILES
    task = find_task(made.task, made.options)
    labels = {each.label for each in task.read(FILES, "train").examples}
    assert labels == {0, 1}
    assert task.head()["id2label"] == {0: "-1", 1: "1"}
    ten = OwnClassification(train="", classes=("1", "2", "10"))
    assert [ten.target.parse(name, "") for name in ("1", "2", "10")] == [0, 1, 2]


def test_the_held_out_part_is_seeded_disjoint_and_stated(data: Path) -> None:
    task = find_task("classification", experiment(train=str(data)).options)
    train, dev = (task.read(FILES, part) for part in ("train", "dev"))
    assert (len(train.examples), len(dev.examples)) == (18, 2)
    assert not {e.texts for e in train.examples} & {e.texts for e in dev.examples}
    assert task.read(FILES, "dev").examples == dev.examples
    assert "18 of 20" in train.origin and "seed 0" in train.origin
    assert train.fingerprint != dev.fingerprint
    assert task.tested_parts(FILES) == ["dev"] and task.tested_parts(str(data)) == ["test"]
    assert len(task.read(str(data), "test").examples) == 20


def test_rows_of_one_text_are_held_out_together(tmp_path: Path) -> None:
    lines = [f"premise {i // 4},b{i},{i % 2}" for i in range(40)]
    path = csv_file(tmp_path / "a.csv", "p,h,label", *lines)
    made = experiment(train=str(path), text="p", text_pair="h")
    dev = find_task(made.task, made.options).read(FILES, "dev").examples
    assert len(dev) == 4 and len({each.texts[0] for each in dev}) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text,label", "a,x", ",y"], r"my.csv:3: text hold no text"),
        (["text,label", "a,x", "b,"], r"my.csv:3: the label in column 'label' is empty"),
        (["text,label", "a,x", "b,x"], r"single class 'x' in column 'label'"),
        (["text,label", "a,x", "b,y,z"], r"my.csv:3: 3 columns where the header has 2.*quotes"),
        (["text,label", "a,x", '"b,y'], r"my.csv:3: not CSV"),
        (["text,label"], r"has no rows"),
        (["text,verdict", "a,x"], r"label='label' is not a column .*'verdict'\].*--label"),
        (["text,text", "a,x"], r"several columns 'text'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named(lines: list[str], message: str, tmp_path: Path) -> None:
    path = csv_file(tmp_path / "my.csv", *lines)
    with pytest.raises(DataError, match=message):
        made = experiment(train=str(path), dev=str(path))
        find_task(made.task, made.options).read(FILES, "train")


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        ("clasification", {}, "Did you mean classification"),
        ("classification", {"model": None}, "--model is missing"),
        ("classification", {"train": None}, "--train is missing"),
        ("classification", {"images": "x"}, "--images does not apply to --task classification"),
        ("classification", {"train": "my.doc"}, "my.doc is not a file"),
        ("multiple-choice", {}, "--choices a,b,c"),
        ("classification", {"label": "text"}, "label='text' is also the column of a text"),
        ("regression", {"label": "text"}, "label='text' is also the column of a text"),
    ],
)
def test_what_is_wrong_with_flags_is_named(
    task: str, flags: dict[str, Any], message: str, data: Path
) -> None:
    with pytest.raises(BabnError, match=message):
        experiment(task, **{"train": str(data), **flags})


def test_unknown_file_types_classes_and_options_are_refused(data: Path, tmp_path: Path) -> None:
    odd = csv_file(tmp_path / "my.xlsx", "text,label", "a,b")
    with pytest.raises(DataError, match=r"unknown file type.*\.csv, \.tsv, \.jsonl, \.parquet"):
        read_source(str(odd), "train")
    other = csv_file(tmp_path / "dev.csv", "text,label", "a,2")
    made = experiment(train=str(data), dev=str(other))
    with pytest.raises(DataError, match=r"dev.csv:2: label='2' is not a class .*\['-1', '1'\]"):
        find_task(made.task, made.options).read(FILES, "dev")
    with pytest.raises(ConfigError, match=r"no option txt\. Did you mean text"):
        find_task("classification", {"txt": "a"})
    with pytest.raises(ConfigError, match=r"options.held_out='x'.*a number"):
        find_task("classification", {"held_out": "x"})
    with pytest.raises(ConfigError, match=r"options\.classes is empty"):
        find_task("classification", {"train": str(data)}).check_ready()


def test_numbers_are_standardised_and_predicted_in_their_units(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "text,label", *(f"t{i},{1000 * i}" for i in range(10)))
    made = experiment("regression", train=str(path), dev=str(path))
    task = find_task(made.task, made.options)
    assert isinstance(task, OwnRegression) and made.options["mean"] == 4500
    part = task.read(FILES, "dev")
    tokenizer = word_tokenizer(task.texts(part.examples))
    trained, tested = (task.encode(part, tokenizer, 16, training) for training in (True, False))
    labels = trained.fixed["labels"]
    assert tested.fixed["labels"].tolist() == [1000.0 * i for i in range(10)]
    assert abs(float(labels.mean())) < 1e-6 and abs(float(labels.std(correction=0)) - 1) < 1e-5


def test_choices_are_columns_or_lists(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "q,a,b,label", "x,one,two,b", "y,three,four,0")
    made = experiment("multiple-choice", train=str(path), dev=str(path), text="q", choices="a, b")
    part = find_task(made.task, made.options).read(FILES, "dev")
    assert [(e.texts, e.label) for e in part.examples] == [
        (("x", "one", "two"), 1),
        (("y", "three", "four"), 0),
    ]
    lists = tmp_path / "b.jsonl"
    lists.write_text(
        '{"q": "x", "c": ["1", "2", "3"], "label": 2}\n{"q": "y", "c": ["1"], "label": 0}\n'
    )
    flags = {"train": str(lists), "dev": str(lists), "text": "q", "choices": "c"}
    made = experiment("multiple-choice", **flags)
    task = find_task(made.task, made.options)
    assert isinstance(task, OwnMultipleChoice) and task.classes == ("0", "1", "2")
    with pytest.raises(DataError, match=r"b.jsonl:2: 1 choices where other rows have 3"):
        task.read(FILES, "dev")
