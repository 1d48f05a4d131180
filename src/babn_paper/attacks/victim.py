"""The attacked model, whose predictions may be random."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

import babn
from babn.attention.noise_source import NoiseSource, fold_in
from babn.conversion.override import overriding
from babn.prediction.modes import evaluating
from babn.prediction.result import Prediction
from babn.prediction.stored_settings import get_temperature
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.predictions import autocast
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.task import MEMORY, Part, without_labels
from babn_paper.tasks.text_task import TextExample


class Victim:
    """Predicts class probabilities of texts.

    The noise depends on the plan's seed, the example and the number of the query. An interrupted
    attack therefore meets the same noise as an uninterrupted one, and two queries with the same
    text meet different noise.

    Args:
        task_model: Model, task and experiment.
        plan: Defines the threat model.
    """

    def __init__(self, task_model: TaskModel, plan: Plan) -> None:
        self.task_model, self.plan = task_model, plan
        self.queries = 0
        self._example = 0

    @property
    def is_random(self) -> bool:
        """Whether predictions for the same text differ between queries."""
        return self.plan.threat != "mean"

    def begin(self, place: int) -> None:
        """Starts an example and resets its number of queries."""
        self._example, self.queries = place, 0

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> Float[Tensor, "text label"]:
        """Class probabilities of each text or text pair."""
        first, self.queries = self.queries, self.queries + len(texts)
        batch = self._encode(texts)
        with torch.no_grad(), autocast(self.task_model.experiment, self.task_model.device):
            found = self._predict(batch, [self._seed(first + i) for i in range(len(texts))])
        # Attackers check that rows sum to 1 more strictly than float32 can satisfy.
        probs = found.probs.double().cpu()
        return probs / probs.sum(-1, keepdim=True)

    def _predict(self, batch: Batch, seeds: list[int]) -> Prediction:
        model, task = self.task_model.model, self.task_model.task
        if self.plan.threat == "average":
            memory = MEMORY if self.task_model.device.type == "cuda" else None
            return babn.predict(
                model, batch, self.plan.samples, seeds[0], memory=memory, output=task.output
            )
        mode = "sample" if self.plan.threat == "sample" else "mean"
        with evaluating(model), overriding(model, mode=mode, noise_source=NoiseSource(seeds)):
            logits = task.output(model(**batch)).float()
        return Prediction(logits[None], "softmax").tempered(get_temperature(model))

    def _encode(self, texts: Sequence[tuple[str, ...]]) -> Batch:
        task_model = self.task_model
        part = Part("attack", [TextExample(each, 0) for each in texts], "attack", "")
        encoded = task_model.task.encode(
            part, task_model.tokenizer, task_model.max_length, training=False
        )
        rows = torch.arange(len(texts))
        return without_labels(encoded.to(task_model.device).batch(rows, task_model.multiple))

    def _seed(self, query: int) -> int:
        return fold_in(fold_in(self.plan.seed, self._example), query)
