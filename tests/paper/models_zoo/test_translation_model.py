"""The translation model against its equations, word by word, and what it learns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from translation_cases import (
    BOS,
    IGNORED,
    PAD,
    SOURCES,
    TARGETS,
    VARIATIONAL,
    VOCABULARY,
    batch,
    gold,
    sources,
    toy_task,
    translator,
)

import babn
from babn_paper.models import TranslationConfig, TranslationModel, translate
from models import assert_same_weights

pytestmark = pytest.mark.thorough


KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "tied": {"tie_word_embeddings": True},
    "one layer": {"layers": 1},
    "feeding": {"decoder": "input-feeding"},
    "feeding va": {"decoder": "input-feeding", "attention": "va-enum"},
    "va-enum": {"attention": "va-enum"},
    "va-sample": {"attention": "va-sample"},
    "gumbel": {"attention": "va-sample", "estimator": "gumbel", "train_samples": 2},
}


def cell(lstm: Any, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    w, u, b, d = (
        getattr(lstm, f"{name}_l{suffix}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    i, f, g, o = (w @ x + b + u @ h + d).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def encoded(lstm: Any, xs: list[Tensor]) -> list[Tensor]:
    for layer in range(lstm.num_layers):
        both = []
        for suffix, order in ((f"{layer}", 1), (f"{layer}_reverse", -1)):
            h = c = torch.zeros(lstm.hidden_size, dtype=xs[0].dtype)
            states = []
            for x in xs[::order]:
                h, c = cell(lstm, suffix, x, h, c)
                states.append(h)
            both.append(states[::order])
        xs = [torch.cat(pair) for pair in zip(*both, strict=True)]
    return xs


def linear(layer: Any, x: Tensor) -> Tensor:
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def by_hand(model: Any, source: list[int], target: list[int]) -> Tensor:
    """Logits of one sentence: every position by itself, projections apart, contexts as written."""
    config, vectors = model.config, model.embedding.weight
    memory = encoded(model.encoder.lstm, [vectors[i] for i in source])
    size = config.encoder_size
    feeds = config.decoder == "input-feeding"
    if feeds:
        start = torch.zeros(2, config.layers, config.decoder_size, dtype=vectors.dtype)
    else:
        start = linear(model.bridge.projection, torch.cat([memory[-1][:size], memory[0][size:]]))
        start = start.view(2, config.layers, -1)
    hs, cs = [x.tanh() for x in start[0]], list(start[1])
    context = torch.zeros(2 * size, dtype=vectors.dtype)
    (w_k, w_c), (w_q, w_s), (b_q, b_s) = (
        x.split([config.attention_size, config.output_size])
        for x in (
            model.memory_projection.weight,
            model.state_projection.weight,
            model.state_projection.bias,
        )
    )
    logits = []
    for word in [BOS, *target[:-1]]:
        x = torch.cat([vectors[word], context]) if feeds else vectors[word]
        for layer in range(config.layers):
            hs[layer], cs[layer] = cell(model.decoder, f"{layer}", x, hs[layer], cs[layer])
            x = hs[layer]
        query = w_q @ x + b_q
        if feeds:
            (v,) = model.score.weight
            scores = [v @ torch.tanh(query + w_k @ h) for h in memory]
        else:
            scores = [query @ (w_k @ h) for h in memory]
        weights = torch.stack(scores).softmax(0)
        context = sum(w * h for w, h in zip(weights, memory, strict=True))
        logits.append(linear(model.words.output, (w_c @ context + w_s @ x + b_s).tanh()))
    return torch.stack(logits)


@pytest.mark.parametrize("kind", ["softmax", "tied", "one layer", "feeding"])
def test_the_equations(kind: str) -> None:
    model = translator(**KINDS[kind])
    output, losses = model(**batch()), []
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = by_hand(model, source, target)
        torch.testing.assert_close(output.logits[i, : len(target)], expected)
        losses += (-gold(expected, torch.tensor(target))).tolist()

    assert output.loss.item() == pytest.approx(sum(losses) / len(losses))
    assert model.words.output.weight is model.embedding.weight or kind != "tied"


@pytest.mark.parametrize("decoder", ["parallel", "input-feeding"])
def test_variational_attention_with_soft_prediction_has_the_same_equations(decoder: str) -> None:
    model = translator(attention="va-enum", prediction="soft", decoder=decoder)
    logits = model(**batch()).logits
    for i, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        torch.testing.assert_close(logits[i, : len(target)], by_hand(model, source, target))


@pytest.mark.parametrize("decoder", ["parallel", "input-feeding"])
def test_the_sizes_of_the_paper(decoder: str) -> None:
    """Its table of translation: 42 million parameters, 64 million with an inference network."""
    with torch.device("meta"):
        fields = [{"attention": a, "decoder": decoder} for a in ("softmax", "va-enum")]
        models = [TranslationModel(TranslationConfig(**each)) for each in fields]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert [count // 1_000_000 for count in counts] == [42, 64]
    lstm, decoder = models[0].encoder.lstm, models[0].decoder
    assert (lstm.hidden_size, lstm.num_layers, lstm.dropout) == (512, 2, 0.3)
    assert (decoder.hidden_size, decoder.num_layers, decoder.dropout) == (768, 2, 0.3)


@pytest.mark.parametrize("kind", ["softmax", "feeding", "feeding va", *VARIATIONAL])
def test_padding_and_other_sentences_change_nothing(kind: str) -> None:
    model = translator(**KINDS[kind])
    singles = [model(**batch(rows=[i])) for i in range(3)]
    for together in (batch(), batch(extra=3), batch(extra=2, left=True)):
        output = model(**together)
        for i, single in enumerate(singles):
            length = len(TARGETS[i])
            torch.testing.assert_close(output.logits[i, :length], single.logits[0])
        total = sum(single.loss * len(TARGETS[i]) for i, single in enumerate(singles))
        torch.testing.assert_close(output.loss, total / sum(map(len, TARGETS)))


def test_padding_changes_nothing_in_the_bound() -> None:
    model = translator(**KINDS["va-enum"]).train()
    singles = [model(**batch(rows=[i])) for i in range(3)]
    weights = [len(target) / sum(map(len, TARGETS)) for target in TARGETS]
    for together in (batch(), batch(extra=3), batch(extra=2, left=True)):
        output = model(**together)
        for name in ("loss", "likelihood", "kl"):
            parts = [w * single[name] for w, single in zip(weights, singles, strict=True)]
            torch.testing.assert_close(output[name], sum(parts))


@pytest.mark.parametrize("kind", ["softmax", "feeding", *VARIATIONAL])
def test_words_know_only_the_words_before_them(kind: str) -> None:
    model, inputs = translator(**KINDS[kind]), batch(rows=[1])
    before = model(**inputs).logits
    for changed in range(1, 5):
        labels = inputs["labels"].clone()
        labels[0, changed - 1] = 10
        after = model(**inputs | {"labels": labels}).logits
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


def test_first_words_may_be_given_in_place_of_labels() -> None:
    model, inputs = translator(), batch()
    first = torch.tensor([[BOS, 5, 6, PAD, PAD], [BOS, 7, 8, 9, 4], [BOS, PAD, PAD, PAD, PAD]])
    given = model(**sources(SOURCES), decoder_input_ids=first).logits
    expected = model(**inputs).logits
    counted = inputs["labels"] != IGNORED
    torch.testing.assert_close(given[counted], expected[counted])


def test_padding_tokens_are_left_out_without_a_mask() -> None:
    inputs = batch()
    ids = inputs.pop("input_ids").masked_fill(inputs.pop("attention_mask") == 0, PAD)
    model = translator()
    torch.testing.assert_close(model(ids, **inputs).loss, model(**batch()).loss)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    torch.manual_seed(0)
    model = translator(**KINDS[kind]).train()
    model(**batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    model = translator(**KINDS[kind])
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is TranslationConfig
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert type(loaded) is TranslationModel
    assert_same_weights(loaded, model)
    torch.testing.assert_close(loaded(**batch()).logits, model(**batch()).logits)
    assert (loaded.words.output.weight is loaded.embedding.weight) == (kind == "tied")


@pytest.fixture
def plain_lstms() -> Iterator[None]:
    """LSTMs without oneDNN, which has none in half precision for some processors."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.parametrize("kind", ["softmax", "feeding", "va-enum", "va-sample", "gumbel"])
