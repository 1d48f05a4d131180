"""Greedy and beam search against plain loops, and decoding by steps against teacher forcing."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from translation_cases import (
    BOS,
    EOS,
    IGNORED,
    METHODS,
    PAD,
    SOURCES,
    VARIATIONAL,
    batch,
    converted,
    gold,
    padded,
    sources,
    translator,
)

import babn
from babn_paper.models import Translations, translate

pytestmark = pytest.mark.thorough

ALL = (*METHODS, "va-enum", "feeding", "feeding va-enum")
STOCHASTIC = ("bam", "belief", "heads")


def model_of(method: str, end: float | None = None) -> Any:
    """A model whose targets end neither at once nor never, unless `end` says so."""
    feeds, method = method.startswith("feeding"), method.removeprefix("feeding").strip() or "belief"
    fields = {"decoder": "input-feeding"} if feeds else {}
    latent = method in VARIATIONAL
    made = translator(attention=method, **fields) if latent else converted(method, **fields)
    usual = 2.5 if latent else 0.8 if feeds else -1.0
    with torch.no_grad():
        made.words.output.bias[EOS] += usual if end is None else end
    return made


def teacher_forced(model: Any, source: list[int], target: list[int]) -> Tensor:
    """Log-probabilities of words after each word of a target and after none."""
    labels = torch.tensor([[*target, EOS]])
    return model(**sources([source]), labels=labels).logits[0].log_softmax(-1).detach()


def allowed(log_probs: Tensor) -> Tensor:
    log_probs = log_probs.clone()
    log_probs[..., [PAD, BOS]] = -torch.inf
    return log_probs


def greedy(model: Any, source: list[int], longest: int) -> list[int]:
    words: list[int] = []
    while len(words) < longest:
        word = int(allowed(teacher_forced(model, source, words)[-1]).argmax())
        if word == EOS:
            break
        words.append(word)
    return words


def lengths(found: Translations) -> Tensor:
    return (found.words != PAD).sum(-1)


@pytest.mark.parametrize("method", ALL)
def test_a_beam_of_one_is_greedy(method: str) -> None:
    model = model_of(method)
    found = translate(model, sources(SOURCES), beam=1, max_length=7).best
    assert found == [greedy(model, source, 7) for source in SOURCES]
    assert max(map(len, found)) > 1


@pytest.mark.parametrize("method", ALL)
def test_steps_give_what_teacher_forcing_gives(method: str) -> None:
    """A fixed target, word by word, several hypotheses and samples of the mean side by side."""
    model, inputs = model_of(method), batch()
    expected = model(**inputs).logits.log_softmax(-1)
    memory = model.encode(inputs["input_ids"], inputs["attention_mask"])
    state = tuple(x.repeat_interleave(2, 1) for x in memory.start)
    words = torch.full((3, 2), BOS)
    for step in range(5):
        output = model(memory=memory, decoder_input_ids=words, state=state, samples=3)
        found = output.logits.log_softmax(-1)
        assert found.shape == (3, 6, 11)
        counted = inputs["labels"][:, step] != IGNORED
        for each in found[counted].unbind(1):
            torch.testing.assert_close(each, expected[counted, step])
        words, state = inputs["labels"][:, step : step + 1].clamp(min=0).expand(3, 2), output.state


@pytest.mark.parametrize("method", ALL)
def test_log_probabilities_are_those_of_teacher_forcing(method: str) -> None:
    model = model_of(method)
    found = translate(model, sources(SOURCES), beam=4, max_length=6)
    for i, source in enumerate(SOURCES):
        for j in range(4):
            length = int(lengths(found)[i, j])
            target = found.words[i, j, :length]
            labels = target[None]
            expected = gold(model(**sources([source]), labels=labels).logits, labels)[0]
            torch.testing.assert_close(found.log_probs[i, j, :length], expected)
            assert (found.log_probs[i, j, length:] == 0).all()
            score = expected.sum() / ((5 + length) / 6)
            torch.testing.assert_close(found.scores[i, j], score)
    assert (found.scores.diff(dim=-1) <= 0).all()
    assert lengths(found).unique().numel() > 1


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_targets(strength: float) -> None:
    model = model_of("belief")
    found = translate(model, sources(SOURCES), 200, length_penalty=strength, max_length=3)
    words = [w for w in range(11) if w not in (PAD, BOS, EOS)]
    inner = [(), *itertools.product(words), *itertools.product(words, repeat=2)]
    labels = padded([[*each, EOS] for each in inner], IGNORED)
    penalties = ((6 + torch.tensor([len(each) for each in inner])) / 6) ** strength
    for i, source in enumerate(SOURCES):
        logits = model(**sources([source] * len(inner)), labels=labels).logits
        scores = (gold(logits, labels).sum(-1) / penalties).tolist()
        scored = list(zip(scores, map(list, inner), strict=True))
        best = sorted(scored, reverse=True)
        complete = [
            (score, [w for w in row if w not in (PAD, EOS)])
            for score, row in zip(found.scores[i].tolist(), found.words[i].tolist(), strict=True)
            if EOS in row
        ]
        for (score, target), (expected, right) in zip(complete[:5], best[:5], strict=True):
            assert target == right
            assert score == pytest.approx(expected)


@pytest.mark.parametrize("method", ["softmax", "belief", "va-enum"])
def test_other_sentences_and_padding_change_nothing(method: str) -> None:
    model = model_of(method)
    for together in (sources(SOURCES), sources(SOURCES, 3), sources(SOURCES[:2], 2, left=True)):
        found = translate(model, together, beam=3, max_length=8)
        for i in range(len(together["input_ids"])):
            alone = translate(model, sources([SOURCES[i]]), beam=3, max_length=8)
            width = alone.words.shape[-1]
            assert torch.equal(found.words[i, :, :width], alone.words[0])
            assert (found.words[i, :, width:] == PAD).all()
            torch.testing.assert_close(found.scores[i], alone.scores[0])


def test_the_length_penalty_prefers_longer_targets() -> None:
    model = model_of("softmax", end=0.5)
    means = [
        lengths(translate(model, sources(SOURCES), 4, length_penalty=strength, max_length=12))
        .double()
        .mean()
        for strength in (0.0, 1.0, 3.0)
    ]
    assert means[0] < means[2]
    assert means[0] <= means[1] <= means[2]


def test_targets_end_at_the_greatest_length() -> None:
    found = translate(model_of("softmax", end=-50.0), sources(SOURCES), beam=2, max_length=4)
    assert (lengths(found) == 4).all()
    assert not torch.isin(found.words, torch.tensor([PAD, BOS, EOS])).any()
    at_once = translate(model_of("softmax", end=50.0), sources(SOURCES), beam=1)
    assert at_once.best == [[], [], []]
    assert at_once.words.tolist() == [[[EOS]]] * 3


@pytest.mark.parametrize("method", STOCHASTIC)
def test_samples_are_fresh_and_can_be_repeated(method: str) -> None:
    model = model_of(method)
    state = torch.get_rng_state()
    first, again, other = (
        translate(model, sources(SOURCES), 3, max_length=6, samples=1, seed=s) for s in (0, 0, 1)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.words, again.words)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.scores, other.scores)

    memory = model.encode(**sources(SOURCES))
    words = torch.full((3, 1), BOS)
    with babn.sampling(model, seed=0):
        logits = model(memory=memory, decoder_input_ids=words, state=memory.start, samples=4).logits
    gaps = (logits[:, :, None] - logits[:, None]).abs().amax(-1)
    assert (gaps + torch.eye(4)).min() > 1e-6  # each sample has noise of its own


@pytest.mark.parametrize("method", STOCHASTIC)
def test_many_samples_are_near_their_mean(method: str) -> None:
    """Log-probabilities are those of mean probabilities, which one sample's are not."""
    model = model_of(method)
    inputs = {**sources(SOURCES), "decoder_input_ids": torch.full((3, 1), BOS)}
    expected = babn.predict(model, inputs, 600).probs[:, 0].log()
    found = translate(model, sources(SOURCES), beam=1, max_length=1, samples=600, seed=5)
    right = expected.gather(-1, found.words[:, 0])
    torch.testing.assert_close(found.log_probs[:, 0], right, atol=0.02, rtol=0)


