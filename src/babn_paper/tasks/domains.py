"""Generalisation across domains: training in one, testing in it and in another.

The setting of Desai & Durrett (2020, https://arxiv.org/abs/2003.07892), the paper's Table 2. Parts
are `"train"`; `"dev"`, for choosing settings and fitting the temperature; `"test"`, of the same
domain; and `"out"`, of the other one. A data folder has one subfolder for each data set: `snli` and
`mnli`, `qqp` and `twitter_url`, `swag` and `hellaswag`. `domain_data` describes how development
sets are halved, and what replaces a missing SWAG.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from babn.errors import DataError
from babn.evaluation.predictions import Evaluation
from babn.evaluation.temperature_scaling import fit_temperature
from babn.metrics import auroc, fpr95
from babn.prediction.result import Prediction
from babn_paper.tasks.domain_data import (
    ENDINGS,
    Corpus,
    Hub,
    PairReader,
    Split,
    SplitCorpus,
    read_endings,
    unfolded,
)
from babn_paper.tasks.scores import CALIBRATION
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Part, Predictions
from babn_paper.tasks.text_task import (
    TEMPERED,
    MultipleChoiceTask,
    TextExample,
    TextPredictions,
    TextTask,
)

PARTS: dict[str, Split] = {"train": "train", "dev": "dev", "test": "test", "out": "test"}
"""The split of its data set that a part is."""


@dataclass(frozen=True)
class DomainTask(TextTask):
    """A task in two domains.

    Attributes:
        name: Name in configurations and folders.
        title: Name in tables.
        target: The classes.
        source: The data set to train on.
        other: The data set of the other domain.
        substitute: Read from a folder that does not have the source.
        scores: Names of the scores in the paper's table.
        test_parts: Parts that a model is evaluated on after training.
        max_length: Default maximum number of tokens.
    """

    name: str
    title: str
    target: Classes
    source: Corpus
    other: Corpus
    substitute: SplitCorpus | None = None
    scores: tuple[str, ...] = ("accuracy",)
    test_parts: tuple[str, ...] = ("test", "out", "dev")
    max_length: int = 256

    def has(self, data: str, part: str) -> bool:
        """Whether the hub or the folder has the part."""
        if part not in PARTS:
            return False
        data = _location(data)
        if (substitute := self._substitute(data)) is not None:
            return substitute.has(data)
        return self._corpus(part).has(data, PARTS[part])

    def read(self, data: str, part: str) -> Part[TextExample]:
        """Reads the examples of a part, each with its texts and a label."""
        if part not in PARTS:
            raise DataError(f"{self.name!r} has no part {part!r}. Give one of {list(PARTS)}.")
        found = self._read(_location(data), part)
        return replace(found, name=part, origin=data if data == "builtin" else found.origin)

    def title_of(self, origin: str) -> str:
        """Returns the title for training data of an origin."""
        if self.substitute is not None and self.substitute.is_origin(origin):
            return self.substitute.title
        return self.title

    def across(self, predictions: Mapping[str, Predictions]) -> dict[str, dict[str, float]]:
        """Computes calibration at the temperature of `"dev"`, and detection of `"out"`."""
        known = {p: each for p, each in predictions.items() if isinstance(each, TextPredictions)}
        return across_domains({part: each.evaluation for part, each in known.items()})

    def _read(self, data: str, part: str) -> Part[TextExample]:
        if (substitute := self._substitute(data)) is None:
            return self._corpus(part).read(data, PARTS[part])
        if part == "out":
            return substitute.read_target(data)
        return substitute.read_source(data, PARTS[part])

    def _corpus(self, part: str) -> Corpus:
        return self.other if part == "out" else self.source

    def _substitute(self, data: str) -> SplitCorpus | None:
        has_source = data == "hub" or (Path(data) / self.source.name).is_dir()
        return None if has_source else self.substitute


class EndingsTask(MultipleChoiceTask, DomainTask):
    """A choice of endings in two domains."""


def _location(data: str) -> str:
    """Returns `"hub"` or a folder."""
    return str(files("babn_paper.data").joinpath("domains")) if data == "builtin" else data


def across_domains(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Computes metrics of `"test"` and `"out"` that need other parts as well.

    Metrics with `+ TS (in domain)` are computed after temperature scaling with the temperature
    fitted on `"dev"`, as in Desai & Durrett (2020). Those with `OOD` measure how well uncertainty
    separates `"out"` from `"test"`.

    Args:
        evaluations: Predictions and labels by part. Metrics that need a missing part are left out.
    """
    tested = {part: evaluations[part] for part in ("test", "out") if part in evaluations}
    found: dict[str, dict[str, float]] = {part: {} for part in tested}
    if "dev" in evaluations:
        dev = evaluations["dev"]
        temperature = fit_temperature(dev.prediction, dev.labels)
        for part, each in tested.items():
            found[part] |= _tempered(each, temperature)
    if len(tested) == 2:
        found["out"] |= _detection(tested["test"].prediction, tested["out"].prediction)
    return found


def _tempered(evaluation: Evaluation, temperature: float) -> dict[str, float]:
    prediction = evaluation.prediction.tempered(temperature)
    return {
        f"{name} + TS (in domain)": CALIBRATION[name](prediction, evaluation.labels)
        for name in TEMPERED
    }


def _detection(inside: Prediction, outside: Prediction) -> dict[str, float]:
    found = {
        "OOD AUROC (entropy)": auroc(inside.entropy, outside.entropy),
        "OOD FPR95 (entropy)": fpr95(inside.entropy, outside.entropy),
    }
    if len(inside.sample_logits) > 1:
        found["OOD AUROC (mutual information)"] = auroc(
            inside.mutual_information, outside.mutual_information
        )
    return found


INFERENCE = Classes(("entailment", "neutral", "contradiction"))
SAME = Classes(("different", "same"))

_INFERENCES = PairReader(("premise", "hypothesis"), INFERENCE, drop_undecided=True)

NLI = DomainTask(
    "nli",
    "SNLI to MNLI",
    INFERENCE,
    Corpus("snli", Hub("stanfordnlp/snli"), _INFERENCES),
    Corpus(
        "mnli",
        Hub("nyu-mll/glue", "mnli", dev="validation_matched"),
        _INFERENCES,
        dev=("dev_matched", "dev"),
    ),
)
PARAPHRASE = DomainTask(
    "paraphrase",
    "QQP to Twitter",
    SAME,
    Corpus("qqp", Hub("nyu-mll/glue", "qqp"), PairReader(("question1", "question2"), SAME)),
    # The hub has the training and the test file of TwitterURL in one split, which is tested as a
    # whole. The half of the test file that Desai & Durrett test is read from a
    # folder.
    Corpus(
        "twitter_url",
        Hub("mteb/twitterurlcorpus-pairclassification", test="test", unfold=unfolded),
        PairReader(("sentence1", "sentence2"), SAME),
        halves_test=True,
    ),
)
COMMONSENSE = EndingsTask(
    "commonsense",
    "SWAG to HellaSWAG",
    ENDINGS,
    Corpus("swag", Hub("allenai/swag", "regular"), read_endings),
    Corpus("hellaswag", Hub("Rowan/hellaswag"), read_endings),
    SplitCorpus(
        "hellaswag", "HellaSWAG, ActivityNet to WikiHow", "activitynet", "wikihow", read_endings
    ),
)

TASKS = {task.name: task for task in (NLI, PARAPHRASE, COMMONSENSE)}
"""The tasks by name, in the order of the paper's Table 2."""
