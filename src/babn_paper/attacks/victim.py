"""The attacked model: it answers queries, at random if the threat says so."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

import babn
from babn.attention.noise_source import NoiseSource, fold_in
from babn.conversion.override import overriding
from babn.prediction.modes import evaluating
from babn.prediction.predict import Prediction
from babn.prediction.temperature import get_temperature
from babn_paper.attacks.plan import Plan
from babn_paper.experiments.stage import Subject
from babn_paper.experiments.testing import autocast
from babn_paper.tasks.encoded import Batch
from babn_paper.tasks.predictor import MEMORY
from babn_paper.tasks.task import Part, without_labels
from babn_paper.tasks.text_task import TextExample


class Victim:
    """Answers texts with probabilities of classes.

    NoiseSource follows from the plan's seed, the example and the number of the query, so that an
    attack that was interrupted meets the same noise as one that was not. The same text asked twice
    is answered by fresh noise.

    Args:
        subject: Model, task and experiment.
        plan: What answers a query.
    """

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject, self.plan = subject, plan
        self.queries = 0
        self._example = 0

    @property
    def is_random(self) -> bool:
        """Whether the same query may be answered differently."""
        return self.plan.threat != "mean"

    def begin(self, place: int) -> None:
        """Starts counting the queries of an example."""
        self._example, self.queries = place, 0

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> Float[Tensor, "text label"]:
        """Probabilities of the classes for each text or pair of texts."""
        first, self.queries = self.queries, self.queries + len(texts)
        batch = self._encoded(texts)
        with torch.no_grad(), autocast(self.subject.experiment, self.subject.device):
            found = self._asked(batch, [self._seed(first + i) for i in range(len(texts))])
        # Attackers check that a row adds up to one, more closely than single precision does.
        probs = found.probs.double().cpu()
        return probs / probs.sum(-1, keepdim=True)

    def _asked(self, batch: Batch, seeds: list[int]) -> Prediction:
        model, task = self.subject.model, self.subject.task
        if self.plan.threat == "average":
            memory = MEMORY if self.subject.device.type == "cuda" else None
            return babn.predict(
                model,
                batch,
                self.plan.samples,
                seeds[0],
                recenter=False,
                memory=memory,
                output=task.output,
            )
        mode = "sample" if self.plan.threat == "sample" else "mean"
        with evaluating(model), overriding(model, mode=mode, noise_source=NoiseSource(seeds)):
            logits = task.output(model(**batch)).float()
        return Prediction(logits[None], "softmax").tempered(get_temperature(model))

    def _encoded(self, texts: Sequence[tuple[str, ...]]) -> Batch:
        subject = self.subject
        part = Part("attack", [TextExample(each, 0) for each in texts], "attack", "")
        encoded = subject.task.encode(part, subject.tokenizer, subject.max_length, training=False)
        rows = torch.arange(len(texts))
        return without_labels(encoded.to(subject.device).batch(rows, subject.multiple))

    def _seed(self, query: int) -> int:
        return fold_in(fold_in(self.plan.seed, self._example), query)
