"""Translation from phrases to tables, by every method; resuming; and translating files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiments import StopsAt, same_weights
from typer.testing import CliRunner

from babn.cli._app import app
from babn.errors import ConfigError, DataError
from babn_paper.experiments.config_files import BUILT_IN, read_experiment
from babn_paper.experiments.engines import Job
from babn_paper.experiments.evaluation import evaluate, remeasure
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.file_translation import translate_file
from babn_paper.experiments.grids import quick, table_grid
from babn_paper.experiments.log import read_log
from babn_paper.experiments.records import collect
from babn_paper.experiments.result_pages import main_table, page
from babn_paper.experiments.run import run
from babn_paper.experiments.run_folder import RunFolder
from babn_paper.experiments.training_state import by_tokens, prepare_training
from babn_paper.tasks.catalogue import find_task

pytestmark = pytest.mark.thorough

METHODS = ("softmax", "va-enum", "va-sample", "bam", "belief")

TINY: dict[str, Any] = {
    "task": "translation",
    "model": "lstm",
    "data": "builtin",
    "steps": 4,
    "batch_tokens": 200,
    "learning_rate": 1e-2,
    "max_length": 40,
    "samples": 2,
    "sizes": {
        "vocab_size": 150,
        "embedding_size": 8,
        "encoder_size": 6,
        "decoder_size": 10,
        "attention_size": 6,
        "layers": 2,
    },
    "options": {"beam": 2, "train_limit": 60, "test_limit": 6},
}


def tiny(**fields: Any) -> Experiment:
    return Experiment.from_dict(TINY | fields)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        run(tiny(method=method), folder / f"translation-{method}" / "seed-0")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_translates_and_is_judged(runs: Path, method: str) -> None:
    place = RunFolder(runs / f"translation-{method}" / "seed-0")
    results = place.read_results()
    assert list(results["measures"]) == ["dev", "test"]
    modes = results["measures"]["test"]
    assert list(modes) == ["mean", "dropout" if method == "softmax" else "sampled"]
    for mode, found in modes.items():
        assert found["sentences"] == 6
        assert {"BLEU", "sacreBLEU", "chrF", "chrF~entropy Spearman"} <= set(found)
        assert ("chrF~mutual information Pearson" in found) == (mode != "mean")
        lines = (place.predictions / f"test-{mode}" / "translations.jsonl").read_text().splitlines()
        assert len(lines) == 6
        pair = find_task("translation").read("builtin", "test").examples[0]
        first = json.loads(lines[0])
        assert (first["source"], first["reference"]) == (pair.source, pair.target)
    assert "nrefs:1" in results["notes"]["sacreBLEU"]
    assert results["words_per_second"] > 0
    for line in read_log(place):
        assert line["loss"] == pytest.approx(line["nll"] + line["kl_weight"] * line["kl"], rel=1e-4)
        assert (line["kl"] != 0) == (method != "softmax")
    assert remeasure(place.path)["measures"].keys() == results["measures"].keys()


def test_the_saved_model_predicts_the_same(runs: Path) -> None:
    for method in ("va-sample", "belief"):
        place = RunFolder(runs / f"translation-{method}" / "seed-0")
        before = {p.parent.name: p.read_text() for p in place.predictions.rglob("*.jsonl")}
        scores = place.read_results()["measures"]["dev"]["sampled"]
        again = evaluate(place.path)["measures"]["dev"]["sampled"]
        assert again["chrF"] == scores["chrF"]
        for path in place.predictions.rglob("*.jsonl"):
            old = [json.loads(line)["hypothesis"] for line in before[path.parent.name].splitlines()]
            new = [json.loads(line)["hypothesis"] for line in path.read_text().splitlines()]
            assert new == old


@pytest.mark.parametrize("method", ["belief", pytest.param("va-sample", marks=pytest.mark.slow)])
def test_a_run_that_goes_on_comes_to_the_same_weights(
    runs: Path, tmp_path: Path, method: str
) -> None:
    experiment = tiny(
        method=method, checkpoint_every=1, options={**TINY["options"], "test_limit": 1}
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(experiment, whole)
    with pytest.raises(RuntimeError, match="crash"):
        run(experiment, broken, progress=StopsAt(2))
    run(experiment, broken, resume=True)
    assert same_weights(whole, broken)


def test_the_table_has_the_papers_numbers(runs: Path) -> None:
    jobs = [Job(tiny(method=r), runs / f"translation-{r}" / "seed-0") for r in METHODS]
    table = main_table(collect(jobs))
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [row[0] for row in table.rows if row[1] == "mean"] == [
        "softmax",
        "VA + enum",
        "VA + sample",
        "BAM",
        "BABN",
    ]
    text = page(collect(jobs), "Table 4", "babn reproduce table4")
    assert "nrefs:1" in text
    assert "ECE" not in text
    missing = [Job(tiny(method=r), runs / "none" / r) for r in METHODS]
    empty = main_table(collect(missing))
    assert {len(row) for row in empty.rows} == {len(empty.columns)}


def test_table_4_has_the_papers_settings() -> None:
    grid = table_grid("table4", [0])
    assert [cell.values["method"] for cell in grid.cells] == [*METHODS, "belief"]
    for cell in grid.cells:
        experiment = read_experiment(BUILT_IN / f"table4/{cell.label}.toml")
        assert (experiment.learning_rate, experiment.dropout) == (3e-4, 0.3)
        assert (experiment.batch_size, experiment.max_length) == (6, 125)
        assert experiment.options == {"beam": 10, "length_penalty": 1.0}
        printed = set() if experiment.preset == "default" else {"BLEU", "parameters", "s/step"}
        assert set(experiment.paper) == printed
    for cell in quick(grid).cells:
        small = Experiment.from_dict(cell.values)
        assert (small.model, small.data) == ("lstm", "builtin")
        assert small.sizes["embedding_size"] < 100


def test_what_cannot_be_is_refused_before_work() -> None:
    for fields, words in (
        ({"model": "small"}, "does not apply to"),
        ({"task": "mrpc", "options": {}}, "is not translation"),
        ({"sizes": {"vocab": 3}}, "sizes has no field vocab"),
        ({"method": "va-enum", "settings": {"rho": 1}}, "has no field rho"),
        ({"method": "va-enum", "settings": {"kl_weight": -1}}, "kl_weight=-1"),
        ({"batch_tokens": -1}, "batch_tokens=-1"),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare_training(tiny(**fields))


def test_batches_of_tokens_hold_every_example_once_and_few_tokens() -> None:
    lengths = torch.randint(1, 30, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    epochs = [by_tokens(lengths, 64, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert epochs[0] == epochs[1] != epochs[2]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(200))
        assert all(max(lengths[i] for i in b) * len(b) <= 64 for b in batches)
        assert len(batches) == len(epochs[0])
    assert by_tokens([100, 3], 64, torch.Generator()) in ([[1], [0]], [[0], [1]])


ODD = (
    "die Zahl zwei\n\n日本 ☃ \u2028 x\r\n   \n"
    + "eins " * 200
    + "\n\x00\x85tab\there [EOS]\nam Montag"
)


def test_a_file_keeps_its_lines(runs: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text(ODD, encoding="utf-8", newline="")
    done = translate_file(runs / "translation-belief/seed-0", file, out)
    assert (done.lines, done.empty, done.cut) == (7, 2, 1)
    lines = out.read_bytes().decode().split("\n")
    assert len(lines) == 8 and lines[-1] == ""
    assert lines[1] == lines[3] == ""
    with pytest.raises(DataError, match="exists"):
        translate_file(runs / "translation-belief/seed-0", file, out)
    file.write_text("")
    done = translate_file(runs / "translation-belief/seed-0", file, out, overwrite=True)
    assert (done.lines, out.read_text()) == (0, "")


@pytest.mark.parametrize("method", ["belief", pytest.param("va-enum", marks=pytest.mark.slow)])
def test_samples_do_not_depend_on_batches(runs: Path, tmp_path: Path, method: str) -> None:
    file = tmp_path / "in.txt"
    file.write_text(ODD, encoding="utf-8", newline="")
    found = []
    for batch in (1, 4):
        out = tmp_path / f"{batch}.jsonl"
        # Two beams of a model that has learnt little may differ by less than rounding.
        run = runs / f"translation-{method}/seed-0"
        translate_file(run, file, out, samples=3, batch=batch, as_json=True, beam=1)
        found.append([json.loads(line) for line in out.read_text().splitlines()])
    for one, other in zip(found[0], found[1], strict=True):
        assert one["translation"] == other["translation"]
        for name, value in one.get("uncertainty", {}).items():
            assert other["uncertainty"][name] == pytest.approx(value, rel=1e-3, abs=1e-5)
    first = found[0][0]
    assert set(first["uncertainty"]) == {"NLL", "entropy", "mutual information", "spread"}
    assert "".join(w["text"] for w in first["words"]) == first["translation"].replace(" ", "")
    assert all(math.isfinite(v) for w in first["words"] for v in w["uncertainty"].values())
    assert found[0][1] == {"source": "", "translation": ""}


def test_the_command_translates_and_refuses_in_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("am Montag\n")
    folder = str(runs / "translation-softmax/seed-0")
    call = ["translate", folder, str(tmp_path / "in.txt")]
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    done = runner.invoke(app(), call)
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "in.txt.translated").read_text().splitlines()) == 1
    for more, words in (
        ([], "exists"),
        (["--overwrite", "--samples", "3"], "softmax"),
        (["--out", str(tmp_path / "no" / "x")], "does not exist"),
    ):
        refused = runner.invoke(app(), [*call, *more])
        assert refused.exit_code == 2
        assert words in refused.output


# Some processors have no bfloat16 for such odd sizes, and torch says that it goes another way.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["va-enum", "va-sample", "belief"])
def test_mixed_precision_trains_and_translates(tmp_path: Path, method: str) -> None:
    options = {**TINY["options"], "test_limit": 2}
    experiment = tiny(
        method=method, precision="bfloat16", steps=2, keep_model=False, options=options
    )
    results = run(experiment, tmp_path / "run")
    assert all(math.isfinite(line["loss"]) for line in read_log(RunFolder(tmp_path / "run")))
    assert results["measures"]["dev"]["sampled"]["sentences"] == 2
