"""Parallel texts from files, the hub and the package; bad ones are refused with their place."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from babn.errors import ConfigError, DataError
from babn_paper.data.phrases import SIZES, english, german, phrases
from babn_paper.tasks import reading
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.translation.pairs import Languages, SentencePair, has_part, read_part
from babn_paper.tasks.translation.subwords import prepared, without_joints

DE_EN = Languages("de", "en")
PAIR = SentencePair("ein Hund .", "a dog .")


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


def refusal(folder: Path, part: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        read_part(folder, part, DE_EN)
    return str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        {"train__de": "ein Hund .\nja\n", "train__en": "a dog .\nyes\n"},
        {"train__tsv": "de\ten\nein Hund .\ta dog .\nja\tyes\n"},
        {"train_sample__tsv": "id\ten\tde\n1\ta dog .\tein Hund .\n2\tyes\tja\n"},
        {"train__jsonl": '{"de": "ein Hund .", "en": "a dog ."}\n{"de": "ja", "en": "yes"}\n'},
        {"train__jsonl": '{"translation": {"de": "ein Hund .", "en": "a dog ."}}\n'},
    ],
    ids=["lines", "table", "longer-name", "objects", "hub-objects"],
)
def test_every_layout_is_read(tmp_path: Path, files: dict[str, str]) -> None:
    part = read_part(write(tmp_path, **files), "train", DE_EN)
    assert part.examples[0] == PAIR
    assert len(part.examples) == (1 if "translation" in str(files) else 2)
    turned = read_part(tmp_path, "train", Languages("en", "de"))
    assert turned.examples[0] == SentencePair("a dog .", "ein Hund .")


def test_files_may_be_gzipped_and_dev_has_several_names(tmp_path: Path) -> None:
    for language, text in (("de", "ja\n"), ("en", "yes\n")):
        (tmp_path / f"valid.{language}.gz").write_bytes(gzip.compress(text.encode()))
    assert read_part(tmp_path, "dev", DE_EN).examples == [SentencePair("ja", "yes")]
    assert has_part(tmp_path, "dev", DE_EN)
    assert not has_part(tmp_path, "test", DE_EN)
    assert not has_part(tmp_path, "out", DE_EN)


def test_texts_before_bpe_are_preferred_and_joints_undone(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    for folder, hund in ((tmp_path, "H@@ und"), (tmp_path / "tmp", "Hund")):
        write(folder, train__de=f"ein {hund} .\n", train__en="a dog .\n")
    assert read_part(tmp_path, "train", DE_EN).examples == [PAIR]
    assert without_joints("H@@ u@@ nd da@@") == "Hund da"
    (tmp_path / "tmp" / "train.de").unlink()
    (tmp_path / "tmp" / "train.en").unlink()
    task = find_task("iwslt14")
    assert task.read(str(tmp_path), "train").examples == [PAIR]


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    write(tmp_path, train__de="a\nb\nc\n", train__en="a\nb\n")
    message = refusal(tmp_path)
    assert "train.en:2 is the last line" in message
    assert "train.de: 3" in message
    write(tmp_path, train__de="a\n\n", train__en="a\nb\n")
    assert "train.de:2 is empty" in refusal(tmp_path)
    write(tmp_path, train__de="", train__en="")
    assert "train.de is empty" in refusal(tmp_path)
    (tmp_path / "train.en").unlink()
    assert "train.de exists" in refusal(tmp_path)
    (tmp_path / "train.de").write_bytes(b"\xff\n")
    write(tmp_path, train__en="a\n")
    assert "not UTF-8" in refusal(tmp_path)
    write(tmp_path, train__de="a\n", train__tsv="de\ten\na\tb\n")
    assert "Keep one of them" in refusal(tmp_path)


def test_tables_are_refused_with_their_line(tmp_path: Path) -> None:
    assert "Put dev.de and dev.en there" in refusal(tmp_path, "dev")
    assert "no part 'tset'" in refusal(tmp_path, "tset")
    write(tmp_path, train__tsv="de\tfr\na\tb\n")
    assert "train.tsv:2: there is no column 'en'" in refusal(tmp_path)
    write(tmp_path, train__tsv="de\ten\na\tb\nc\t \n")
    assert "train.tsv:3: column 'en' has no text" in refusal(tmp_path)
    write(tmp_path, train__tsv="de\ten\na\n")
    assert "train.tsv:2: 1 columns" in refusal(tmp_path)


def test_a_folder_of_all_data_has_other_domains(tmp_path: Path) -> None:
    task = find_task("tatoeba")
    for name in ("tatoeba_deen", "iwslt14"):
        (tmp_path / name).mkdir()
    write(tmp_path / "tatoeba_deen", test__tsv="de\ten\nJa, Tom's!\tYes, 1,000.5 of Tom's.\n")
    assert not task.has(str(tmp_path), "out-test")
    write(tmp_path / "iwslt14", test__de="ja .\n", test__en="yes .\n")
    assert task.has(str(tmp_path), "out-test")
    assert task.read(str(tmp_path), "out-test").examples == [SentencePair("ja .", "yes .")]
    own = task.read(str(tmp_path), "test").examples
    assert own == [SentencePair("ja , tom 's !", "yes , 1,000.5 of tom 's .")]
    with pytest.raises(DataError, match="is not a folder"):
        task.read(str(tmp_path / "none"), "train")
    with pytest.raises(DataError, match="has no folder 'iwslt14'"):
        task.read(str(tmp_path / "iwslt14"), "out-dev")


def test_options_are_checked_and_change_the_fingerprint(tmp_path: Path, as_installed: None) -> None:
    write(tmp_path, train__de="A B\nC\n", train__en="D\nE\n")
    plain = find_task("translation").read(str(tmp_path), "train")
    small = find_task("translation", {"prepare": "lowercase", "train_limit": 1})
    assert small.read(str(tmp_path), "train").examples == [SentencePair("a b", "d")]
    prints = {plain.fingerprint, small.read(str(tmp_path), "train").fingerprint}
    assert len(prints) == 2
    for options, words in (
        ({"beem": 3}, "no option beem"),
        ({"beam": 0}, "beam=0"),
        ({"languages": "deutsch"}, "languages='deutsch'"),
        ({"prepare": "upper"}, "prepare='upper'"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            find_task("translation", options)
    with pytest.raises(ConfigError, match="has no options"):
        find_task("mrpc", {"beam": 3})


def test_the_hub_is_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    class Split(list):  # type: ignore[type-arg]
        _fingerprint = "abc"

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        requests.append((args, kwargs))
        return Split([{"translation": {"de": "ein Hund .", "en": "a dog ."}}])

    package = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setattr(reading, "import_module", lambda name: package)
    assert find_task("iwslt14").read("hub", "dev").examples == [PAIR]
    assert requests == [(("bbaaaa/iwslt14-de-en-preprocess", None), {"split": "validation"})]
    with pytest.raises(DataError, match=r"options\.hub"):
        find_task("translation").read("hub", "dev")


def test_built_in_phrases_are_right_and_disjoint() -> None:
    numbers = {0: "null", 1: "eins", 21: "einundzwanzig", 317: "dreihundertsiebzehn", 101: ""}
    assert [german(n) for n in list(numbers)[:4]] == list(numbers.values())[:4]
    assert german(101) == "einhunderteins"
    assert (english(21), english(317)) == ("twenty-one", "three hundred and seventeen")
    parts = {part: phrases(part) for part in SIZES}
    assert {part: len(found) for part, found in parts.items()} == SIZES
    assert len({p for found in parts.values() for p in found}) == sum(SIZES.values())
    assert phrases("dev") == parts["dev"]
    turned = find_task("translation", {"languages": "en-de"}).read("builtin", "dev").examples[0]
    assert (turned.target, turned.source) == parts["dev"][0]
    with pytest.raises(DataError, match="are not built in"):
        find_task("translation", {"languages": "de-fr"}).read("builtin", "dev")
    with pytest.raises(DataError, match="no part"):
        find_task("translation").read("builtin", "out-dev")


def test_preparation() -> None:
    assert prepared("  Ja,\t„so“ geht's: U-Bahn! ", "as-is") == "Ja, „so“ geht's: U-Bahn!"
    assert prepared("Ja, geht's: U-Bahn!", "tokenized") == "Ja , geht 's : U-Bahn !"
    assert prepared("Ja, geht's!", "lowercase") == "ja , geht 's !"