def test_training_goes_on_as_before() -> None:
    model = model_of("belief").train()
    found = translate(model, sources(SOURCES), beam=2, max_length=4)
    assert model.training
    assert model.words.dropout.training
    again = translate(model.eval(), sources(SOURCES), beam=2, max_length=4)
    assert torch.equal(found.log_probs, again.log_probs)
    assert not found.log_probs.requires_grad


def test_anything_but_sources_is_ignored() -> None:
    model = translator()
    plain = translate(model, sources(SOURCES), beam=2, max_length=4)
    more = translate(model, {**batch(), "labels": padded([[5]] * 3, 0)}, beam=2, max_length=4)
    assert torch.equal(plain.words, more.words)


def test_what_cannot_be_is_refused() -> None:
    for fields in ({"beam": 0}, {"max_length": 0}, {"samples": -1}):
        with pytest.raises(babn.errors.ConfigError, match="is invalid"):
            translate(translator(), sources(SOURCES), **fields)
    with pytest.raises(babn.errors.NotConvertedError):
        translate(translator(), sources(SOURCES), samples=2)


@pytest.mark.parametrize("method", ["belief", "va-enum"])
@pytest.mark.parametrize("samples", [None, 3])
def test_sentences_that_are_done_are_put_aside(
    method: str, samples: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One source that never ends beside three that do at once: all find what they find alone."""
    model, longest = model_of(method, end=3.0), 12
    texts = [*SOURCES, [5, 6, EOS]]
    alone = [
        translate(model, sources([text]), 2, 1.0, longest, samples, 5, [number])
        for number, text in enumerate(texts)
    ]
    sizes: list[int] = []
    inner = type(model)._next

    def counted(self: Any, ids: Tensor, *rest: Any) -> Any:
        sizes.append(len(ids))
        output = inner(self, ids, *rest)
        first = rest[0].text.ids[:, 0] == texts[0][0]
        output.logits[first, :, EOS] = -100.0
        return output

    monkeypatch.setattr(type(model), "_next", counted)
    together = translate(model, sources(texts), 2, 1.0, longest, samples, 5)
    assert sizes[0] == len(texts) and sizes[-1] == 1 and len(sizes) == longest
    for number in range(1, len(texts)):
        own = alone[number].words.shape[-1]
        torch.testing.assert_close(together.words[number, :, :own], alone[number].words[0])
        torch.testing.assert_close(together.scores[number], alone[number].scores[0])
