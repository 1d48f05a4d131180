"""BLEU against its formula, correlations against scipy, and predictions that come back."""

import math
from collections import Counter
from operator import truediv
from pathlib import Path

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from babn.errors import FormatError
from babn_paper.tasks.translation.predictions import Translated, TranslationPredictions, multi_bleu

WORDS = st.lists(st.sampled_from(["a", "dog", "the", ".", "barks"]), max_size=9).map(" ".join)


def ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8))
def test_bleu_is_that_of_the_formula(pairs: list[tuple[str, str]]) -> None:
    r"""$\min(1, e^{1 - r/c}) (\prod_{n=1}^4 p_n)^{1/4}$ with shares $p_n$ of right n-grams."""
    hypotheses, references = map(list, zip(*pairs, strict=True))
    split = [(h.split(), r.split()) for h, r in pairs]
    made, right = [0] * 4, [0] * 4
    for n in range(4):
        for found, known in ((ngrams(h, n + 1), ngrams(r, n + 1)) for h, r in split):
            made[n] += found.total()
            right[n] += (found & known).total()
    expected = 0.0
    if all(right):
        lengths = sum(len(r) for _, r in split) / sum(len(h) for h, _ in split)
        expected = min(1, math.exp(1 - lengths)) * math.prod(map(truediv, right, made)) ** 0.25
    assert multi_bleu(hypotheses, references) == pytest.approx(expected, abs=1e-9)


def test_bleu_by_hand() -> None:
    assert multi_bleu(["a dog barks at me"], ["a dog barks at me"]) == pytest.approx(1)
    assert multi_bleu([""], ["a dog"]) == 0
    # 4/4, 3/3, 2/2 and 1/1 of the n-grams are right; four words for five.
    found = multi_bleu(["a dog barks at"], ["a dog barks at me"])
    assert found == pytest.approx(2.718281828 ** (1 - 5 / 4))


SENTENCES = (
    Translated("eins", "one two three four five", "one two three four", {"NLL": 0.2, "entropy": 3}),
    Translated("zwei", "a dog barks .", "a cat barks .", {"NLL": 1.0, "entropy": 3}),
    Translated("drei\u2028", "Aren't you?", "What?\x85", {"NLL": 0.9, "entropy": 3}),
)


def test_measures_are_those_of_the_packages() -> None:
    found = TranslationPredictions(SENTENCES, tokenized=False).measure()
    hypotheses = [each.hypothesis for each in SENTENCES]
    references = [each.reference for each in SENTENCES]
    assert found["sacreBLEU"] * 100 == pytest.approx(
        BLEU().corpus_score(hypotheses, [references]).score
    )
    assert found["chrF"] * 100 == pytest.approx(CHRF().corpus_score(hypotheses, [references]).score)
    quality = [
        CHRF().sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)
    ]
    unsure = [each.uncertainty["NLL"] for each in SENTENCES]
    assert found["chrF~NLL Pearson"] == pytest.approx(scipy.stats.pearsonr(unsure, quality)[0])
    assert found["chrF~NLL Spearman"] == pytest.approx(scipy.stats.spearmanr(unsure, quality)[0])
    assert found["chrF~entropy Pearson"] != found["chrF~entropy Pearson"]  # constant: not defined
    assert found["sentences"] == 3
    plain = multi_bleu(hypotheses, references)
    assert found["BLEU"] != plain == TranslationPredictions(SENTENCES, True).measure()["BLEU"]


def test_signatures_say_how_words_were_told_apart() -> None:
    assert "tok:13a" in TranslationPredictions(SENTENCES, False).notes()["sacreBLEU"]
    assert "tok:none" in TranslationPredictions(SENTENCES, True).notes()["sacreBLEU"]


def test_predictions_come_back(tmp_path: Path) -> None:
    predictions = TranslationPredictions(SENTENCES, False).named("BABN, mean", 3)
    predictions.save(tmp_path / "new")
    assert TranslationPredictions.load(tmp_path / "new") == predictions
    with pytest.raises(FormatError, match="holds no translations"):
        TranslationPredictions.load(tmp_path)
