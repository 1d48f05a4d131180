"""Models, data and settings of the smallest size, for the tests of training."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import babn

WORDS, LENGTH = 40, 8
Example = dict[str, Tensor]

BELIEF = babn.BeliefConfig.pairs(kl_weight=0.1, max_length=16)


def without_noise(**settings: Any) -> babn.BeliefConfig:
    """A belief network whose noise is below float32's resolution, and whose KL is not."""
    return babn.BeliefConfig.pairs(**{"rho": 1e9, "sigma": 0.0, "max_length": 16, **settings})


def bert(**settings: Any) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertForSequenceClassification(BertConfig(**{**sizes, **settings}))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 32}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**sizes, **depth, hidden_dropout_prob=0.0))


def texts(count: int = 8, seed: int = 0) -> list[Example]:
    """Two classes that use different halves of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    half = WORDS // 2
    words = torch.randint(half, (count, LENGTH), generator=generator) + half * labels[:, None]
    ones = torch.ones(LENGTH, dtype=torch.long)
    return [
        {"input_ids": ids, "attention_mask": ones, "labels": label}
        for ids, label in zip(words, labels, strict=True)
    ]


def stories(count: int = 8) -> list[Example]:
    """Texts for a language model, each with another number of words that count."""
    examples = []
    for number, text in enumerate(texts(count)):
        labels = text["input_ids"].clone()
        labels[: number % 4] = -100
        examples.append({**text, "labels": labels})
    return examples


def images(count: int = 8) -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 1, 8, 8, generator=generator)
    return [{"pixel_values": p, "labels": torch.tensor(i % 2)} for i, p in enumerate(pixels)]


def batch_of(examples: list[Example]) -> Example:
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


def belief_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if "babn." in n}


def largest_gap(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between the parameters of two models."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    quiet = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "per_device_train_batch_size": 8,
        "lr_scheduler_type": "constant",
    }
    return TrainingArguments(str(folder), **{**quiet, **settings})


def one_step_of_descent(folder: Path, **settings: Any) -> TrainingArguments:
    """After it, weights have moved by 0.1 times the gradient."""
    sgd = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "max_steps": 1}
    return arguments(folder, **{**sgd, **settings})


class InOrder:
    """Takes the examples as they come."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


class BeliefTrainerInOrder(InOrder, babn.BeliefTrainer):
    """Keeps the weight of the KL as it is."""

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        constant = babn.KLAnnealing(schedule="constant", weight=babn.get_kl_weight(model))
        super().__init__(model, *args, **{"annealing": constant, **kwargs})


class PlainTrainerInOrder(InOrder, Trainer):
    pass


def training_logs(trainer: Trainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]
