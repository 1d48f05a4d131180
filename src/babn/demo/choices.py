"""The choices of the demo: which rules, and how they are trained.

All were made once, on the dev split alone, by the NLL over two or three seeds.
"""

import babn
from babn.attention.rule import RuleConfig
from babn.demo.batches import MAX_TOKENS
from babn.demo.training import Recipe

SAMPLES = 20

# Tried: rho 0.5, 1.5, 4, 12 and k 1, 3, 10. Noise up to rho=4 and k=3 leaves the NLL as it is
# (0.83 against 0.83 for softmax), more of it costs 0.02 to 0.03. These two are about equally noisy.
RULES: dict[str, RuleConfig] = {
    "softmax": babn.SoftmaxConfig(),
    "BAM": babn.BamConfig(k=3.0),
    "BABN": babn.BeliefConfig(rho=4.0, max_length=MAX_TOKENS),
}

# Tried: encoder rates from 1e-4 to 8e-4, classifier rates of 1, 3 and 10 times that, batches of 8,
# 16 and 32, two to eight epochs. With a slow classifier the same NLL takes three epochs and more. A
# belief rate ten times the encoder's leaves the NLL as it is, and mutual information tells less.
PRETRAINED = Recipe(epochs=2, encoder_rate=3e-4, classifier_rate=3e-3, belief_rate=3e-4)

# Tried: rates from 5e-4 to 4e-3 and 10 or 20 epochs. Later the accuracy stays and the NLL rises.
SMALL = Recipe(epochs=10, encoder_rate=1e-3, classifier_rate=1e-3, belief_rate=1e-3)

# Shows that everything runs; too short to learn much.
QUICK = Recipe(epochs=3, encoder_rate=3e-3, classifier_rate=3e-3, belief_rate=1e-3)
