"""Deep ensembles (Lakshminarayanan et al. 2017): models from several seeds, asked together."""

from collections.abc import Sequence

import torch

from babn.errors import ConfigError
from babn.prediction.predict import Prediction


def ensemble(members: Sequence[Prediction]) -> Prediction:
    """The members' answers to the same questions as samples of one prediction.

    Each member counts the same, so that all need equally many samples: one for a deterministic
    model, as `Prediction(logits.unsqueeze(0))`. Mutual information is then the uncertainty that the
    members' disagreement accounts for.
    """
    if not members:
        raise ConfigError("members=[] is not possible. Give the prediction of at least one model.")
    shapes = sorted({tuple(member.sample_logits.shape) for member in members})
    if len(shapes) > 1:
        raise ConfigError(
            f"members have samples of shapes {shapes}. Ask all of them the same questions, with "
            "equally many samples."
        )
    kinds = sorted({member.activation for member in members})
    if len(kinds) > 1:
        raise ConfigError(f"members have activations {kinds}. Give members of one kind.")
    samples = torch.cat([member.sample_logits for member in members])
    return Prediction(samples, members[0].activation)
