"""The choices of the demo, all made on the development texts.

`benchmarks/demo_settings.py` compares them over several seeds.
"""

from babn.training.fine_tuning import Recipe

# Sampling takes most of the demo's time; `babn.predict` draws twice as many by default.
SAMPLES = 10

# With fewer samples the NLL is overestimated, and too low a level is chosen.
TUNING_SAMPLES = 8

BINS = 10
"""Bins of confidence, as in the paper."""

MEASURES = {
    "accuracy": "accuracy",
    "NLL": "NLL",
    f"ECE-{BINS}": "ECE",
    "outside AUROC": "out-of-scope AUROC",
}
"""What BABN and softmax are compared by, and what the demo calls it."""

PRETRAINED = Recipe(epochs=4, rate=5e-4)

# Later the accuracy stays and the NLL rises.
SMALL = Recipe(epochs=10, rate=1e-3)

# Shows that everything runs; too short to learn much.
QUICK = Recipe(epochs=3, rate=3e-3)
