"""Generalisation across domains: trained in one, tested there and in another.

The setting of Desai & Durrett (2020), the paper's Table 2. Parts are `"train"`; `"dev"`, for
choosing settings and fitting the temperature; `"test"`, of the same domain; and `"out"`, of the
other one. A folder of data holds one folder for each data set: `snli` and `mnli`, `qqp` and
`twitter_url`, `swag` and `hellaswag`. `domain_data` says how development sets are halved, and
`domain_stand_in` what is done without SWAG.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from babn.errors import DataError
from babn.evaluation import Evaluation
from babn.prediction.predict import find_logits
from babn_paper.tasks.domain_data import Corpus, Hub, Split
from babn_paper.tasks.domain_measures import across_domains
from babn_paper.tasks.domain_rows import ENDINGS, PairReader, read_endings, unfolded
from babn_paper.tasks.domain_stand_in import Divided
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.targets import Classes
from babn_paper.tasks.task import Answers, Asked, Part, Task, Tokenizer
from babn_paper.tasks.text_answers import TextAnswers, evaluated
from babn_paper.tasks.text_forms import Endings, Form, Pairs
from babn_paper.tasks.text_task import TextExample

PARTS: dict[str, Split] = {"train": "train", "dev": "dev", "test": "test", "out": "test"}
"""Which split of its data set a part is."""


@dataclass(frozen=True)
class DomainTask(Task[TextExample]):
    """A task in two domains.

    Attributes:
        name: In configurations and folders.
        title: In tables.
        form: How models are asked.
        source: The data set to train on.
        target: The one of the other domain.
        stand_in: What to read from a folder that does not have the source.
        scores: Names of the measures that the paper's table shows.
        test_parts: Parts that a model is tested on after training.
        max_length: The most tokens that the task needs.
    """

    name: str
    title: str
    form: Form
    source: Corpus
    target: Corpus
    stand_in: Divided | None = None
    scores: tuple[str, ...] = ("accuracy",)
    test_parts: tuple[str, ...] = ("test", "out", "dev")
    max_length: int = 256

    def has(self, data: str, part: str) -> bool:
        """Whether the hub or the folder has the part."""
        if part not in PARTS:
            return False
        data = _place(data)
        if (stand_in := self._stand_in(data)) is not None:
            return stand_in.has(data)
        return self._corpus(part).has(data, PARTS[part])

    def read(self, data: str, part: str) -> Part[TextExample]:
        """The examples of a part, each with its texts and a known label."""
        if part not in PARTS:
            raise DataError(f"{self.name!r} has no part {part!r}. Give one of {list(PARTS)}.")
        found = self._read(_place(data), part)
        return replace(found, name=part, origin=data if data == "builtin" else found.origin)

    def title_of(self, origin: str) -> str:
        """The title for what was trained on."""
        if self.stand_in is not None and self.stand_in.is_origin(origin):
            return self.stand_in.title
        return self.title

    def texts(self, examples: Sequence[TextExample]) -> Iterator[str]:
        """All texts, example after example."""
        return (text for example in examples for text in example.texts)

    def load_model(self, name: str, **settings: Any) -> nn.Module:
        """The pretrained model with a fresh head."""
        return self.form.load_model(name, settings)

    def make_model(self, sizes: Mapping[str, Any]) -> nn.Module:
        """An ALBERT with random weights."""
        return self.form.make_model(sizes)

    def make_pair_model(self, config: type[Any], sizes: Mapping[str, Any]) -> nn.Module:
        """A model of `babn_paper.models` with random weights."""
        return self.form.make_pair_model(config, sizes)

    def encode(
        self, part: Part[TextExample], tokenizer: Tokenizer, max_length: int, training: bool
    ) -> Encoded:
        """Examples as tensors, with labels also outside training, for the measures."""
        return self.form.encode(part.examples, tokenizer, max_length)

    def output(self, output: Any) -> Tensor:
        """The logits."""
        return find_logits(output)

    def answers(self, part: Part[TextExample], encoded: Encoded, asked: Asked) -> TextAnswers:
        """The answers in the order of the data, with the labels."""
        return self._judged(evaluated(self, part, encoded, asked))

    def across(self, answers: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
        """Calibration with the temperature of `"dev"`, and telling `"out"` from `"test"`."""
        known = {part: each for part, each in answers.items() if isinstance(each, TextAnswers)}
        return across_domains({part: each.evaluation for part, each in known.items()})

    def load_answers(self, folder: Path) -> TextAnswers:
        """Reads what `TextAnswers.save` wrote."""
        return self._judged(Evaluation.load(folder))

    def _judged(self, evaluation: Evaluation) -> TextAnswers:
        return TextAnswers(evaluation, self.scores)

    def _read(self, data: str, part: str) -> Part[TextExample]:
        if (stand_in := self._stand_in(data)) is None:
            return self._corpus(part).read(data, PARTS[part])
        if part == "out":
            return stand_in.read_target(data)
        return stand_in.read_source(data, PARTS[part])

    def _corpus(self, part: str) -> Corpus:
        return self.target if part == "out" else self.source

    def _stand_in(self, data: str) -> Divided | None:
        has_source = data == "hub" or (Path(data) / self.source.name).is_dir()
        return None if has_source else self.stand_in


def _place(data: str) -> str:
    """The hub or a folder."""
    return str(files("babn_paper.data").joinpath("domains")) if data == "builtin" else data


INFERENCE = Classes(("entailment", "neutral", "contradiction"))
SAME = Classes(("different", "same"))

_INFERENCES = PairReader(("premise", "hypothesis"), INFERENCE, drop_undecided=True)

NLI = DomainTask(
    "nli",
    "SNLI to MNLI",
    Pairs(INFERENCE),
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
    Pairs(SAME),
    Corpus("qqp", Hub("nyu-mll/glue", "qqp"), PairReader(("question1", "question2"), SAME)),
    # The hub has the whole of TwitterURL, of which nothing is trained on.
    Corpus(
        "twitter_url",
        Hub("mteb/twitterurlcorpus-pairclassification", test="test", unfold=unfolded),
        PairReader(("sentence1", "sentence2"), SAME),
    ),
)

COMMONSENSE = DomainTask(
    "commonsense",
    "SWAG to HellaSWAG",
    Endings(ENDINGS),
    Corpus("swag", Hub("allenai/swag", "regular"), read_endings),
    Corpus("hellaswag", Hub("Rowan/hellaswag"), read_endings),
    Divided(
        "hellaswag", "HellaSWAG, ActivityNet to WikiHow", "activitynet", "wikihow", read_endings
    ),
)

TASKS = {task.name: task for task in (NLI, PARAPHRASE, COMMONSENSE)}
"""The tasks by name, in the order of the paper's Table 2."""