@pytest.mark.usefixtures("plain_lstms")
def test_half_precision(kind: str) -> None:
    torch.manual_seed(0)
    model = translator(**KINDS[kind]).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch())
    output.loss.backward()
    half = model.eval().bfloat16()(**batch())
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert half.loss.item() == pytest.approx(model.float()(**batch()).loss.item(), rel=0.05)
    if kind in ("softmax", "va-enum"):
        exact = model.train()(**batch()).loss.item()
        assert output.loss.item() == pytest.approx(exact, rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*KINDS, "bam", "belief"])
def test_training_and_translating_on_a_gpu(kind: str, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    methods = {"bam": babn.BamConfig(), "belief": babn.BeliefConfig.pairs(max_length=16)}
    model = translator(**KINDS.get(kind, {})).float()
    model = babn.convert(model, methods[kind]) if kind in methods else model
    model = model.cuda().train()
    inputs = {name: x.cuda() for name, x in batch(extra=3).items()}
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        output = model(**inputs)
        found = translate(model, inputs, beam=3, max_length=6)
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert found.scores.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["softmax", "feeding", "va-enum", "va-sample", "gumbel"])
def test_a_source_without_words_is_no_trouble(kind: str) -> None:
    torch.manual_seed(0)
    model = translator(**KINDS[kind]).train()
    inputs = batch()
    inputs["attention_mask"][1] = 0
    output = model(**inputs)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(**inputs).logits.isfinite().all()
    assert translate(model, inputs, beam=2, max_length=3).scores.isfinite().all()


