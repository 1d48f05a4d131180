"""Tiny models with a tokenizer, and the data of their pages."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import babn
from models import SIZES, enlarge

TEXT = "the river bank closed"
WORDS = ["the", "river", "bank", "closed", "money", "we", "lent", "sum", "##ing", "##s", *"abc.,<>"]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
LABELS = {0: "yes", 1: "<b>no</b>", 2: "perhaps"}


def tokenizer() -> Any:
    """A tokenizer of word pieces over a few words."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS]))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", eos_token="[SEP]", **names
    )


def converted(model: Any) -> Any:
    """The model with large random weights, converted."""
    model = babn.convert(
        enlarge(model, 0.15).eval(), babn.BeliefConfig.pairs(rho=4.0, max_length=128)
    )
    enlarge(model.babn, 0.1)
    return model


def classifier(layers: int = 3, **settings: Any) -> Any:
    """A BERT with three classes."""
    sizes = {**SIZES, "num_hidden_layers": layers, "vocab_size": 64, "pad_token_id": 0}
    config = hf.BertConfig(**sizes, max_position_embeddings=96, id2label=LABELS, **settings)
    return converted(hf.BertForSequenceClassification(config))


def chooser() -> Any:
    """A BERT that scores each of several choices."""
    sizes = {**SIZES, "num_hidden_layers": 2, "vocab_size": 64, "pad_token_id": 0}
    return converted(hf.BertForMultipleChoice(hf.BertConfig(**sizes)))


def language_model() -> Any:
    """A GPT-2, which has no classes."""
    config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=64)
    return converted(hf.GPT2LMHeadModel(config))


def translator() -> Any:
    """A T5: an encoder, a decoder, and attention across."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = hf.T5Config(**sizes, vocab_size=64, decoder_start_token_id=0)
    return converted(hf.T5ForConditionalGeneration(config))


def save(folder: Path, model: Any, with_tokenizer: bool = True) -> Path:
    """A folder with a model and its tokenizer, as `save_pretrained` writes it."""
    model.save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return folder


def batch_of(model: Any, text: str = TEXT) -> dict[str, Any]:
    """The inputs that the viewer passes to an encoder."""
    return dict(tokenizer()(text, return_tensors="pt"))


def html_of(model: Any, texts: Any, **settings: Any) -> str:
    """The page of some texts."""
    return babn.view(model, texts, tokenizer=tokenizer(), **settings).html


def data_of(page: str) -> dict[str, Any]:
    """The data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpack(chain: dict[str, Any], index: int, drawn: int) -> dict[str, np.ndarray]:
    """The planes of a layer as the page reads them; zeros where nothing is kept."""
    layer, (queries, keys), kept = chain["layers"][index], chain["size"], chain["kept"]
    block = zlib.decompress(base64.b64decode(layer["data"]))
    shape = (-1, chain["heads"] + 1, queries, kept)
    planes = np.frombuffer(block, np.uint8).reshape(shape).astype(np.float64)
    places = np.broadcast_to(np.arange(kept), planes[0].shape)
    if kept < keys:
        places = (planes[0] + 256 * planes[1]).cumsum(-1).astype(int) - 1
        planes = planes[2:]
    assert len(planes) == 2 + drawn
    values = {"mean": (planes[0] / 255) ** 2, "std": layer["std"] * planes[1] / 255}
    values |= {f"sample {i}": layer["sample"] * (p / 255) ** 2 for i, p in enumerate(planes[2:])}
    return {name: _spread(x, places, keys) for name, x in values.items()}


def _spread(values: np.ndarray, places: np.ndarray, keys: int) -> np.ndarray:
    full = np.zeros((*values.shape[:-1], keys))
    np.put_along_axis(full, places, values, -1)
    return full


def random_weights(heads: int, queries: int, keys: int, seed: int = 0) -> torch.Tensor:
    """Attention weights that are far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    return (2.5 * torch.randn(heads, queries, keys, generator=generator)).softmax(-1)


def progress(page: Any, trouble: list[str]) -> None:
    """Records dialogs, errors and console messages."""
    page.on("dialog", lambda dialog: (trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda message: trouble.append(f"console {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error {error}"))
