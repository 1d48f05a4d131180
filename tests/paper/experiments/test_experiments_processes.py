"""One model trained by several processes, as torchrun starts them."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import same_weights, tiny, weights
from small_sweeps import kill, until
from torch import Tensor

import babn
from babn_paper.experiments.attention import loss_terms
from babn_paper.experiments.checkpoints import find_checkpoints
from babn_paper.experiments.config_files import write_experiment
from babn_paper.experiments.distributed import (
    SINGLE,
    World,
    current_world,
    process_group,
    was_restarted,
)
from babn_paper.experiments.log import read_log
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import prepare_training
from launching import start_torchrun, torchrun

pytestmark = pytest.mark.thorough

NOISELESS: dict[str, Any] = {
    "settings": {"rho": 1e9, "sigma": 0.0},
    "dropout": 0.0,
    "classifier_dropout": 0.0,
    "batch_size": 7,
}


def test_processes_share_the_examples_of_a_step() -> None:
    state = prepare_training(tiny(batch_size=8, accumulation=2, method="softmax"))
    (first, second) = state.micro_batches(0)
    for count in (2, 3, 5):
        shares = [list(state.micro_batches(0, World(rank, count))) for rank in range(count)]
        for part, whole in enumerate((first, second)):
            micro_batches = [share[part] for share in shares]
            assert sum(each.weight for each in micro_batches) == pytest.approx(count)
            assert {each.share for each in micro_batches} == {whole.share}
            busy = [each for each in micro_batches if each.weight]
            rows = torch.cat([each.batch["labels"] for each in busy])
            assert sorted(rows.tolist()) == sorted(whole.batch["labels"].tolist())
            assert all(len(each.batch["labels"]) == 1 for each in micro_batches if not each.weight)


def test_a_mean_over_words_weighs_processes_by_words() -> None:
    options = {"train_limit": 40, "test_limit": 4}
    sizes = {"vocab_size": 150, "embedding_size": 8, "encoder_size": 6, "decoder_size": 10}
    state = prepare_training(
        tiny(task="translation", model="lstm", method="softmax", options=options, sizes=sizes)
    )
    state.model.eval()

    def losses(world: World) -> Tensor:
        return torch.stack(
            [p.weight * state.model(**p.batch).loss for p in state.micro_batches(0, world)]
        )

    with torch.no_grad():
        alone = losses(SINGLE)
        three = torch.stack([losses(World(rank, 3)) for rank in range(3)])
    torch.testing.assert_close(three.mean(0), alone)


def test_the_bound_of_an_example_is_that_of_one_process_and_one_micro_batch() -> None:
    sizes = {"vocab_size": 150, "embedding_size": 8, "encoder_size": 6, "decoder_size": 10}
    fields = {"task": "translation", "model": "lstm", "sizes": sizes, "batch_size": 8}
    settings = {"kl_reduction": "sum", "kl_weight": 1.0}

    def bound(accumulation: int, processes: int) -> Tensor:
        options = {"train_limit": 40, "test_limit": 4}
        state = prepare_training(
            tiny(**fields, options=options, settings=settings, accumulation=accumulation)
        )
        babn.set_kl_weight(state.model.eval(), 1.0)
        total = torch.zeros(())
        for rank in range(processes):
            for micro in state.micro_batches(0, World(rank, processes)):
                with torch.no_grad(), babn.recording_kl(state.model):
                    output = state.model(**micro.batch)
                    terms = loss_terms(state.model, output, micro.batch)
                total += micro.share * micro.weight * sum(terms) / processes
        return total

    alone = bound(1, 1)
    for accumulation, processes in ((2, 1), (1, 3), (2, 3)):
        torch.testing.assert_close(bound(accumulation, processes), alone)


def test_noise_differs_between_processes_and_follows_from_the_seed() -> None:
    def drawn(rank: int, step: int, seed: int = 0) -> float:
        World(rank, 2).seed_step(seed, step)
        return float(torch.rand(()))

    with torch.random.fork_rng():
        numbers = [drawn(0, 0), drawn(1, 0), drawn(0, 1), drawn(1, 1), drawn(0, 0, seed=1)]
        assert len(set(numbers)) == 5
        assert drawn(1, 1) == numbers[3]
        torch.manual_seed(3)
        before = torch.get_rng_state()
        SINGLE.seed_step(0, 0)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_process_alone_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_group() as world:
        assert world == current_world() == SINGLE and world.is_rank_zero
        assert world.from_rank_zero(lambda: 3) == 3
        assert world.any(True) and not world.any(False)
        assert world.gather([1, 2]) == [1, 2]
    assert not was_restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert was_restarted()


def train(folder: Path, *arguments: str, **fields: Any) -> tuple[str, ...]:
    """The command that trains a tiny model, to be started by torchrun."""
    folder.mkdir(exist_ok=True)
    write_experiment(tiny(**fields), folder / "tiny.toml")
    return ("-m", "babn", "train", "tiny.toml", "--out", "run", *arguments)


def save_small_model(folder: Path) -> Path:
    """A folder with a model whose dropout an experiment may set, as one from the hub."""
    state = prepare_training(tiny(method="softmax"))
    babn.revert(state.model).save_pretrained(folder)
    state.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing has happened to."""
    folder = tmp_path_factory.mktemp("two")
    torchrun(*train(folder, steps=60, checkpoint_every=4), cwd=folder)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("kl_reduction", ["mean", "sum"])
