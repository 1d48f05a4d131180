"""With `kl_reduction="sum"` and weight 1 the loss is the mean of NLL plus KL of single examples.

The right side is computed by brute force: each example alone and without padding, its NLL from the
logits of the model, its KL as the sum over all variables of all layers.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from small_training import BeliefTrainerInOrder, one_step_of_descent, without_noise
from torch import Tensor

import babn
from babn.conversion.override import overriding

WORDS, LENGTHS = 40, (7, 4, 5)
CONFIG = without_noise(kl_reduction="sum", kl_weight=1.0, attention_dropout=False)
Row = dict[str, Any]


def bert(head: str, **fields: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = hf.BertConfig(vocab_size=WORDS, intermediate_size=16, **sizes, **rates, **fields)
    return getattr(hf, f"BertFor{head}")(config)


def gpt2() -> Any:
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0))


def bart() -> Any:
    sides = ("encoder", "decoder")
    each = {"layers": 2, "attention_heads": 2, "ffn_dim": 16}
    sizes = {f"{side}_{name}": size for side in sides for name, size in each.items()}
    special = {"bos_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": 2}
    config = hf.BartConfig(vocab_size=WORDS, d_model=16, dropout=0.0, **sizes, **special)
    return hf.BartForConditionalGeneration(config)


def ids(length: int, seed: int) -> Tensor:
    return torch.randint(3, WORDS, (length,), generator=torch.Generator().manual_seed(seed))


def rows(target: Callable[[int], Row]) -> list[Row]:
    """Examples of different lengths, with the targets of each."""
    return [{"input_ids": ids(n, n), **target(i)} for i, n in enumerate(LENGTHS)]


def words(number: int) -> Row:
    """One label per word; the first ones of some texts do not count."""
    labels = ids(LENGTHS[number], 50 + number)
    labels[:number] = -100
    return {"labels": labels}


def classes(number: int) -> Row:
    labels = words(number)["labels"]
    return {"labels": torch.where(labels == -100, labels, labels % 3)}


def spans() -> list[Row]:
    """Of one length, since padding takes part in the softmax over positions."""
    ends = torch.tensor(3)
    return [
        {"input_ids": ids(6, i), "start_positions": torch.tensor(i), "end_positions": ends}
        for i in range(3)
    ]


def translations(number: int) -> Row:
    """The mask keeps padding of targets out of the KL."""
    labels = ids(3 + 2 * number, 70 + number)
    return {"labels": labels, "decoder_attention_mask": torch.ones_like(labels)}


def choices() -> list[Row]:
    each = [torch.stack([ids(6, 10 * i + c) for c in range(4)]) for i in range(3)]
    return [{"input_ids": x, "labels": torch.tensor(i)} for i, x in enumerate(each)]


def chosen(logits: Tensor, label: Any) -> Tensor:
    """NLL of labels, summed over those that count."""
    label = torch.as_tensor(label)
    found = logits.log_softmax(-1).gather(-1, label.clamp(min=0)[..., None]).squeeze(-1)
    return -found.where(label != -100, 0.0).sum()


def of_class(output: Any, row: Row) -> Tensor:
    return chosen(output.logits[0], row["labels"])


def of_next_words(output: Any, row: Row) -> Tensor:
    return chosen(output.logits[0, :-1], row["labels"][1:])


def of_span(output: Any, row: Row) -> Tensor:
    start = chosen(output.start_logits[0], row["start_positions"])
    return start + chosen(output.end_logits[0], row["end_positions"])


def of_numbers(output: Any, row: Row) -> Tensor:
    normal = torch.distributions.Normal(output.logits[0], 1.0)
    constant = 0.5 * math.log(2 * math.pi) * row["labels"].numel()
    return -normal.log_prob(row["labels"]).sum() - constant


def of_flags(output: Any, row: Row) -> Tensor:
    return -torch.distributions.Bernoulli(logits=output.logits[0]).log_prob(row["labels"]).sum()


Kind = tuple[Callable[[], Any], Callable[[], list[Row]], Callable[[Any, Row], Tensor]]
KINDS: dict[str, Kind] = {
    "class": (
        lambda: bert("SequenceClassification", num_labels=3),
        lambda: rows(lambda i: {"labels": torch.tensor(i)}),
        of_class,
    ),
    "number": (
        lambda: bert("SequenceClassification", num_labels=1),
        lambda: rows(lambda i: {"labels": torch.tensor(1.5 * i).double()}),
        of_numbers,
    ),
    "numbers": (
        lambda: bert("SequenceClassification", num_labels=3, problem_type="regression"),
        lambda: rows(lambda i: {"labels": torch.tensor([1.5, 0.3, -1.0]).double() * i}),
        of_numbers,
    ),
    "flags": (
        lambda: bert("SequenceClassification", num_labels=3),
        lambda: rows(lambda i: {"labels": (torch.arange(3) <= i).double()}),
        of_flags,
    ),
    "span": (
        lambda: bert("QuestionAnswering"),
        spans,
        of_span,
    ),
    "choices": (lambda: bert("MultipleChoice"), choices, of_class),
    "tags": (
        lambda: bert("TokenClassification", num_labels=3),
        lambda: rows(classes),
        of_class,
    ),
    "masked words": (lambda: bert("MaskedLM"), lambda: rows(words), of_class),
    "next words": (gpt2, lambda: rows(words), of_next_words),
    "translation": (
        bart,
        lambda: rows(translations),
        of_class,
    ),
}


def batched(examples: list[Row]) -> Row:
    """Examples padded on the right."""
    masked = [{**x, "attention_mask": torch.ones_like(x["input_ids"])} for x in examples]
    fill = {"labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence(
            [x[name] for x in masked], batch_first=True, padding_value=fill.get(name, 0)
        )
        if masked[0][name].ndim
        else torch.stack([x[name] for x in masked])
        for name in masked[0]
    }


def kl_of_one(model: Any, row: Row) -> tuple[Any, Tensor]:
    """The output for one example, and the sum of the KL of all its variables."""
    posteriors: list[Any] = []
    with overriding(model, add_kl=False, posteriors=posteriors):
        output = model(**batched([row]))
    terms = [(each.kl(), each.mask) for _, each in posteriors]
    return output, sum(
        kl.sum() if mask is None else kl[mask.expand_as(kl)].sum() for kl, mask in terms
    )


def converted(kind: str) -> Any:
    torch.manual_seed(0)
    return babn.convert(KINDS[kind][0](), CONFIG).double().train()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_negative_bound_of_an_example(kind: str) -> None:
    model, examples, nll = converted(kind), KINDS[kind][1](), KINDS[kind][2]
    outputs = [kl_of_one(model, row) for row in examples]
    bounds = [nll(output, row) + kl for (output, kl), row in zip(outputs, examples, strict=True)]
    torch.testing.assert_close(
        model(**batched(examples)).loss, torch.stack(bounds).mean(), rtol=1e-7, atol=1e-6
    )


def test_arguments_by_position_count_like_those_by_name() -> None:
    model, batch = converted("number"), batched(KINDS["number"][1]())
    by_name = model(**batch).loss
    ordered = (batch["input_ids"], batch["attention_mask"], None, None, None, batch["labels"])
    torch.testing.assert_close(model(*ordered).loss, by_name)


def test_the_mean_reduction_leaves_the_loss_of_the_model() -> None:
    torch.manual_seed(0)
    model = babn.convert(gpt2(), without_noise(kl_weight=0.5)).train()
    output = model(**batched(KINDS["next words"][1]()))
    with overriding(model, add_kl=False):
        alone = model(**batched(KINDS["next words"][1]())).loss
    torch.testing.assert_close(output.loss, alone + 0.5 * output.belief_kl)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["class", "number", "span", "choices", "next words"])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_trainer_minimises_the_same_bound(tmp_path: Path, kind: str, accumulated: int) -> None:
    model, examples = converted(kind), KINDS[kind][1]()
    outputs = [kl_of_one(model, row) for row in examples]
    nll = KINDS[kind][2]
    bounds = [nll(output, row) + kl for (output, kl), row in zip(outputs, examples, strict=True)]
    expected = float(torch.stack(bounds).mean().detach())
    sizes = {"per_device_train_batch_size": 3 // accumulated}
    descent = one_step_of_descent(tmp_path, gradient_accumulation_steps=accumulated, **sizes)
    annealing = babn.KLAnnealing(schedule="constant")
    trainer = BeliefTrainerInOrder(
        model, descent, train_dataset=examples, data_collator=batched, annealing=annealing
    )
    trainer.train()
    logged = next(line for line in trainer.state.log_history if "nll" in line)
    assert logged["nll"] + logged["kl"] == pytest.approx(expected, rel=1e-6)
    assert logged["loss"] == pytest.approx(expected, rel=1e-6)
