"""Features in an LMDB or an HDF5 file, and what is refused of them."""

import base64
import io
import multiprocessing
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch

from babn.errors import DataError, MissingExtraError
from babn_paper.tasks.vqa import VQA2
from babn_paper.tasks.vqa_data import VqaPart
from babn_paper.tasks.vqa_features import FeatureFiles
from babn_paper.tasks.vqa_stores import Lmdb, image_key, read_arrays
from vqa_cases import png, random_image, write_vqa2

pytestmark = pytest.mark.thorough

DOCUMENT = Path(__file__).parents[3] / "docs" / "vqa.md"

Write = Callable[[np.ndarray], bytes]


def npz(x: np.ndarray, turned: bool = False) -> bytes:
    file = io.BytesIO()
    boxes = np.tile([0.0, 0, 5, 5], (len(x), 1))
    np.savez_compressed(file, x=x.T if turned else x, bbox=boxes)
    return file.getvalue()


def npy(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def features(image: int, size: int = 2048) -> np.ndarray:
    return np.random.default_rng(image).random((10 + image, size), dtype=np.float32)


def write_lmdb(path: Path, values: Mapping[str, bytes], subdir: bool = True) -> Path:
    with (
        lmdb.open(str(path), map_size=2**24, subdir=subdir) as target,
        target.begin(write=True) as writing,
    ):
        for key, value in values.items():
            writing.put(key.encode(), value)
    return path


def values(write: Write, key: str = "{}") -> dict[str, bytes]:
    return {key.format(image): write(features(image)) for image in range(3)}


def with_lmdb(folder: Path, found: Mapping[str, bytes], subdir: bool = True) -> Path:
    """VQA-v2 whose training features are in an LMDB in place of files."""
    write_vqa2(folder)
    shutil.rmtree(folder / "features" / "train2014")
    write_lmdb(folder / "features" / "train2014.lmdb", found, subdir)
    return folder


def batch_of(part: VqaPart) -> dict[str, torch.Tensor]:
    return part.images.lookup(torch.tensor([2, 0]), 100).batch(torch.tensor([0, 1]))


@pytest.mark.parametrize("subdir", [True, False])
@pytest.mark.parametrize(
    ("write", "key"),
    [
        (npz, "{}"),
        (npy, "{:012d}"),
        (lambda x: npy(x.astype(np.float16)), "train2014/COCO_train2014_{:012d}"),
        (lambda x: npz(x, turned=True), "coco_train2014_{:012d}.npz"),
    ],
)
def test_an_lmdb_holds_the_features_of_all_images(
    tmp_path: Path, write: Write, key: str, subdir: bool
) -> None:
    further = {"keys": pickle.dumps([b"0"])}  # as MMF has it; nobody asks for it
    part = VQA2.read(str(with_lmdb(tmp_path, values(write, key) | further, subdir)), "train")
    batch = batch_of(part)

    assert batch["region_mask"].sum(1).tolist() == [12, 10]
    np.testing.assert_allclose(batch["regions"][0], features(2), atol=1e-3)
    np.testing.assert_allclose(batch["regions"][1, :10], features(0), atol=1e-3)
    boxes = part.images.boxes(1)
    assert (boxes is None) == (write(features(0))[:2] != b"PK")
    assert boxes is None or boxes.shape == (11, 4)


def test_one_lmdb_may_hold_both_splits(tmp_path: Path) -> None:
    folder = write_vqa2(tmp_path)
    shutil.rmtree(folder / "features")
    write_lmdb(folder / "features.lmdb", values(npz))
    (folder / "images" / "val2014").mkdir(parents=True)
    image = folder / "images" / "val2014" / "COCO_val2014_000000000001.png"
    image.write_bytes(png(random_image(1)))
    train, test = (VQA2.read(str(folder), part) for part in ("train", "test"))

    assert torch.equal(batch_of(train)["regions"], batch_of(test)["regions"])
    picture = test.images.picture(1)
    assert picture is not None and np.array_equal(picture, random_image(1))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pickle.dumps({"features": features(1)}), "value of '1' is a pickle, .*docs/vqa.md"),
        (npz(features(1))[:-500], "value of '1' is truncated"),
        (features(1).tobytes(), "value of '1' is neither an .npz nor an .npy"),
        (b"", "value of '1' is neither"),
        (None, "lacks the features of 1 of 3 images, such as 'COCO_train2014_000000000001'"),
    ],
)
def test_bad_values_are_refused_before_training(
    tmp_path: Path, value: bytes | None, message: str
) -> None:
    found = {key: each for key, each in values(npz).items() if key != "1"}
    folder = with_lmdb(tmp_path, found if value is None else found | {"1": value})
    with pytest.raises(DataError, match=message):
        VQA2.read(str(folder), "train")


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "harm",)

    store = Lmdb(write_lmdb(tmp_path / "a.lmdb", {"1": pickle.dumps(Harm())}))
    with pytest.raises(DataError, match="pickle"):
        store.check(["1"])
    with pytest.raises(ValueError, match="pickle"):
        store.arrays("1")
    assert not (tmp_path / "harm").exists()


def test_damage_that_shows_later_counts_as_zeros(tmp_path: Path) -> None:
    damaged = bytearray(npz(features(1)))
    damaged[200:300] = bytes(100)
    part = VQA2.read(str(with_lmdb(tmp_path, values(npz) | {"1": bytes(damaged)})), "train")
    assert isinstance(part.images, FeatureFiles)
    with pytest.warns(UserWarning, match="count as zeros"):
        found = part.images.read(1)
    assert found.shape == (1, 2048) and not found.any()