def test_two_processes_have_the_weights_and_predictions_of_one(
    tmp_path: Path, kl_reduction: str
) -> None:
    fields = NOISELESS | {"model": str(save_small_model(tmp_path / "model"))}
    fields["settings"] = NOISELESS["settings"] | {"kl_reduction": kl_reduction}
    torchrun(*train(tmp_path, **fields), cwd=tmp_path)
    run(tiny(**fields), tmp_path / "alone")
    one, other = weights(tmp_path / "alone"), weights(tmp_path / "run")
    for name, weight in one.items():
        torch.testing.assert_close(other[name], weight, rtol=1e-3, atol=1e-4, msg=name)
    logs = [read_log(RunFolder(tmp_path / name)) for name in ("alone", "run")]
    for first, second in zip(*logs, strict=True):
        for name in ("loss", "nll", "kl"):
            assert second[name] == pytest.approx(first[name], rel=1e-3), name
    kept = [babn.Evaluation.load(tmp_path / n / "predictions/dev-mean") for n in ("alone", "run")]
    assert torch.equal(kept[0].labels, kept[1].labels)
    probs = [each.prediction.probs for each in kept]
    torch.testing.assert_close(probs[0], probs[1], rtol=0, atol=1e-3)
    about = json.loads((tmp_path / "run/environment.json").read_text())
    assert about["processes"] == 2


def processes_of(agent: "subprocess.Popen[str]") -> list[int]:
    """The processes that torchrun has started, by rank."""
    ranks = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(parent) != agent.pid:
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        for variable in variables:
            if variable.startswith(b"RANK="):
                ranks[int(variable.removeprefix(b"RANK="))] = int(entry.name)
    return [ranks[rank] for rank in sorted(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_costs_the_steps_since_the_last_checkpoint(
    rank: int, tmp_path: Path, two: Path
) -> None:
    command = train(tmp_path, steps=60, checkpoint_every=4)
    agent = start_torchrun("--max-restarts=1", *command, cwd=tmp_path)
    until(lambda: find_checkpoints(tmp_path / "run/checkpoints"))
    kill(processes_of(agent)[rank])
    output, _ = agent.communicate(timeout=240)
    assert agent.returncode == 0, output[-3000:]
    assert same_weights(two, tmp_path / "run")
    place = RunFolder(tmp_path / "run")
    assert place.read_results()["measures"] == RunFolder(two).read_results()["measures"]
    assert [line["step"] for line in read_log(place)] == list(range(1, 61))
    assert len(list(place.tensorboard.iterdir())) == 2  # begun and gone on with


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_and_resume_goes_on(tmp_path: Path, two: Path) -> None:
    command = train(tmp_path, steps=60, checkpoint_every=4)
    agent = start_torchrun(*command, cwd=tmp_path)
    until(lambda: find_checkpoints(tmp_path / "run/checkpoints"))
    os.kill(agent.pid, signal.SIGINT)
    agent.communicate(timeout=60)
    place = RunFolder(tmp_path / "run")
    assert place.state == "unfinished" and place.holder is None
    torchrun(*command, "--resume", cwd=tmp_path)
    assert same_weights(two, tmp_path / "run")


@pytest.mark.slow
def test_errors_are_told_once(tmp_path: Path, two: Path) -> None:
    command = train(tmp_path, steps=60, checkpoint_every=4)
    agent = start_torchrun(*command[:-1], str(two), cwd=tmp_path)
    output, _ = agent.communicate(timeout=120)
    assert agent.returncode != 0
    assert output.count("holds a run that is done: --overwrite begins again") == 1
