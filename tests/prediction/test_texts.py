"""Statistics of tokens and texts, against their formulas in plain loops."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import babn
from babn.prediction.generate import TokenStatistics, up_to_the_end

S, B, T, V = 4, 3, 5, 7


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(S, B, T, V, generator=torch.Generator().manual_seed(0)) * 2


@pytest.fixture
def words() -> Tensor:
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))


SEEN = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)


def entropy(p: np.ndarray) -> float:
    return float(-(p * np.log(p)).sum())


@pytest.mark.parametrize("parts", [(4,), (1, 3)])
def test_token_statistics_are_their_formulas(
    logits: Tensor, words: Tensor, parts: tuple[int, ...]
) -> None:
    sums = TokenStatistics()
    for part in logits.split(parts):
        sums.add(part, words)
    found = sums.result(SEEN)
    p = logits.double().softmax(-1).numpy()
    for b in range(B):
        joint = np.ones(S)
        entropies, informations = [], []
        for t in range(int(SEEN[b].sum())):
            own = p[:, b, t, words[b, t]]
            total, expected = entropy(p[:, b, t].mean(0)), np.mean([entropy(q) for q in p[:, b, t]])
            assert float(found.log_prob[b, t]) == pytest.approx(math.log(own.mean()), abs=1e-5)
            assert float(found.mean_log_prob[b, t]) == pytest.approx(np.log(own).mean(), abs=1e-5)
            assert float(found.entropy[b, t]) == pytest.approx(total, abs=1e-5)
            assert float(found.expected_entropy[b, t]) == pytest.approx(expected, abs=1e-5)
            assert float(found.mutual_information[b, t]) == pytest.approx(
                total - expected, abs=1e-5
            )
            joint *= own
            entropies.append(total)
            informations.append(total - expected)
        assert float(found.sequence_log_prob[b]) == pytest.approx(math.log(joint.mean()), abs=1e-4)
        assert float(found.sequence_std[b]) == pytest.approx(np.log(joint).std(ddof=1), abs=1e-4)
        assert float(found.sequence_entropy[b]) == pytest.approx(np.mean(entropies), abs=1e-5)
        information = float(found.sequence_mutual_information[b])
        assert information == pytest.approx(np.mean(informations), abs=1e-5)
    for value in (found.log_prob, found.entropy, found.mutual_information):
        assert not value[~SEEN].any()


def test_text_statistics_are_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    seen = torch.stack([SEEN, SEEN.flip(0), SEEN])
    log_probs = -torch.rand(3, B, T, generator=generator) * seen
    sequences = torch.randint(3, 9, (3, B, 2 + T), generator=generator)
    sequences[2] = sequences[0]
    sequences[2][~torch.cat([torch.ones(B, 2, dtype=torch.bool), SEEN], 1)] = 0  # after the end
    found = babn.SampledTexts(sequences, log_probs, seen)
    for b in range(B):
        sums = [float(log_probs[s, b].sum()) for s in range(3)]
        lengths = [int(seen[s, b].sum()) for s in range(3)]
        texts = [tuple(sequences[s, b, 2 : 2 + lengths[s]].tolist()) for s in range(3)]
        pairs = [(s, t) for s in range(3) for t in range(3) if s != t]
        agreement = np.mean([texts[s] == texts[t] for s, t in pairs])
        normalized = -np.mean([x / n for x, n in zip(sums, lengths, strict=True)])
        assert float(found.predictive_entropy[b]) == pytest.approx(-np.mean(sums), abs=1e-5)
        assert float(found.normalized_entropy[b]) == pytest.approx(normalized, abs=1e-5)
        assert float(found.agreement[b]) == pytest.approx(agreement)
        assert int(found.distinct[b]) == len(set(texts))


def test_one_sample_agrees_with_nothing() -> None:
    one = babn.SampledTexts(
        torch.ones(1, 2, 4).long(), torch.zeros(1, 2, 3), torch.ones(1, 2, 3) > 0
    )
    assert one.agreement.isnan().all() and (one.distinct == 1).all()


def test_texts_end_at_their_first_end() -> None:
    words = torch.tensor([[5, 2, 2, 5], [5, 6, 7, 8], [3, 5, 5, 2]])
    expected = [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert up_to_the_end(words, [2, 3]).tolist() == expected
    assert up_to_the_end(words, []).all()
