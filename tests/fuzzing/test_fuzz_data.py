"""Data files of every task, each damaged in some way."""

import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broken_files import damaged, fuzzed, result_or_error
from hypothesis import given
from hypothesis import strategies as st

from babn.errors import DataError
from babn.text import word_tokenizer
from babn_paper import data_files
from babn_paper.models.vectors import read_vectors
from babn_paper.tasks.catalogue import find_task
from babn_paper.tasks.reading import read_rows
from babn_paper.tasks.vqa_images import image_names, read_images
from vqa_cases import png, random_image, write_daquar, write_easy, write_easy_package, write_vqa2

pytestmark = pytest.mark.thorough

PAIRS = [{"sentence1": f"one {i}", "sentence2": f"two {i}", "label": i % 2} for i in range(4)]
SCORES = [{"sentence1": "a b", "sentence2": "c", "score": score} for score in (0.0, 2.5, 5)]
NLI = [{"premise": "a", "hypothesis": "b c", "label": i % 3} for i in range(4)]
ENDINGS = [
    {"context": "a", **{f"ending{k}": f"b {k}" for k in range(4)}, "label": i} for i in range(4)
]
SENTENCES = [{"de": f"ein Haus {i}", "en": f"a house {i}"} for i in range(4)]
CONTEXT = "The cat sat on the mat."
QA = {"id": "1", "question": "Who sat?", "answers": [{"text": "The cat", "answer_start": 0}]}
QUESTION = {**QA, "title": "t", "para": 0}
OFFICIAL = {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [QA]}]}]}
PARAGRAPH = {"title": "t", "para": 0, "context": CONTEXT}
VISUAL = {"image_id": 0, "question": "Is it?", "answers": ["yes"] * 10, "answer": "yes"}


def tsv(rows: list[dict[str, Any]]) -> bytes:
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@dataclass(frozen=True)
class Format:
    """A task's data in files.

    Attributes:
        task: The task.
        file: The one that is damaged.
        content: What it should hold.
        others: What stands beside it.
        part: The part that is read.
    """

    task: str
    file: str
    content: bytes
    others: tuple[tuple[str, bytes], ...] = ()
    part: str = "train"

    def write(self, folder: Path, content: bytes) -> Path:
        for name, each in (*self.others, (self.file, content)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(each)
        return folder / self.file


FORMATS = [
    Format("mrpc", "mrpc/train.tsv", tsv(PAIRS)),
    Format("mrpc", "train.jsonl", jsonl(PAIRS)),
    Format("mrpc", "train.tsv.gz", gzip.compress(tsv(PAIRS), mtime=0)),
    Format("stsb", "train.tsv", tsv(SCORES)),
    Format("stsb", "train.jsonl", jsonl(SCORES)),
    Format("nli", "snli/train.jsonl", jsonl(NLI)),
    Format("nli", "snli/dev.tsv", tsv(NLI), part="test"),
    Format("commonsense", "swag/train.jsonl", jsonl(ENDINGS)),
    Format("squad1.1", "train.json", json.dumps(OFFICIAL).encode()),
    Format("squad2.0", "train-v2.0.json.gz", gzip.compress(json.dumps(OFFICIAL).encode(), mtime=0)),
    Format(
        "squad1.1",
        "dev.questions.jsonl",
        jsonl([QUESTION]),
        (("dev.paragraphs.jsonl", jsonl([PARAGRAPH])),),
        "dev",
    ),
    Format(
        "squad2.0",
        "dev.paragraphs.jsonl",
        jsonl([PARAGRAPH]),
        (("dev.questions.jsonl", jsonl([QUESTION])),),
        "dev",
    ),
    Format("translation", "train.de", b"ein Haus\nzwei\n", (("train.en", b"a house\ntwo\n"),)),
    Format("translation", "train.tsv", tsv(SENTENCES)),
    Format("tatoeba", "train.jsonl", jsonl(SENTENCES)),
]


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: f"{each.task}-{each.file}")
@fuzzed
@given(data=st.data())
def test_texts(format: Format, data: st.DataObject, tmp_path: Path) -> None:
    path = format.write(tmp_path, data.draw(damaged(format.content)))
    read_and_encode(format, tmp_path, str(path.parent))


@pytest.mark.parametrize("format", FORMATS, ids=lambda each: f"{each.task}-{each.file}")
def test_texts_that_are_whole(format: Format, tmp_path: Path) -> None:
    format.write(tmp_path, format.content)
    assert read_and_encode(format, tmp_path)


