"""Attention maps over loaders and texts, and the methods of maps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_prediction import bart, converted, words
from torch.utils.data import DataLoader

import babn
from babn import AttentionMap
from babn.errors import ConfigError, FormatError, SamplesError
from babn.text import word_tokenizer

TEXTS = ["wake me at six", "play", "wake me up at six please", "a song", "play a song at six"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(TEXTS * 2)


@pytest.fixture
def reader(tokenizer: Any) -> Any:
    return converted(babn.BeliefConfig(), vocab_size=len(tokenizer))


def test_a_loader_gives_what_one_batch_gives() -> None:
    model, batch = converted(), words()
    whole = babn.attention_maps(model, batch)
    rows = [{n: x[i] for n, x in batch.items()} | {"labels": torch.tensor(i % 3)} for i in range(4)]
    found = babn.attention_maps(model, DataLoader(rows, batch_size=3), progress=False)
    assert [m.name for m in found] == [m.name for m in whole]
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.relative_std, other.relative_std)
        torch.testing.assert_close(one.variable_relative_std, other.variable_relative_std)


def test_maps_of_texts_are_in_their_order_and_padded(reader: Any, tokenizer: Any) -> None:
    settings = {"tokenizer": tokenizer, "batch_size": 2, "progress": False}
    maps = babn.attention_maps(reader, TEXTS, **settings)
    longest = maps[0].mean.shape[-1]
    for i, text in enumerate(TEXTS):
        alone = babn.attention_maps(reader, dict(tokenizer([text], return_tensors="pt")))
        size = alone[0].mean.shape[-1]
        for one, other in zip(maps, alone, strict=True):
            assert one.mean.shape == (5, 4, longest, longest)
            torch.testing.assert_close(one[i].mean[..., :size, :size], other.mean)
            assert not one[i].mean[..., size:].any()


def test_pairs_of_texts_have_maps(reader: Any, tokenizer: Any) -> None:
    pairs = [("play", "a song"), ("wake me", "at six")]
    batch = tokenizer(["play", "wake me"], ["a song", "at six"], padding=True, return_tensors="pt")
    found = babn.attention_maps(reader, pairs, tokenizer=tokenizer, progress=False)
    torch.testing.assert_close(found[1].mean, babn.attention_maps(reader, dict(batch))[1].mean)


def test_labels_of_an_encoder_decoder_are_its_inputs() -> None:
    model = babn.convert(bart(), babn.BeliefConfig())
    batch = words()
    maps = babn.attention_maps(model, {**batch, "labels": batch["input_ids"][:, :3].contiguous()})
    assert {m.mean.shape[-2:] for m in maps} == {(7, 7), (3, 3), (3, 7)}


def test_a_bar_is_shown_for_several_batches_only(
    reader: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for function in (babn.attention_maps, babn.predict):
        function(reader, TEXTS, tokenizer=tokenizer)
        assert capsys.readouterr().err == ""
        function(reader, TEXTS, tokenizer=tokenizer, batch_size=2)
        assert "0/3" in capsys.readouterr().err
        function(reader, TEXTS, tokenizer=tokenizer, batch_size=2, progress=False)
        assert capsys.readouterr().err == ""


def test_empty_data_is_refused(reader: Any) -> None:
    with pytest.raises(SamplesError, match="no batches"):
        babn.attention_maps(reader, iter(()), progress=False)


def test_parts_of_a_map() -> None:
    found = babn.attention_maps(converted(), words())[0]
    assert len(found) == 4 and len(found[1:3]) == 2 and len(found[-1]) == 1
    assert torch.equal(found[2].mean, found.mean[2:3])
    mask = torch.tensor([True, False, True, False])
    assert torch.equal(found[mask].relative_std, found.relative_std[mask])
    assert [len(one) for one in found] == [1] * 4
    with pytest.raises(IndexError, match="index 4 is out of range for 4 examples"):
        found[4]
    assert found.to("cpu").mean.device.type == "cpu"
    shown = "AttentionMap(bert.encoder.layer.*.attention.self/0, 4 examples, 4 heads, 7 queries, 7"
    assert repr(found).startswith(shown) and "\n" not in repr(found)


def test_maps_of_different_lengths_are_joined() -> None:
    first, second = torch.rand(2, 3, 4, 5), torch.rand(1, 3, 6, 2)
    joined = AttentionMap.cat([AttentionMap("a/0", x, x, x) for x in (first, second)])
    assert joined.mean.shape == (3, 3, 6, 5)
    assert torch.equal(joined.mean[:2, :, :4], first) and not joined.mean[:2, :, 4:].any()
    assert torch.equal(joined.variable_relative_std[2:, ..., :2], second)
    other = AttentionMap("b/0", first, first, first)
    with pytest.raises(ConfigError, match="a/0 with 3 heads, b/0 with 3 heads"):
        AttentionMap.cat([joined, other])


def test_maps_are_saved_and_loaded(tmp_path: Path) -> None:
    found = babn.attention_maps(converted(), words())[1]
    found.save(tmp_path / "map.safetensors")
    again = AttentionMap.load(tmp_path / "map.safetensors")
    assert again.name == found.name and torch.equal(again.mean, found.mean)
    assert torch.equal(again.variable_relative_std, found.variable_relative_std)
    babn.Prediction(torch.randn(2, 3, 4)).save(tmp_path / "other.safetensors")
    with pytest.raises(FormatError, match="holds no attention map"):
        AttentionMap.load(tmp_path / "other.safetensors")


def test_a_data_frame_has_a_row_for_each_weight() -> None:
    found = babn.attention_maps(converted(), words())[0]
    frame = found.to_pandas()
    assert len(frame) == int((found.mean > 0).sum()) == 4 * 7 * (3 * 7 + 5)
    row = frame.iloc[40]
    place = tuple(int(row[name]) for name in ("example", "head", "query", "key"))
    assert row["mean"] == pytest.approx(float(found.mean[place]))
    assert row["relative_std"] == pytest.approx(float(found.relative_std[place]))
