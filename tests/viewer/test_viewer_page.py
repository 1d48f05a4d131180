"""The page's data against the model, and escaping of hostile texts."""

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import (
    TEXT,
    batch_of,
    chooser,
    classifier,
    data_of,
    html_of,
    language_model,
    tokenizer,
    translator,
    unpack,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import babn
from babn.evaluation.html_pages import marker
from babn.viewer.column import sampled_weights
from babn.viewer.document import AUTHOR, page, script_json
from babn.viewer.texts import JOINED, SPECIAL, TextError, Word, prepare, words_of

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "{{SCRIPT}} {{DATA}} {{",
    "a\x00b",
    "half \ud800 of a character",
    "مرحبا بالعالم",
    "👩‍👩‍👧 river",
    "line\u2028and\u2029paragraph & <!--",
]


@pytest.fixture(scope="module")
def model() -> Any:
    return classifier()


def column(model: Any, text: Any = TEXT, **settings: Any) -> dict[str, Any]:
    return data_of(html_of(model, text, **settings))["columns"][0]


def close(found: np.ndarray, expected: torch.Tensor, tolerance: float = 0.0045) -> bool:
    full = torch.cat([expected.mean(0, keepdim=True), expected])
    return bool((torch.tensor(found) - full).abs().max() < tolerance)


def test_numbers_are_those_of_attention(model: Any) -> None:
    found = column(model)
    maps = babn.attention_maps(model, batch_of(model))
    assert len(found["chains"]) == 1
    for i, expected in enumerate(maps):
        planes = unpack(found["chains"][0], i, found["drawn"])
        assert close(planes["mean"], expected.mean[0])
        assert close(
            planes["std"], expected.relative_std[0], found["chains"][0]["layers"][i]["std"] / 500
        )


def test_samples_are_those_of_predict(model: Any) -> None:
    """Sample i has the weights with which the model computes prediction i."""
    found, batch = column(model), batch_of(model)
    answer = babn.predict(model, batch, seed=0)
    assert np.allclose(found["prediction"]["samples"], answer.sample_probs[:, 0], atol=1e-4)
    weights = sampled_weights(model, batch, seed=1)
    with babn.sampling(model, seed=1):
        again = model(**batch, output_attentions=True).attentions
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    first, second = (unpack(found["chains"][0], 0, found["drawn"])[f"sample {i}"] for i in (0, 1))
    assert abs(first - second).max() > 0.01


def test_drawn_samples_follow_the_seed(model: Any) -> None:
    blocks = [column(model, seed=seed)["chains"][0]["layers"][1]["data"] for seed in (0, 0, 1)]
    assert blocks[0] == blocks[1] != blocks[2]


def test_predictions_have_names_and_uncertainty(model: Any) -> None:
    answer = column(model)["prediction"]
    assert answer["labels"] == ["yes", "<b>no</b>", "perhaps"]
    assert sum(answer["mean"]) == pytest.approx(1, abs=1e-4)
    assert len(answer["samples"]) == 10
    assert 0 <= answer["mutual_information"] <= answer["entropy"] <= np.log(3) + 1e-5


def test_models_without_classes_show_attention_only() -> None:
    found = column(language_model())
    assert found["prediction"] is None
    planes = unpack(found["chains"][0], 0, found["drawn"])
    assert np.triu(planes["mean"], 1).max() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("text", [TEXT, (TEXT, "we lent a sum")])
def test_chains_of_an_encoder_decoder(text: Any) -> None:
    found = column(translator(), text)
    sides = [(c["title"], c["queries"], c["keys"]) for c in found["chains"]]
    assert sorted(sides) == [
        ("Cross-attention, decoder to encoder", "output", "words"),
        ("Decoder self-attention", "output", "output"),
        ("Encoder self-attention", "words", "words"),
    ]
    for chain in found["chains"]:
        assert chain["size"] == [len(found[chain["queries"]]), len(found[chain["keys"]])]
    if isinstance(text, tuple):
        assert [word for word, _ in found["output"]][2:] == ["we", "lent", "a", "sum"]


def test_pairs_are_read_together(model: Any) -> None:
    words = [word for word, _ in column(model, ("the river", "the bank"))["words"]]
    assert words == ["[CLS]", "the", "river", "[SEP]", "the", "bank", "[SEP]"]


def test_two_texts_are_two_columns(model: Any) -> None:
    texts = data_of(html_of(model, [TEXT, "we lent a sum"]))["columns"]
    assert [c["text"] for c in texts] == [[TEXT], ["we lent a sum"]]


@pytest.mark.parametrize("texts", [[], ["a", "b", "c"]])
def test_other_numbers_of_columns_are_refused(model: Any, texts: list[str]) -> None:
    with pytest.raises(TextError, match="Give one or two"):
        html_of(model, texts)


