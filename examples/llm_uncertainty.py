"""Uncertainty of a small language model about text that it reads and generates.

    python examples/llm_uncertainty.py            # about a minute on two cores, no downloads
    python examples/llm_uncertainty.py --quick    # seconds: a few steps, to see that it runs

Trains a character-level GPT-2 on the documents of this project, converts it, and continues training
with noise. It then shows

1. the uncertainty about held-out text as written, with its words in another order, and with its
   characters in another order;
2. generated text with its uncertainty.

The model has about a hundred thousand parameters. The example shows how to call the library; its
numbers mean little.
"""

import argparse
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

import babn

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/experiments.md", "docs/gotchas.md")
CONTEXT, BATCH, HELD_OUT = 32, 32, 1536
LETTERS = "abcdefghijklmnopqrstuvwxyz .,:\n"


class Characters:
    """A tokenizer with one token per character."""

    def __init__(self, text: str) -> None:
        self.known = sorted(set(text))
        self.numbers = {character: number for number, character in enumerate(self.known)}

    def encode(self, text: str) -> Tensor:
        """Encodes characters as numbers; unknown characters become spaces."""
        return torch.tensor([self.numbers.get(c, self.numbers[" "]) for c in text])

    def decode(self, tokens: Tensor) -> str:
        """Decodes numbers into text."""
        return "".join(self.known[token] for token in tokens.tolist())


def small_gpt2(characters: int) -> Any:
    """A decoder of two layers with random weights."""
    config = GPT2Config(
        vocab_size=characters,
        n_positions=8 * CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def train(model: Any, tokens: Tensor, steps: int, rate: float, title: str) -> None:
    """Trains on random pieces of the text; the loss of a converted model includes the KL."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=max(steps, 10), pct_start=0.15
    )
    model.train()
    for step in range(steps):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + CONTEXT] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"  {title}: step {step + 1:4d} of {steps}, loss {loss.item():.2f}")
    model.eval()


def plain(text: str) -> str:
    """Keeps only lower-case letters and a few signs, so that a small model can learn the text."""
    kept = "".join(c if c in LETTERS else " " for c in text.lower())
    return re.sub(" +", " ", kept)


def shuffled_words(text: str) -> str:
    """The same words in another order."""
    words = text.split(" ")
    random.Random(0).shuffle(words)
    return " ".join(words)


def shuffled_characters(text: str) -> str:
    """The same characters in another order."""
    characters = list(text)
    random.Random(0).shuffle(characters)
    return "".join(characters)


def read(model: Any, tokens: Tensor, samples: int) -> dict[str, float]:
    """Returns the NLL and the uncertainty of a text, averaged over tokens."""
    batch = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    found = babn.predict(model, {"input_ids": batch}, samples=samples, seed=0)
    probs = found.probs[:, :-1].gather(-1, batch[:, 1:, None])
    return {
        "NLL": float(-probs.log().mean()),
        "entropy": float(found.entropy[:, :-1].mean()),
        "mutual information": float(found.mutual_information[:, :-1].mean()),
    }


def show_reading(model: Any, characters: Characters, text: str, samples: int) -> None:
    """Compares the uncertainty about text as written and about shuffled text."""
    variants = {
        "as written": text,
        "words shuffled": shuffled_words(text),
        "characters shuffled": shuffled_characters(text),
    }
    print(f"\nReading held-out text, {samples} samples of attention, nats per character:\n")
    print(f"  {'':<20} {'NLL':>6} {'entropy':>8} {'mutual information':>19}")
    for name, variant in variants.items():
        row = read(model, characters.encode(variant), samples)
        print(
            f"  {name:<20} {row['NLL']:6.2f} {row['entropy']:8.2f} "
            f"{row['mutual information']:19.4f}"
        )


def show_writing(model: Any, characters: Characters, prompts: list[str], samples: int) -> None:
    """Continues prompts of different lengths, padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.stack([characters.encode(prompt.rjust(longest)) for prompt in prompts])
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    batch = {"input_ids": ids, "attention_mask": seen}
    found = babn.generate(
        model, batch, samples=samples, seed=0, max_new_tokens=40, do_sample=False, pad_token_id=0
    )
    assert found.texts is not None
    for row, prompt in enumerate(prompts):
        written = characters.decode(found.new_tokens[row])
        information = found.tokens.mutual_information[row]
        doubtful = "".join("^" if x > information.mean() + information.std() else " "
                           for x in information)  # fmt: skip
        begin = prompt.replace("\n", " ")
        print(f"\n  {begin}|{written!r}")
        print(f"  {' ' * len(begin)}  {doubtful}  (^: attention is uncertain)")
        print(
            f"  length-normalised entropy {float(found.texts.normalized_entropy[row]):.2f}, "
            f"{int(found.texts.distinct[row])} different texts of {samples} samples, "
            f"agreement {float(found.texts.agreement[row]):.2f}"
        )
        other = characters.decode(found.texts.sequences[1, row, found.prompt_length :])
        print(f"  under another sample of attention: {other!r}")


def main() -> None:
    """Trains and converts the model, and prints its uncertainty."""
    options = argparse.ArgumentParser(description="Uncertainty of a small language model.")
    options.add_argument("--steps", type=int, default=350, help="steps before conversion")
    options.add_argument("--noisy-steps", type=int, default=60, help="steps after conversion")
    options.add_argument("--samples", type=int, default=10, help="samples of attention")
    options.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    given = options.parse_args()
    if given.quick:
        given.steps = given.noisy_steps = given.samples = 2
    set_seed(0)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for one another
    began = time.perf_counter()
    text = plain("\n".join((ROOT / name).read_text() for name in DOCUMENTS))
    characters = Characters(text)
    held_out = text[-HELD_OUT:]
    tokens = characters.encode(text[:-HELD_OUT])
    model = small_gpt2(len(characters.known))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"A GPT-2 of {size:,} parameters on {len(tokens):,} characters:")
    train(model, tokens, given.steps, 6e-3, "softmax")
    babn.convert(model, babn.BeliefConfig(rho=1.0, layers="last:1"))
    print(f"\n{babn.inspect(model)}\n")
    train(model, tokens, given.noisy_steps, 2e-3, "with noise in the last layer")
    show_reading(model, characters, held_out, given.samples)
    prompts = ["the attention weights ", "the model ", "zqx"]
    print("\nText generated at the posterior mean, and under samples:")
    show_writing(model, characters, prompts, given.samples)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
