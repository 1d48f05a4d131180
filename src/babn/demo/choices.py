"""The choices of the demo: which rules, and how they are trained; all made on the dev split.

`benchmarks/demo_settings.py` compares them, and `benchmarks/results/demo_settings.json` holds what
it found with four seeds.
"""

import babn
from babn.attention.rule import RuleConfig
from babn.demo.batches import MAX_TOKENS
from babn.demo.training import Recipe

# Sampling takes most of the demo's time; `babn.predict` draws twice as many by default.
SAMPLES = 10

BINS = 10
"""Bins of confidence, as in the paper."""

MEASURES = {
    "accuracy": "accuracy",
    "NLL": "NLL",
    f"ECE-{BINS}": "ECE",
    "outside AUROC": "out-of-scope AUROC",
}
"""What the rules are compared by, and what the demo calls it."""

KL_WEIGHT = 0.03

# Noise of this size, or less, leaves the NLL as it is: 0.78 for BABN and 0.79 for BAM against 0.78
# for softmax, with 0.03 between seeds. Three times as much costs 0.01 to 0.05.
RULES: dict[str, RuleConfig] = {
    "softmax": babn.SoftmaxConfig(),
    "BAM": babn.BamConfig(k=3.0, kl_weight=KL_WEIGHT),
    "BABN": babn.BeliefConfig.pairs(rho=4.0, kl_weight=KL_WEIGHT, max_length=MAX_TOKENS),
}

# From a coarse search over rates, batches and epochs. A belief rate ten times the encoder's leaves
# the NLL as it is, and mutual information then tells less.
PRETRAINED = Recipe(epochs=2, encoder_rate=3e-4, classifier_rate=3e-3, belief_rate=3e-4)

# Later the accuracy stays and the NLL rises.
SMALL = Recipe(epochs=10, encoder_rate=1e-3, classifier_rate=1e-3, belief_rate=1e-3)

# Shows that everything runs; too short to learn much.
QUICK = Recipe(epochs=3, encoder_rate=3e-3, classifier_rate=3e-3, belief_rate=1e-3)
