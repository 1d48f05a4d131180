"""Tasks of two domains on the hub, through a stand-in for the `datasets` package."""

import sys
from typing import Any

import pytest
from domain_cases import Hub, Rows

from babn.errors import DataError
from babn_paper.tasks.domains import COMMONSENSE, NLI, PARAPHRASE, DomainTask

PAIR = {"premise": "a", "hypothesis": "b", "question1": "a", "question2": "b", "label": 1}
SWAG = {"sent1": "a", "sent2": "b", "label": 2, **{f"ending{i}": str(i) for i in range(4)}}
HELLASWAG = {"ctx_a": "a", "ctx_b": "", "ctx": "a", "endings": [*"0123"], "label": "2"}
TWEETS = {"sent1": ["a", "c", "e"], "sent2": ["b", "d", "f"], "labels": [1, 0, 1]}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setitem(sys.modules, "datasets", found)
    return found


@pytest.mark.parametrize(
    ("task", "part", "row", "expected"),
    [
        (NLI, "train", PAIR, ("stanfordnlp/snli", None, "train")),
        (NLI, "dev", PAIR, ("stanfordnlp/snli", None, "validation")),
        (NLI, "test", PAIR, ("stanfordnlp/snli", None, "validation")),
        (NLI, "out", PAIR, ("nyu-mll/glue", "mnli", "validation_matched")),
        (PARAPHRASE, "test", PAIR, ("nyu-mll/glue", "qqp", "validation")),
        (COMMONSENSE, "train", SWAG, ("allenai/swag", "regular", "train")),
        (COMMONSENSE, "dev", SWAG, ("allenai/swag", "regular", "validation")),
        (COMMONSENSE, "out", HELLASWAG, ("Rowan/hellaswag", None, "validation")),
    ],
)
def test_parts_are_splits_or_halves_of_splits(
    hub: Hub,
    task: DomainTask,
    part: str,
    row: dict[str, Any],
    expected: tuple[str, str | None, str],
) -> None:
    hub.rows = Rows([row] * 5)
    assert task.has("hub", part)
    found = task.read("hub", part)
    assert hub.requests == [expected]
    assert len(found.examples) == {"train": 5, "dev": 3}.get(part, 2)
    assert found.origin.startswith(f"hub:{expected[0]} ({expected[2]})")
    assert found.fingerprint.startswith("0123abcd")


def test_halves_on_the_hub_share_nothing(hub: Hub) -> None:
    hub.rows = Rows(PAIR | {"premise": str(i), "label": -1 if i == 3 else 1} for i in range(6))
    dev, test = (NLI.read("hub", part).examples for part in ("dev", "test"))
    assert [each.texts[0] for each in dev] == ["0", "2", "5"]
    assert [each.texts[0] for each in test] == ["1", "4"]


def test_lists_of_tweets_are_unfolded(hub: Hub) -> None:
    hub.rows = Rows([TWEETS])
    found = PARAPHRASE.read("hub", "out")
    assert hub.requests == [("mteb/twitterurlcorpus-pairclassification", None, "test")]
    assert [(each.texts, each.label) for each in found.examples] == [
        (("a", "b"), 1),
        (("c", "d"), 0),
        (("e", "f"), 1),
    ]
    hub.rows = Rows([TWEETS | {"labels": [1, 0, 7]}])
    with pytest.raises(DataError, match=r"test:1:3: label='7' is not a class"):
        PARAPHRASE.read("hub", "out")
    with pytest.raises(DataError, match="'dev' of 'twitter_url' is not on the hub"):
        PARAPHRASE.other.read("hub", "dev")