def test_dropout_is_on_in_training_alone() -> None:
    torch.manual_seed(0)
    model = translator(dropout=0.3)
    assert torch.equal(model(**batch()).logits, model(**batch()).logits)
    model.train()
    assert not torch.equal(model(**batch()).logits, model(**batch()).logits)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(babn.errors.DataError, match="there is no source"):
        translator()(labels=batch()["labels"])
    with pytest.raises(babn.errors.DataError, match="there is no target"):
        translator()(**sources(SOURCES))
    for name in ("attention", "estimator", "prediction"):
        with pytest.raises(babn.errors.ConfigError, match=f"{name}='none' is invalid"):
            TranslationConfig(**{name: "none"})


@pytest.mark.parametrize(
    "method", [babn.BeliefConfig.pairs(max_length=9), pytest.param(None, marks=pytest.mark.slow)]
)
def test_learning_to_reverse(method: Any) -> None:
    torch.manual_seed(0)
    sizes = {"embedding_size": 24, "encoder_size": 24, "decoder_size": 32, "attention_size": 16}
    sizes |= {"layers": 1, "vocab_size": VOCABULARY}
    config = TranslationConfig(**sizes, dropout=0.0, initializer_range=0.2)
    model = TranslationModel(config).train()
    model = model if method is None else babn.convert(model, method)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 150)
    for step in range(150):
        optimizer.zero_grad()
        model(**toy_task(32, seed=step)).loss.backward()
        optimizer.step()
        schedule.step()
    test = toy_task(16, seed=1000)
    expected = [[w for w in row if w > 3] for row in test["labels"].tolist()]
    assert model.eval()(**test).loss.item() < 0.05
    assert translate(model, test, beam=1, max_length=8).best == expected