def read_and_encode(format: Format, folder: Path, *named: str) -> Any:
    """All that is done with data before training."""
    task = find_task(format.task)
    part = result_or_error(lambda: task.read(str(folder), format.part), *named)
    if part is None or format.task in ("translation", "tatoeba"):
        return part
    tokenizer = word_tokenizer(task.texts(part.examples))
    return task.encode(part, tokenizer, 24, training=True)


ROWS = st.dictionaries(
    st.sampled_from(["sentence1", "sentence2", "label", "score", "id", "question", "answers"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.lists(st.text()),
        st.dictionaries(st.text(), st.integers()),
    ),
)


@pytest.mark.parametrize("task", ["mrpc", "stsb", "squad2.0"])
@fuzzed
@given(rows=st.lists(ROWS, max_size=3))
def test_values_of_any_kind(task: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    name = "train.questions.jsonl" if task == "squad2.0" else "train.jsonl"
    rows = [{"title": "t", "para": 0, **row} for row in rows]
    paragraphs = (("train.paragraphs.jsonl", jsonl([PARAGRAPH])),)
    format = Format(task, name, b"", paragraphs)
    format.write(tmp_path, jsonl(rows))
    read_and_encode(format, tmp_path, str(tmp_path))


VISUAL_FORMATS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("easy-vqa", lambda folder: write_easy(folder, images=21), "train_questions.tsv"),
    ("easy-vqa", lambda folder: write_easy(folder, images=21), "train_images.npz"),
    ("easy-vqa", write_easy_package, "train/questions.json"),
    ("easy-vqa", write_easy_package, "train/images/0.png"),
    ("daquar", write_daquar, "train.jsonl"),
    ("daquar", write_daquar, "images_small.tar"),
    ("vqa2", write_vqa2, "v2_OpenEnded_mscoco_train2014_questions.json"),
    ("vqa2", write_vqa2, "v2_mscoco_train2014_annotations.json"),
    ("vqa2", write_vqa2, "features/train2014/COCO_train2014_000000000000.jpg.npz"),
]


def link_to(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to nothing": link_to("gone"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "endless device": link_to("/dev/zero"),
    "empty device": link_to("/dev/null"),
}
"""What may stand where a data file should."""


@pytest.fixture(scope="module")
def visual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Path]]:
    made: dict[Any, Path] = {}
    for _, write, _ in VISUAL_FORMATS:
        if write not in made:
            made[write] = write(tmp_path_factory.mktemp("visual"))
    yield made


@pytest.mark.filterwarnings("ignore:features of")  # which count as zeros
@pytest.mark.filterwarnings("ignore:Image size")  # of Pillow
@pytest.mark.parametrize("case", VISUAL_FORMATS, ids=lambda case: f"{case[0]}-{case[2]}")
@fuzzed
@given(data=st.data())
def test_questions_about_images(
    case: tuple[str, Any, str], data: st.DataObject, visual: dict[Any, Path], tmp_path: Path
) -> None:
    task, write, name = case
    folder = tmp_path / str(len(list(tmp_path.iterdir())))  # images are read once by name
    folder.symlink_to(visual[write])
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(data.draw(damaged(content)))
    try:
        result_or_error(lambda: find_task(task).read(str(folder), "train"), str(folder))
    finally:
        path.write_bytes(content)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("format", FORMATS, ids=lambda each: f"{each.task}-{each.file}")
def test_texts_that_are_no_files(format: Format, kind: str, tmp_path: Path) -> None:
    """Nobody waits for a pipe, and no device is read to its end."""
    path = format.write(tmp_path, b"")
    path.unlink()
    SPECIAL[kind](path)
    assert read_and_encode(format, tmp_path, str(path.parent)) is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("case", VISUAL_FORMATS, ids=lambda case: f"{case[0]}-{case[2]}")
def test_questions_and_images_that_are_no_files(
    case: tuple[str, Any, str], kind: str, tmp_path: Path
) -> None:
    task, write, name = case
    folder = write(tmp_path / "data")
    (folder / name).unlink()
    SPECIAL[kind](folder / name)
    read = find_task(task).read
    assert result_or_error(lambda: read(str(folder), "train"), str(folder)) is None


SIZES = st.one_of(
    st.none(), st.sampled_from([0, 1, 511, 2**20, 2**33, 2**40, 2**63, 2**64, 2**90, -1, -(2**70)])
)
MEMBERS = st.builds(
    dict,
    name=st.sampled_from(["a.png", "b.jpg", "c/a.png", "../b.png", "/a.png", "", "x" * 300, "."]),
    type=st.sampled_from([bytes([each]) for each in b"01234567xgLKSVDMNAZ\0"]),
    linkname=st.sampled_from(["", "a.png", "b.jpg", "gone", "../../etc/passwd", "/dev/zero"]),
    size=SIZES,
    content=st.sampled_from([b"", png(random_image(0, 4, 4)), b"junk" * 200]),
    pax=st.dictionaries(
        st.sampled_from(["path", "linkpath", "size", "GNU.sparse.size", "GNU.sparse.map", "hdr"]),
        st.sampled_from(["", "a.png", "9" * 30, "-1", "0,8", "nan"]),
        max_size=2,
    ),
)


