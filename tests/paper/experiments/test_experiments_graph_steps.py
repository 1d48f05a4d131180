"""Steps that are recorded and replayed: the same training."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import StopsAt, same_weights, tiny, weights
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import babn
from babn.attention.masking import ranks, static_shapes
from babn.errors import ConfigError
from babn_paper.experiments import training
from babn_paper.experiments.distributed import SINGLE
from babn_paper.experiments.graph_steps import GraphedStep, LossTerms
from babn_paper.experiments.run import run
from babn_paper.experiments.training_state import TrainingState, prepare_training

pytestmark = pytest.mark.thorough

IMAGES: dict[str, Any] = {"task": "easy-vqa", "model": "mcan-small", "max_length": 0, "steps": 3}


class Rerun:
    """A recorder without a GPU: a recorded call is made again, into the same places."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.runs = 0

    def __call__(self, call: Callable[[], LossTerms]) -> tuple[LossTerms, Callable[[], None]]:
        noise = torch.get_rng_state()
        kept = {name: x.clone() for name, x in self._changed().items()}
        terms = {name: term.clone() for name, term in call().items()}
        places = {name: x.data_ptr() for name, x in self._changed().items()}
        for name, x in self._changed().items():
            x.copy_(kept[name])
        torch.set_rng_state(noise)

        def rerun() -> None:
            assert places == {name: x.data_ptr() for name, x in self._changed().items()}
            self.runs += 1
            with static_shapes(keys_in_order=True):  # as it was when it was recorded
                for name, term in call().items():
                    terms[name].copy_(term)

        return terms, rerun

    def _changed(self) -> dict[str, Tensor]:
        """What a call changes: gradients, and statistics of batches."""
        grads = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return grads | dict(self.model.named_buffers())


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Rerun]:
    """Makes training record and replay on a CPU; holds what records."""
    made: list[Rerun] = []

    def make_step(state: TrainingState, *others: Any) -> GraphedStep:
        made.append(Rerun(state.model))
        return GraphedStep(partial(training.backward, state, state.model), made[-1])

    monkeypatch.setattr(training, "make_step", make_step)
    return made


FIELDS = [
    pytest.param({"method": "belief"}, id="belief"),
    pytest.param(
        {"method": "belief", "settings": {"upward": "heads"}, "accumulation": 2}, id="parts"
    ),
    pytest.param({"method": "softmax", "dropout": 0.1, "label_smoothing": 0.1}, id="softmax"),
]


@pytest.mark.parametrize("fields", FIELDS)
def test_replayed_training_ends_with_the_same_weights(
    fields: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    experiment = tiny(steps=12, **fields)
    with static_shapes(keys_in_order=True):
        run(experiment, tmp_path / "plain")
    recorders = request.getfixturevalue("recorders")
    run(experiment, tmp_path / "replayed")
    assert same_weights(tmp_path / "plain", tmp_path / "replayed")
    assert recorders[0].runs >= 4


def test_an_interrupted_one_goes_on_to_the_same_weights(
    tmp_path: Path, recorders: list[Rerun]
) -> None:
    experiment = tiny(steps=12, checkpoint_every=3)
    run(experiment, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, tmp_path / "cut", progress=StopsAt(8))
    run(experiment, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


class NoValues(TorchDispatchMode):
    """Refuses what a GPU would have to be waited for, and what depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        looks = name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")
        if name in ("index", "index_put", "_index_put_impl_"):
            looks = any(x is not None and x.dtype == torch.bool for x in args[1])
        assert not looks, f"{name} depends on values"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["softmax", "belief"])
@pytest.mark.parametrize("fields", [{}, IMAGES], ids=["texts", "images"])
def test_no_value_decides_what_a_recorded_step_does(fields: dict[str, Any], method: str) -> None:
    state = prepare_training(tiny(method=method, **fields))
    state.model.train()
    (micro,) = state.micro_batches(0)
    with static_shapes(keys_in_order=True), NoValues():
        training.backward(state, state.model, micro)
    assert any(p.grad is not None and p.grad.any() for p in state.model.parameters())


def test_without_a_promise_keys_are_ranked_whatever_the_mask() -> None:
    mask = torch.tensor([[[[True, True, False]]]])
    assert ranks(mask) is None
    with static_shapes(keys_in_order=True):
        assert ranks(mask) is None
    with static_shapes(keys_in_order=False):
        found = ranks(mask)
    assert found is not None and found.tolist() == [[[[0, 1, 1]]]]


@pytest.mark.parametrize(
    "fields", [{"task": "tatoeba", "model": "lstm"}, {"task": "snli-mnli", "model": "esim"}]
)
def test_models_that_pack_texts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"graphs=true.*{fields['model']}"):
        tiny(graphs=True, **fields)


def test_a_cpu_takes_no_notice() -> None:
    state = prepare_training(tiny(graphs=True))
    with ExitStack() as stack:
        step = training.make_step(state, state.model, SINGLE, stack)
        assert not isinstance(step, GraphedStep)


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [*FIELDS, pytest.param(IMAGES, id="images")])
def test_recordings_of_a_gpu_train_as_steps_do(fields: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for graphs in (False, True):
        folder = tmp_path / str(graphs)
        run(tiny(**{**fields, "steps": 16}, graphs=graphs), folder)
        found.append(weights(folder))
    for name, right in found[0].items():
        torch.testing.assert_close(found[1][name], right, atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
def test_noise_and_weight_of_the_kl_change_from_replay_to_replay() -> None:
    state = prepare_training(tiny(graphs=True))
    state.model.train()
    with ExitStack() as stack:
        step = training.make_step(state, state.model, SINGLE, stack)
        (micro,) = state.micro_batches(0)
        losses = []
        for weight in (1.0, 1.0, 1.0, 1.0, 0.0):
            babn.set_kl_weight(state.model, weight)
            losses.append(float(step(micro)["loss"]))
    assert isinstance(step, GraphedStep) and len(step.recordings) == 1
    assert len(set(losses)) == 5
    assert losses[-1] < min(losses[:-1])
