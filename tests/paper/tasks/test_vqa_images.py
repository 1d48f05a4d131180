"""Images in folders and tar files: what is decoded, what counts as changed, what is refused."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from babn.errors import DataError
from babn_paper import data_files
from babn_paper.tasks import vqa_images
from babn_paper.tasks.vqa import DAQUAR, EASY, VQA2
from babn_paper.tasks.vqa_data import VqaPart
from babn_paper.tasks.vqa_features import FeatureFiles
from babn_paper.tasks.vqa_images import contents, image_names, read_image, read_images
from vqa_cases import (
    png,
    random_image,
    write_daquar,
    write_easy,
    write_easy_package,
    write_vqa2,
)

pytestmark = pytest.mark.thorough

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\n%%EOF\n"


def encoded(format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(random_image(0, 30, 40)).save(file, format)
    return file.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("content", [EPS, *map(encoded, ("GIF", "BMP", "TIFF", "PPM", "WEBP"))])
@pytest.mark.parametrize("place", ["folder", "tar"])
def test_only_jpeg_and_png_are_decoded_whatever_a_file_is_called(
    content: bytes, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    source = tmp_path / "images"
    source.mkdir()
    (source / "a.jpg").write_bytes(content)
    if place == "tar":
        with tarfile.open(tmp_path / "images.tar", "w") as archive:
            archive.add(source / "a.jpg", "a.jpg")
        source = tmp_path / "images.tar"
    with pytest.raises(DataError, match=r"a cannot be read: .* Give a JPEG or PNG file") as error:
        read_images(source, ("a",), (8, 8))
    assert "\n" not in str(error.value)


def test_single_images_are_decoded_as_strictly(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(EPS)
    with pytest.raises(DataError, match=r"a\.jpg cannot be read"):
        read_image(tmp_path / "a.jpg")
    os.mkfifo(tmp_path / "b.jpg")
    with pytest.raises(DataError, match="not a regular file"):
        read_image(tmp_path / "b.jpg")


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_what_is_documented_is_decoded_under_either_name(format: str, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.png", "c.JPEG"):
        (tmp_path / name).write_bytes(encoded(format))
    pixels, _ = read_images(tmp_path, ("a", "b", "c"), (30, 40))
    assert np.array_equal(pixels[0], pixels[1]) and np.array_equal(pixels[0], pixels[2])


def change_tar(folder: Path) -> None:
    with tarfile.open(folder / "images_small.tar", "w") as archive:
        for i in range(3):
            add(archive, f"image{i}.png", png(random_image(i + (i == 1) * 50, 30, 40)))


def change_features(folder: Path) -> None:
    path = next((folder / "features" / "val2014").glob("*1.jpg.npz"))
    with np.load(path) as found:
        x, boxes = found["x"], found["bbox"]
    x[1000, 5] += 1
    np.savez(path, x=x, bbox=boxes)


def change_arrays(folder: Path) -> None:
    with np.load(folder / "test_images.npz") as found:
        ids, images = found["ids"], found["images"]
    images[3, 2, 1, 0] ^= 1
    np.savez(folder / "test_images.npz", ids=ids, images=images)


CHANGES: dict[str, tuple[object, Callable[[Path], Path], Callable[[Path], None]]] = {
    "package": (
        EASY,
        write_easy_package,
        lambda folder: (folder / "test/images/1.png").write_bytes(png(random_image(7))),
    ),
    "arrays": (EASY, write_easy, change_arrays),
    "tar": (DAQUAR, write_daquar, change_tar),
    "features": (VQA2, write_vqa2, change_features),
}


def values(part: VqaPart) -> Any:
    images: Any = part.images
    return images.read(1) if isinstance(images, FeatureFiles) else images.pixels


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_image_changes_the_fingerprint_and_what_is_read(
    name: str, tmp_path: Path
) -> None:
    task, write, change = CHANGES[name]
    folder = write(tmp_path / "data")
    before = task.read(str(folder), "test")  # type: ignore[attr-defined]
    again = task.read(str(folder), "test")  # type: ignore[attr-defined]
    assert again.fingerprint == before.fingerprint
    old = values(before)
    if name != "features":
        assert values(again) is old  # from the cache of this process
    change(folder)
    after = task.read(str(folder), "test")  # type: ignore[attr-defined]
    assert after.fingerprint != before.fingerprint
    assert not np.array_equal(values(after), old)


def test_a_copy_of_the_data_has_the_same_fingerprint(tmp_path: Path) -> None:
    for task, write in ((DAQUAR, write_daquar), (EASY, write_easy_package)):
        folders = [write(tmp_path / f"{task.name}{i}") for i in range(2)]
        for path in folders[1].rglob("*"):
            os.utime(path, ns=(0, 10**18))
        marks = {task.read(str(folder), "test").fingerprint for folder in folders}
        assert len(marks) == 1


def test_the_answers_to_choose_from_count(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    marks = {VQA2.read(str(folder), "train").fingerprint}
    for answers in ('["yes", "no"]', '["no", "yes"]'):
        (folder / "answer_dict.json").write_text(answers)
        marks.add(VQA2.read(str(folder), "train").fingerprint)
    assert len(marks) == 3


LINK = {"type": tarfile.SYMTYPE}

BROKEN: dict[str, tuple[Callable[[tarfile.TarFile], None], str]] = {
    "link to nothing": (
        lambda archive: add(archive, "a.png", linkname="gone.png", **LINK),
        "a.png is a link to a file outside",
    ),
    "link to itself": (
        lambda archive: add(archive, "a.png", linkname="a.png", **LINK),
        "a.png is a link to a file outside",
    ),
    "hard link to nothing": (
        lambda archive: add(archive, "a.png", linkname="b.png", type=tarfile.LNKTYPE),
        "a.png is a link to a file outside",
    ),
    "link out of the archive": (
        lambda archive: add(archive, "a.png", linkname="/etc/hostname", **LINK),
        "a.png is a link to a file outside",
    ),
    "a pipe": (
        lambda archive: add(archive, "a.png", type=tarfile.FIFOTYPE),
        "a.png is not a regular file",
    ),
    "a folder": (
        lambda archive: add(archive, "a.png", type=tarfile.DIRTYPE),
        "a.png is not a regular file",
    ),
    "two of a name": (
        lambda archive: [add(archive, f"{n}/a.png", png(random_image(0))) for n in (1, 2)] and None,
        "several images 'a'",
    ),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_image_in_a_tar_file_is_one_error(name: str, tmp_path: Path) -> None:
    write, message = BROKEN[name]
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as archive:
        write(archive)
    with pytest.raises(DataError, match=message) as error:
        read_images(path, ("a",), (8, 8))
    assert "\n" not in str(error.value)
    assert image_names(path) == ["a"]


def test_links_within_a_tar_file_are_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        add(archive, "b.png", png(random_image(0)))
        add(archive, "a.png", linkname="b.png", **LINK)
    pixels, _ = read_images(tmp_path / "images.tar", ("a", "b"), (64, 64))
    assert np.array_equal(pixels[0], pixels[1])


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [2**30, 2**40, 2**62, 2**64, 2**80])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_absurd_sizes_in_a_tar_file_are_one_error(size: int, kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.png")
    info.size, info.type = size, kind
    path = tmp_path / "images.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\x01" * 1024)
    with pytest.raises(DataError, match=r"images\.tar (is damaged|lacks)") as error:
        read_images(path, ("a",), (8, 8))
    assert "\n" not in str(error.value)


def test_an_image_key_absurd_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vqa_images, "LARGEST", 2**16)
    (tmp_path / "a.png").write_bytes(b"\0" * 2**17)
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(tmp_path / "a.png", "a.png")
    for source in (tmp_path, tmp_path / "images.tar"):
        with pytest.raises(DataError, match=r"a\.png has more than 65536 bytes"):
            list(contents(source, {"a"}))


@pytest.mark.timeout(20)
def test_a_named_pipe_among_images_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(png(random_image(0)))
    assert image_names(tmp_path) == ["b"]
    with pytest.raises(DataError, match="lacks 1 of 2 images, such as 'a'"):
        read_images(tmp_path, ("a", "b"), (8, 8))
    os.mkfifo(tmp_path / "images.tar")
    with pytest.raises(DataError, match="not a regular file"):
        read_images(tmp_path / "images.tar", ("a",), (8, 8))
    with pytest.raises(DataError, match="does not exist"):
        read_images(tmp_path / "none", ("a",), (8, 8))


def test_a_gzipped_tar_file_is_read_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_daquar(tmp_path)
    packed = tmp_path / "images.tar.gz"
    packed.write_bytes(gzip.compress((folder / "images_small.tar").read_bytes()))
    assert image_names(packed) == ["image0", "image1", "image2"]
    with tarfile.open(packed, "w:gz") as archive:
        add(archive, "a.png", b"\0" * 2**22)
    monkeypatch.setattr(data_files, "ALWAYS_ALLOWED", 2**16)
    with pytest.raises(DataError, match="over 100 times its size"):
        list(contents(packed, {"a"}))
