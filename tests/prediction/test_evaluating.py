"""A model is in evaluation mode during predictions, and its modes are restored afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import nn

from babn.prediction.sampling import evaluating


def made() -> nn.Module:
    """A model in training mode with one submodule in evaluation mode."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.Dropout()).train()
    model[3].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


BEFORE = [True, True, True, True, False]
EVALUATING = [False] * 5
DROPPING = [True, True, False, True, True]


@contextmanager
def another_thread(model: nn.Module, dropout: bool) -> Iterator[threading.Event]:
    """Uses the model in another thread; sets the event once it has entered, until the end."""
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with evaluating(model, dropout):
            inside.set()
            assert leave.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield inside
    finally:
        leave.set()
        thread.join(30)


@pytest.mark.parametrize(("dropout", "expected"), [(False, EVALUATING), (True, DROPPING)])
def test_modes_are_restored_also_after_errors(dropout: bool, expected: list[bool]) -> None:
    model = made()
    with pytest.raises(ValueError, match="x"), evaluating(model, dropout):
        assert modes(model) == expected
        raise ValueError("x")
    assert modes(model) == BEFORE


@pytest.mark.parametrize("dropout", [False, True])
def test_threads_take_turns(dropout: bool) -> None:
    model = made()
    with evaluating(model):
        other = another_thread(model, dropout)
        inside = other.__enter__()
        assert not inside.wait(0.2)
        assert modes(model) == EVALUATING
    assert inside.wait(30)
    assert modes(model) == (DROPPING if dropout else EVALUATING)
    other.__exit__(None, None, None)
    assert modes(model) == BEFORE


def test_threads_with_different_models_do_not_wait() -> None:
    with another_thread(made(), dropout=False) as inside, evaluating(made()):
        assert inside.wait(30)


def test_a_thread_does_not_wait_for_itself() -> None:
    model = made()
    with evaluating(model):
        with evaluating(model, dropout=True):
            assert modes(model) == DROPPING
        assert modes(model) == EVALUATING
    assert modes(model) == BEFORE