def member_bytes(values: dict[str, Any], format: int) -> bytes:
    """A member of a tar file, whatever its header says of it."""
    info = tarfile.TarInfo(values["name"])
    info.type, info.linkname, content = values["type"], values["linkname"], values["content"]
    info.size = len(content) if values["size"] is None else values["size"]
    info.pax_headers = values["pax"]
    try:
        head = info.tobuf(format, errors="surrogateescape")
    except (ValueError, OverflowError):  # a number that has no place in this format
        return b""
    return head + content + bytes(-len(content) % 512)


@pytest.mark.timeout(3600)
@fuzzed
@given(
    members=st.lists(MEMBERS, max_size=4),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    packed=st.booleans(),
)
def test_archives_of_any_members(
    members: list[dict[str, Any]], format: int, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / ("images.tar.gz" if packed else "images.tar")
    content = b"".join(member_bytes(each, format) for each in members) + bytes(1024)
    path.write_bytes(gzip.compress(content) if packed else content)
    result_or_error(lambda: image_names(path), path.name)
    result_or_error(lambda: read_images(path, ("a", "b"), (4, 4)), path.name)


@fuzzed
@given(header=st.lists(st.sampled_from(["sentence1", "sentence2", "label", "id", ""]), max_size=6))
def test_tables_with_any_columns(header: list[str], tmp_path: Path) -> None:
    row = ["0" if name == "label" else f"text {i}" for i, name in enumerate(header)]
    (tmp_path / "train.tsv").write_text("\t".join(header) + "\n" + "\t".join(row) + "\n")
    part = result_or_error(lambda: find_task("mrpc").read(str(tmp_path), "train"), "train.tsv")
    whole = {"sentence1", "sentence2", "label"} <= set(header) and len(set(header)) == len(header)
    assert (part is not None) == whole


@fuzzed
@given(
    unit=st.sampled_from([b"\0", b"a", b"a\tb\n", b'{"sentence1": 1}\n', b"["]),
    times=st.integers(0, 2**20),
    name=st.sampled_from(["train.tsv.gz", "train.jsonl.gz", "train.json.gz"]),
)
def test_gzipped_files_that_expand(unit: bytes, times: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(unit * times))
    task = "squad1.1" if name == "train.json.gz" else "mrpc"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(data_files, "ALWAYS_ALLOWED", 2**12)
        read = find_task(task).read
        assert result_or_error(lambda: read(str(tmp_path), "train"), str(tmp_path)) is None
    path.unlink()


VECTORS = b"the 0.1 0.2 0.3\ncat 1 2 3\n"


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz", "vectors.npz"])
@fuzzed
@given(data=st.data())
def test_vectors_of_words(name: str, data: st.DataObject, tmp_path: Path) -> None:
    content = gzip.compress(VECTORS, mtime=0) if name.endswith("gz") else VECTORS
    (tmp_path / name).write_bytes(data.draw(damaged(content)))
    result_or_error(lambda: read_vectors(tmp_path / name), name)


# What fuzzing has found.


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl"])
def test_a_mark_of_byte_order_is_not_part_of_the_text(name: str, tmp_path: Path) -> None:
    content = tsv(PAIRS) if name.endswith("tsv") else jsonl(PAIRS)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
    assert set(read_rows(tmp_path / name)[0].values) == {"sentence1", "sentence2", "label"}


def test_nothing_is_left_of_a_folder(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    for task in ("mrpc", "squad1.1", "nli", "translation", "easy-vqa", "daquar", "vqa2"):
        read = find_task(task).read
        assert result_or_error(lambda read=read: read(str(tmp_path), "train")) is None


@pytest.mark.parametrize(
    "value", ["[" * 10_000, "9" * 5000, r'"\ud800"', "NaN" * 3], ids=["deep", "long", "half", "no"]
)
@pytest.mark.parametrize("task", ["mrpc", "squad1.1"])
def test_json_that_nothing_can_read(task: str, value: str, tmp_path: Path) -> None:
    name = "train.json" if task == "squad1.1" else "train.jsonl"
    (tmp_path / name).write_text(f'{{"sentence1": {value}}}')
    with pytest.raises(DataError, match=name):
        find_task(task).read(str(tmp_path), "train")
