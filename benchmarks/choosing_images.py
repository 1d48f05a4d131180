"""Compares methods of uncertainty on CIFAR-10 with a small vision transformer.

    python benchmarks/choosing_images.py --data FOLDER --out DIR

The model is that of the papers on Gaussian-process attention (Chen and Li 2023,
<https://arxiv.org/abs/2303.02444>): 5 layers of width 128 with 4 heads over patches of 4x4 pixels,
trained from scratch, with 5,000 training images held out. Settings are chosen on the held-out
images; the test images, corrupted copies of them and MNIST are only evaluated on. The papers'
released code trains for 500 epochs in batches of 128 without augmentation and pools by the mean;
here epochs are fewer and batches larger, images are cropped and flipped at random unless `--plain`,
and a class token pools. The model has no pooler, so that SNGP has its Gaussian process but bounds
no spectral norm. Several processes with the same arguments divide the work (`sharing.py`).
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from from_scratch import train, write_about
from image_data import (
    CORRUPTIONS,
    Images,
    augmented,
    corrupted,
    joined,
    normalized,
    read_cifar,
    read_mnist,
    synthetic,
)
from sharing import SharedModels, evaluations, schedule, work
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import babn
from babn_paper.method_comparison.comparison_runs import OUTSIDE
from babn_paper.method_comparison.interface import Method
from babn_paper.method_comparison.method_catalogue import TS, find_methods, is_installed
from babn_paper.method_comparison.random_attention import attention
from babn_paper.method_comparison.trained_models import Problem, Variant

HELD_OUT, CORRUPTED, FOREIGN = 5000, 500, 2000
"""Images that settings are chosen on, that each corruption changes, and of MNIST."""

STRENGTHS = (1, 2, 3, 4, 5)
SAMPLES, AT_ONCE = 10, 500
PATCHES = 64

MEMORY = 2.0
"""Gigabytes for one pass, since several of these run beside each other."""

NAMES = (
    *("deterministic", "deterministic, distance", "BABN", "SNGP", "MC dropout", "Laplace"),
    "BABN, not trained",
    *("ensemble", "BABN pairs", "label smoothing", "BAM", "BABN as published"),
    "ensemble, BABN noise",
)
"""Methods by importance, in which order they are compared."""


def methods(names: Sequence[str], samples: int) -> list[Method]:
    """Methods without and with temperature scaling."""
    both = [each for name in names for each in (name, name + TS)]
    return [_adapted(each, samples) for each in find_methods(both) if is_installed(each)]


def _adapted(method: Method, samples: int) -> Method:
    """A method with fewer samples, and maps over as many keys as there are patches."""
    changes: dict[str, Any] = {"samples": samples} if hasattr(method, "samples") else {}
    if method.name.startswith(("BABN pairs", "BABN as published")):
        preset = babn.BeliefConfig.pairs if "pairs" in method.name else babn.BeliefConfig.paper
        name = method.name.removesuffix(TS)
        changes["variant"] = attention(name, preset(max_length=PATCHES + 1))
    return replace(method, **changes)  # type: ignore[type-var]


def build(quick: bool, device: str) -> nn.Module:
    """The vision transformer; a smaller one for trials."""
    width, layers, patch = (16, 2, 8) if quick else (128, 5, 4)
    config = ViTConfig(
        image_size=32,
        patch_size=patch,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        num_labels=10,
    )
    return ViTForImageClassification(config).to(device)


def batches(images: Images) -> list[dict[str, Tensor]]:
    """Images in the order given, as the model takes them."""
    return [
        {"pixel_values": normalized(part.pixels), "labels": part.labels}
        for part in (images[i : i + AT_ONCE] for i in range(0, len(images), AT_ONCE))
    ]


def epoch(images: Images, size: int, augment: bool) -> Iterator[dict[str, Tensor]]:
    """The training images in random order."""
    order = torch.randperm(len(images), device=images.labels.device)
    for rows in order[: len(order) // size * size].split(size):
        pixels = images.pixels[rows]
        pixels = augmented(pixels) if augment else pixels
        yield {"pixel_values": normalized(pixels), "labels": images.labels[rows]}


def load(args: Any) -> tuple[Images, Images, Images]:
    """Training, test and out-of-domain images."""
    if args.quick:
        return synthetic(80, 0), synthetic(20, 1), synthetic(10, 2)
    return *read_cifar(args.data), read_mnist(args.data)


def problem(images: Images, args: Any) -> Problem:
    """The training images without those held out, on which settings are chosen."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(42))
    out = held_out(args)
    kept = images[order[out:]].to(args.device)
    total = args.epochs * (len(kept) // args.batch)

    def trained(model: nn.Module, variant: Variant, seed: int) -> None:
        torch.manual_seed(seed)
        draw = partial(epoch, kept, args.batch, not args.plain)
        train(model, draw, total, args.lr, variant.label_smoothing)

    return Problem(
        partial(build, args.quick, args.device),
        trained,
        batches(kept),
        batches(images[order[:out]].to(args.device)),
        MEMORY,
    )


def tests(test: Images, foreign: Images, args: Any) -> dict[str, list[dict[str, Tensor]]]:
    """The test images, copies of some of them by strength of corruption, and MNIST."""
    few, strengths = test[:CORRUPTED], STRENGTHS[:1] if args.quick else STRENGTHS
    parts = {"test": test}
    for strength in strengths:
        copies = [corrupted(few, kind, strength) for kind in CORRUPTIONS]
        parts[f"corrupted {strength}"] = joined(copies)
    parts[OUTSIDE] = foreign[:FOREIGN]
    return {name: batches(part.to(args.device)) for name, part in parts.items()}


def run(args: Any) -> None:
    """All methods and seeds."""
    torch.set_float32_matmul_precision("high")
    images, test, foreign = load(args)
    settings = {name: getattr(args, name) for name in ("epochs", "batch", "lr", "plain")}
    settings |= {"images": len(images) - held_out(args), "samples": samples(args)}
    folder = args.out / "vit-cifar10"
    write_about(folder, "cifar10", "vit", settings, args.device)
    models, data = SharedModels(problem(images, args), args.weights), tests(test, foreign, args)
    chosen = methods(args.methods, samples(args))
    work(schedule(models, evaluations(models, chosen, args.seeds, data, folder)), folder)


def held_out(args: Any) -> int:
    """How many training images are held out."""
    return 20 if args.quick else HELD_OUT


def samples(args: Any) -> int:
    """How many samples methods draw."""
    return 2 if args.quick else SAMPLES


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of images; see image_data.py")
    parser.add_argument("--methods", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="folder of trained models, to share them")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--plain", action="store_true", help="without crops and flips")
    parser.add_argument("--quick", action="store_true", help="synthetic images and a tiny model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(arguments().parse_args())
