"""With `kl_reduction="sum"` and weight 1 the paper's models minimise the bound of an example.

Compared with each example alone and without padding: NLL from logits, KL summed over variables.
"""

from typing import Any

import pair_cases
import pytest
import torch
import translation_cases
import visual_cases
from torch import Tensor

import babn
from babn.conversion.override import overriding

pytestmark = pytest.mark.thorough


CONFIG = babn.BeliefConfig.pairs(
    rho=1e9, sigma=0.0, max_length=16, kl_reduction="sum", kl_weight=1.0
)
Batch = dict[str, Tensor]


def prepared(model: Any, batch: Batch) -> Any:
    """A converted model in training mode and double precision."""
    converted = babn.convert(model.float(), CONFIG, batch)
    pair_cases.enlarged(converted.babn, 0.3)
    return converted.double().train()


def without_kl(model: Any, batch: Batch) -> tuple[Any, Tensor]:
    """The output for one example, and the sum of the KL of all its variables."""
    posteriors: list[Any] = []
    with overriding(model, add_kl=False, posteriors=posteriors):
        output = model(**batch)
    terms = [each.kl().flatten() for _, each in posteriors]
    return output, torch.cat(terms).sum()


def check(model: Any, batch: Batch, bounds: list[Tensor]) -> None:
    torch.testing.assert_close(model(**batch).loss, torch.stack(bounds).mean(), rtol=1e-7, atol=0)


def test_translation_counts_every_word_of_a_target() -> None:
    model = prepared(translation_cases.translator(), translation_cases.batch())
    bounds = []
    for row in range(3):
        alone = translation_cases.batch(rows=[row])
        output, kl = without_kl(model, alone)
        bounds.append(kl - translation_cases.gold(output.logits, alone["labels"]).sum())
    check(model, translation_cases.batch(), bounds)


def test_visual_question_answering_counts_every_answer() -> None:
    def batch(rows: list[int]) -> Batch:
        found = {**visual_cases.batch(rows), "labels": visual_cases.labels()[rows]}
        return {n: x.double() if x.is_floating_point() else x for n, x in found.items()}

    model = prepared(visual_cases.model(), visual_cases.batch())
    bounds = []
    for row in range(3):
        alone = batch([row])
        output, kl = without_kl(model, alone)
        p = output.logits.sigmoid()
        terms = alone["labels"] * p.log() + (1 - alone["labels"]) * (1 - p).log()
        bounds.append(kl - terms.sum())
    check(model, batch([0, 1, 2]), bounds)


@pytest.mark.parametrize("labels", [[0, 2, 1], [0.5, 2.0, 1.0]], ids=["classes", "numbers"])
@pytest.mark.parametrize("kind", pair_cases.KINDS)
def test_text_pairs(kind: str, labels: list[float]) -> None:
    number = isinstance(labels[0], float)
    sizes = {"dropout": 0.0, **({"num_labels": 1} if number else {})}
    model = prepared(pair_cases.classifier(kind, **sizes), pair_cases.encoded(pair_cases.PAIRS))
    bounds = []
    for pair, label in zip(pair_cases.PAIRS, labels, strict=True):
        output, kl = without_kl(model, pair_cases.encoded([pair]))
        found = output.logits[0]
        nll = 0.5 * (found[0] - label) ** 2 if number else -found.log_softmax(-1)[int(label)]
        bounds.append(nll + kl)
    targets = torch.tensor(labels, dtype=torch.float64 if number else torch.int64)
    check(model, {**pair_cases.encoded(pair_cases.PAIRS), "labels": targets}, bounds)


def test_the_kl_of_a_choice_is_that_of_all_its_pairs() -> None:
    encoded = pair_cases.encoded(pair_cases.PAIRS)
    batch = {name: x.unsqueeze(0) for name, x in encoded.items()}
    model = prepared(pair_cases.chooser("decomposable", dropout=0.0), batch)
    kl, logits = [], []
    for pair in pair_cases.PAIRS:
        alone = {name: x.unsqueeze(0) for name, x in pair_cases.encoded([pair]).items()}
        output, each = without_kl(model, alone)
        kl.append(each)
        logits.append(output.logits[0, 0])
    nll = -torch.stack(logits).log_softmax(-1)[1]
    check(model, {**batch, "labels": torch.tensor([1])}, [nll + torch.stack(kl).sum()])