@pytest.mark.parametrize("text", ["", " \n", ("a", "")])
def test_empty_texts_are_refused(model: Any, text: Any) -> None:
    with pytest.raises(TextError, match="empty"):
        html_of(model, text)


def test_long_texts_are_refused_with_the_limit(model: Any) -> None:
    with pytest.raises(TextError, match="102 tokens; at most 96"):
        html_of(model, "river " * 100)


def test_the_limit_holds_for_the_text_of_a_decoder_too() -> None:
    with pytest.raises(TextError, match="at most 20"):
        prepare(translator(), tokenizer(), ("the river", "river " * 30), most=20)


def test_plain_models_are_refused() -> None:
    with pytest.raises(babn.errors.NotConvertedError, match=r"babn\.convert"):
        html_of(babn.revert(classifier()), TEXT)


def test_words_are_joined_dimmed_or_as_they_are() -> None:
    made = tokenizer()
    ids = made("closings. zebra")["input_ids"]
    assert made.convert_ids_to_tokens(ids)[-2] == "[UNK]"
    assert words_of(made, made.convert_tokens_to_ids(["[CLS]", "bank", "##ing", ".", "[UNK]"])) == [
        Word("[CLS]", SPECIAL),
        Word("bank"),
        Word("ing", JOINED),
        Word("."),
        Word("[UNK]"),
    ]


@pytest.mark.parametrize(
    ("before", "decoder"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
        (pre_tokenizers.Metaspace(), decoders.Metaspace()),
    ],
    ids=["bytes", "sentence pieces"],
)
def test_words_of_other_tokenizers(before: Any, decoder: Any) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = before, decoder
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<s>"], show_progress=False)
    made.train_from_iterator(["the river bank closing lending"] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    ids = [fast.bos_token_id, *fast("the river banking")["input_ids"]]
    assert words_of(fast, ids) == [
        Word("<s>", SPECIAL),
        Word("the"),
        Word("river"),
        Word("bank"),
        Word("ing", JOINED),
    ]


def test_values_have_a_spread_but_no_entropy() -> None:
    model = classifier(problem_type="regression")
    babn.set_residual(model, 100.0)
    answer = column(model)["prediction"]
    assert answer["kind"] == "identity" and max(answer["std"]) < 100
    assert "entropy" not in answer
    assert all(std > 0 for std in answer["std"])


def test_one_choice_of_a_multiple_choice_model_has_a_score() -> None:
    found = data_of(html_of(chooser(), [("the river", "bank")]))["columns"][0]
    assert found["prediction"]["labels"] == ["score of the choice"]
    assert found["prediction"]["kind"] == "identity"


class Scripts(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") or name in ("style", "src") for name, _ in attrs)
        self.tags.append(tag)


@pytest.mark.thorough
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_change_no_markup(model: Any, text: str) -> None:
    made = html_of(model, text)
    assert Scripts(made).tags == Scripts(html_of(model, "the")).tags
    shown = data_of(made)["columns"][0]["text"][0]
    assert shown == text.replace("\ud800", "\ufffd")


def test_json_is_safe_inside_a_script() -> None:
    data = {"text": HOSTILE, "number": 0.25}
    text = script_json(data)
    assert text.isascii()
    assert not re.search(r"[<>&\x00]", text)
    assert json.loads(text) == data


def test_policy_allows_this_script_and_style_alone() -> None:
    made = page({"columns": []})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    assert "unsafe" not in policy[1] and "default-src 'none'" in policy[1]
    for tag in ("script", "style"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", made, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert "connect-src 'none'" in policy[1]


def test_page_needs_no_network_and_is_small(model: Any) -> None:
    made = html_of(model, TEXT)
    assert marker(AUTHOR) in made
    assert not re.search(r"https?://|innerHTML|document\.write|eval\(", made)
    assert len(made) < 300_000


def test_layers_have_the_spread_of_their_weights(model: Any) -> None:
    layers = column(model)["chains"][0]["layers"]
    maps = babn.attention_maps(model, batch_of(model))
    expected = [float((m.mean * m.relative_std).sum(-1).mean()) for m in maps]
    assert [layer["spread"] for layer in layers] == pytest.approx(expected, abs=1e-4)


def test_a_view_is_a_frame_in_a_notebook_and_a_file_elsewhere(model: Any, tmp_path: Path) -> None:
    made = babn.view(model, TEXT, tokenizer=tokenizer(), height=400)
    frame = made._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in frame
    assert 'height="400"' in frame
    source = re.search(r'srcdoc="([^"]*)"', frame)
    assert source is not None and unescape(source[1]) == made.html
    assert made.save(tmp_path / "view.html").read_text(encoding="utf-8") == made.html
    assert re.match(r"<View, \d+ kB: shown", repr(made))