def test_every_damage_is_one_kind_of_error() -> None:
    """Bytes changed at random: features are read, or a ValueError is raised, and nothing else."""
    chance = random.Random(0)
    for whole in (npz(features(0, 16)), npy(features(0, 16))):
        for _ in range(500):
            content = bytearray(whole)
            for _ in range(chance.choice((1, 4, 40))):
                content[chance.randrange(len(content))] = chance.randrange(256)
            try:
                read_arrays(io.BytesIO(content))
            except ValueError as error:
                assert str(error)


def test_files_that_are_no_lmdb_are_refused(tmp_path: Path) -> None:
    whole = write_lmdb(tmp_path / "whole.lmdb", values(npz), subdir=False)
    content = whole.read_bytes()
    for name, some in (("cut", content[:-8192]), ("other", b"x" * 9000), ("empty", b"")):
        path = tmp_path / f"{name}.lmdb"
        path.write_bytes(some)
        with pytest.raises(DataError, match=f"{name}.lmdb .*Download it again"):
            Lmdb(path).names()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match=r"needs lmdb: pip install 'babn\[vqa\]'"):
        Lmdb(tmp_path / "some.lmdb").names()


def _sum(files: FeatureFiles, answers: "multiprocessing.Queue[float]") -> None:
    answers.put(float(sum(files.read(image).sum() for image in range(3))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_several_processes_read_at_once(tmp_path: Path, way: str) -> None:
    path = write_lmdb(tmp_path / "features.lmdb", values(npz))
    (path / "lock.mdb").unlink()
    files = FeatureFiles(path, ("0", "1", "2"))
    files.check()  # opened here already, before there are others
    context = multiprocessing.get_context(way)
    answers: multiprocessing.Queue[float] = context.Queue()
    readers = [context.Process(target=_sum, args=(files, answers)) for _ in range(2)]
    for reader in readers:
        reader.start()
    found = [answers.get(timeout=120) for _ in readers]
    for reader in readers:
        reader.join()
    expected = sum(features(image).sum() for image in range(3))
    assert found == pytest.approx([expected] * 2, rel=1e-5)
    assert not (path / "lock.mdb").exists()  # nothing is written beside the data


def test_pickled_databases_can_be_converted(tmp_path: Path) -> None:
    """By the program in the documentation, from the forms of MMF and of ViLBERT."""
    x, boxes = features(1, 16), np.ones((11, 4), dtype=np.float32)
    encoded = {
        "features": base64.b64encode(x.tobytes()),
        "boxes": base64.b64encode(boxes.tobytes()),
        "num_boxes": "11",
    }
    pickled = {
        "keys": pickle.dumps([b"1"]),
        "1": pickle.dumps({"features": x, "bbox": boxes, "num_boxes": 11}),
        "2": pickle.dumps(encoded),
        "3": pickle.dumps({"features": x}),
    }
    write_lmdb(tmp_path / "old.lmdb", pickled)
    code = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Callable[[str, str], None]] = {}
    exec(compile(code, "docs/vqa.md", "exec"), names)
    names["convert"](str(tmp_path / "old.lmdb"), str(tmp_path / "new.lmdb"))

    store = Lmdb(tmp_path / "new.lmdb")
    assert store.names() == ["1", "2", "3"]
    store.check(store.names())
    for key in ("1", "2", "3"):
        found, corners = store.arrays(key)
        np.testing.assert_array_equal(found, x)
        assert corners is None if key == "3" else np.array_equal(corners, boxes)  # type: ignore[arg-type]


def test_an_hdf5_file_holds_the_features_of_all_images(tmp_path: Path) -> None:
    import h5py

    folder = write_vqa2(tmp_path)
    shutil.rmtree(folder / "features" / "train2014")
    path = folder / "features" / "train2014.h5"
    with h5py.File(path, "w") as file:
        for image in range(3):
            file[str(image)] = features(image)
    batch = batch_of(VQA2.read(str(folder), "train"))
    np.testing.assert_array_equal(batch["regions"][0], features(2))
    with h5py.File(path, "a") as file:
        del file["1"]
        file.create_group("1")
    with pytest.raises(DataError, match="'1' is no table"):
        VQA2.read(str(folder), "train")
    path.write_bytes(b"no")
    with pytest.raises(DataError, match=r"train2014.h5 cannot be read"):
        VQA2.read(str(folder), "train")


def test_keys_name_images_in_several_ways() -> None:
    names = ["9", "000000000009", "COCO_val2014_000000000009.jpg.npz", "x/coco_a_000000000009.npy"]
    assert {image_key(name) for name in names} == {"9"}
    assert [image_key(name) for name in ("image12", "0012", "a.b.npz")] == [
        "image12",
        "0012",
        "a.b",
    ]


@pytest.mark.parametrize("subdir", [True, False])
def test_an_lmdb_that_was_replaced_is_opened_anew(tmp_path: Path, subdir: bool) -> None:
    folder = with_lmdb(tmp_path / "data", values(npz), subdir)
    before = VQA2.read(str(folder), "train")
    old = batch_of(before)["regions"]
    path = folder / "features" / "train2014.lmdb"
    shutil.rmtree(path) if subdir else path.unlink()
    new = {str(i): npz(features(i) + 1) for i in range(3)}
    write_lmdb(tmp_path / "new", new, subdir).rename(path)
    after = VQA2.read(str(folder), "train")
    assert after.fingerprint != before.fingerprint
    torch.testing.assert_close(batch_of(after)["regions"][0], old[0] + 1)
