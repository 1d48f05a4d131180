"""Reading from the hub, through a stand-in for the `datasets` package."""

import sys
from typing import Any

import pytest
from domain_cases import Hub, Rows

from babn.errors import DataError, MissingExtraError
from babn_paper.tasks.glue import MNLI, RTE


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub({"premise": "a", "hypothesis": "b", "label": 2, "idx": 0})
    monkeypatch.setitem(sys.modules, "datasets", found)
    return found


@pytest.mark.parametrize(
    ("part", "split"), [("dev", "validation_matched"), ("dev-mismatched", "validation_mismatched")]
)
def test_parts_are_splits_of_the_hub(hub: Hub, part: str, split: str) -> None:
    found = MNLI.read("hub", part)
    assert hub.requests == [("nyu-mll/glue", "mnli", split)]
    assert found.examples[0].texts == ("a", "b") and found.examples[0].label == 2
    assert (found.origin, found.fingerprint) == ("hub:nyu-mll/glue", "0123abcd")


def test_unknown_parts_are_refused_before_anything_is_loaded(hub: Hub) -> None:
    assert MNLI.has("hub", "dev") and not RTE.has("hub", "dev-mismatched")
    with pytest.raises(DataError, match="'dev-mismatched' of 'rte' is not on the hub"):
        RTE.read("hub", "dev-mismatched")
    assert hub.requests == []


def test_rows_without_labels_are_refused_with_their_place(hub: Hub) -> None:
    hub.rows = Rows([{"sentence1": "a", "sentence2": "b", "label": -1}])
    with pytest.raises(DataError, match=r"hub:nyu-mll/glue/rte/test:1: .* marks a missing label"):
        RTE.read("hub", "test")
    hub.rows = Rows()
    with pytest.raises(DataError, match="has no rows"):
        RTE.read("hub", "test")


def test_a_failed_download_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Rows:
        raise ConnectionError("no route\nmuch more")

    monkeypatch.setattr(hub, "load_dataset", fail)
    with pytest.raises(DataError, match=r"cannot be loaded: no route\. Check") as caught:
        RTE.read("hub", "dev")
    assert "\n" not in str(caught.value)


def test_without_the_package_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'babn\[data\]'"):
        RTE.read("hub", "dev")
