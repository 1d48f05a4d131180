"""A small vision transformer on images with growing noise.

    python examples/vit_images.py            # a few minutes on two cores
    python examples/vit_images.py --quick    # seconds: few steps, to see that it runs

A ViT learns to classify the shape in generated images (circle, square or triangle, in one of six
colours), once with softmax attention and once with BABN. Both models then classify the same images
with growing noise. For BABN, the example also draws the mean and the relative spread of the
attention of the class token, for a clean and a noisy image.

Expected result: with growing noise, the accuracy of both models falls. Where the confidence does
not fall as well, the calibration error grows. At this size, differences between the methods are
within the noise of one training run.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

import babn
from babn_paper.plots.images import attention_on_image
from babn_paper.tasks.vqa_sources import COLOURS, SHAPES, SIDE, Shape, draw

PATCH = 8
NOISE = (0.0, 0.2, 0.4, 0.8)
"""Standard deviations of the noise added to pixels, which lie between -1 and 1."""

METHODS = {"softmax": babn.SoftmaxConfig(), "BABN": babn.BeliefConfig()}


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pixels from -1 to 1, channels first, and the label of each image."""
    chance = random.Random(f"vit example {seed}")
    shapes = [
        Shape(
            chance.choice(SHAPES),
            chance.choice(sorted(COLOURS)),
            chance.uniform(0.3, 0.7) * SIDE,
            chance.uniform(0.3, 0.7) * SIDE,
            chance.uniform(11, 16),
        )
        for _ in range(count)
    ]
    pixels = torch.from_numpy(np.stack([draw(shape, chance) for shape in shapes]))
    labels = torch.tensor([SHAPES.index(shape.name) for shape in shapes])
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1, labels


def small_vit() -> ViTForImageClassification:
    """Returns a ViT with three layers over patches of 8 by 8 pixels."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=SIDE,
            patch_size=PATCH,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=len(SHAPES),
        )
    )


def train(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    """Trains in a plain loop, with a little noise on the pixels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    model.train()
    for step in range(steps):
        babn.KLAnnealing().apply(model, step, steps)
        chosen = torch.randint(len(labels), (32,))
        seen = pixels[chosen] + 0.1 * torch.randn(32, *pixels.shape[1:])
        loss = model(pixel_values=seen, labels=labels[chosen]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()


def report(name: str, model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    """Prints accuracy, confidence and uncertainty for each amount of noise."""
    chance = torch.Generator().manual_seed(0)
    samples = 10 if name == "BABN" else 1  # softmax is deterministic
    print(f"{name}\n  noise  accuracy  confidence  ECE   mutual information")
    for amount in NOISE:
        noisy = pixels + amount * torch.randn(pixels.shape, generator=chance)
        answers = babn.predict(model, {"pixel_values": noisy}, samples=samples)
        right = (answers.probs.argmax(-1) == labels).float().mean()
        sure = answers.probs.amax(-1).mean()
        error = babn.metrics.ece(answers.probs, labels)
        information = answers.mutual_information.mean()
        print(f"  {amount:4.1f}   {right:7.0%}   {sure:8.0%}   {error:5.2f}   {information:.4f}")
    print()


def picture(model: torch.nn.Module, pixels: torch.Tensor, folder: Path) -> None:
    """Draws the attention of the last layer's class token in a clean and in a noisy image."""
    chance = torch.Generator().manual_seed(1)
    for name, amount in (("clean", 0.0), ("noisy", 0.4)):
        seen = pixels[:1] + amount * torch.randn(pixels[:1].shape, generator=chance)
        last = babn.attention_maps(model, {"pixel_values": seen})[-1]
        shown = ((seen[0].clamp(-1, 1) + 1) * 127.5).to(torch.uint8)
        side = SIDE // PATCH
        figure = attention_on_image(last, shown, (side, side), first=1)
        print(f"attention to a {name} image: {babn.plots.save(figure, folder / f'{name}.png')}")


def main() -> None:
    """Trains both models, evaluates them under noise, and draws attention."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/vit-images"))
    options = parser.parse_args()

    pixels, labels = images(200 if options.quick else 2000, options.seed)
    tests, truth = images(16 if options.quick else 200, options.seed + 1)
    for name, config in METHODS.items():
        torch.manual_seed(options.seed)
        model = small_vit()
        babn.convert(model, config, example_inputs={"pixel_values": pixels[:1]})
        train(model, pixels, labels, steps=5 if options.quick else 400)
        report(name, model, tests, truth)
    picture(model, tests, options.out)


if __name__ == "__main__":
    main()
