"""Experiments in files and on the command line."""

import tomllib
from pathlib import Path

import pytest
from small_experiments import TINY, tiny

import babn
from babn.errors import ConfigError
from babn_paper.experiments.config_files import (
    BUILT_IN,
    built_in,
    find_config,
    parse_overrides,
    read_experiment,
    write_experiment,
)
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.naming import run_path
from babn_paper.experiments.records import Record
from babn_paper.tasks.catalogue import find_task


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_configuration_says_its_command_and_the_papers_number(name: str) -> None:
    path = find_config(name)
    first = path.read_text().splitlines()[0]
    experiment = read_experiment(path)
    assert first.startswith(f"# babn train {name} ")
    assert all(number in first for number in experiment.paper.values())
    ours = experiment.preset == "default"
    assert bool(experiment.paper) != ours
    assert name.endswith("-default" if ours else f"-{experiment.method}")


@pytest.mark.parametrize("name", [name for name in built_in() if name.endswith("-default")])
def test_ours_differs_from_the_published_method_in_the_preset_alone(name: str) -> None:
    ours = read_experiment(find_config(name)).to_dict()
    published = read_experiment(find_config(f"{name.removesuffix('default')}belief")).to_dict()
    assert (published["preset"], ours["preset"]) == ("paper", "default")
    assert ours | {"preset": "", "paper": {}} == published | {"preset": "", "paper": {}}


def test_settings_stand_on_top_of_a_preset() -> None:
    fields = {"task": "mrpc", "model": "small"}
    assert Experiment(**fields, preset="paper").method_config() == babn.BeliefConfig.paper()
    assert Experiment(**fields, preset="default").method_config() == babn.BeliefConfig()
    released = Experiment(**fields, preset="released", settings={"rho": 4})
    assert released.method_config() == babn.BeliefConfig.released_settings(rho=4.0)
    assert Experiment(**fields).method_config() == babn.BeliefConfig.pairs()
    with pytest.raises(ConfigError, match="preset='paper' is not supported with method='bam'"):
        Experiment(**fields, method="bam", preset="paper")


@pytest.mark.parametrize("table", ["table1", "table2", "table5"])
def test_all_methods_of_a_task_and_model_treat_attention_dropout_alike(table: str) -> None:
    found: dict[tuple[str, str], set[bool]] = {}
    for name in built_in(table):
        experiment = read_experiment(find_config(name))
        on = bool(experiment.settings.get("attention_dropout", False))
        if experiment.dropout != 0:
            found.setdefault((experiment.task, experiment.model), set()).add(on)
    assert all(len(ways) == 1 for ways in found.values())


PUBLISHED = [name for name in built_in() if name.endswith("-belief") and "efficiency" not in name]
"""Cells that train the method as published; those of the efficiency table are only timed."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_name_what_the_paper_leaves_open(name: str) -> None:
    path = find_config(name)
    experiment, text = read_experiment(path), " ".join(path.read_text().split("\n# "))
    config = experiment.method_config()
    assert isinstance(config, babn.BeliefConfig)
    assert "Settings that the paper omits" in text
    assert (config.beta, config.prior_hidden, config.kl_weight) == (1.0, 10, 1.0)
    assert "beta 1, a prior of width 10" in text
    assert (experiment.kl_schedule, experiment.kl_warmup) == ("linear", 0.5)
    assert "the KL annealed linearly from 0 over the first half of training" in text
    if experiment.weight_decay and "table1" in name:
        assert f"weight decay {experiment.weight_decay:g}" in text
    if experiment.task == "iwslt14":
        assert f"{experiment.epochs:g} epochs" in text
    if experiment.model == "mcan":
        assert not experiment.vectors
        assert "word vectors that start at random" in text


METHODS = ("softmax", "bam", "belief", "default")


def test_table_1_has_every_cell_with_the_papers_settings() -> None:
    cells = {name.partition("/")[2] for name in built_in("table1")}
    tasks = ["mrpc", "cola", "rte", "mnli", "qnli", "qqp", "sst2", "stsb", "squad1.1", "squad2.0"]
    assert cells == {f"{task}-{method}" for task in tasks for method in METHODS}
    for task in tasks:
        of_task = [
            read_experiment(BUILT_IN / f"table1/{task}-{r}.toml") for r in ("softmax", "bam")
        ]
        first, second = (e.to_dict() | {"method": "", "paper": {}} for e in of_task)
        assert first == second
        assert set(of_task[0].paper) == set(find_task(task).scores)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    experiment = tiny(
        settings={"rho": 4.0, "upward": "heads"}, paper={"s/step": "0.26"}, data='a "b" ä\\c'
    )
    write_experiment(experiment, tmp_path / "e.toml")
    assert read_experiment(tmp_path / "e.toml") == experiment


def test_any_field_can_be_overridden(tmp_path: Path) -> None:
    write_experiment(tiny(settings={"rho": 4.0}), tmp_path / "e.toml")
    texts = ["learning_rate=1e-4", "settings.sigma=0", "model=7", "precision=bfloat16", "seed=3"]
    found = read_experiment(tmp_path / "e.toml", parse_overrides(texts))
    assert found == tiny(
        learning_rate=1e-4,
        settings={"rho": 4.0, "sigma": 0},
        model="7",
        precision="bfloat16",
        seed=3,
    )


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": True}, "batch_size=True"),
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"precision": "float64"}, "precision='float64'"),
        ({"method": "magic"}, "method='magic'"),
        ({"settings": {"rho": -1}}, "rho=-1"),
        ({"settings": {"row": 1}}, "row"),
        ({"batch_size": 8, "accumulation": 3}, "accumulation=3"),
        ({"kl_warmup": 0.0}, "warmup=0.0"),
        ({"steps": -1}, "steps=-1"),
        ({"colour": "red"}, "colour"),
    ],
)
@pytest.mark.usefixtures("as_installed")
def test_values_that_cannot_work_are_refused(fields: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part.replace(".", r"\.")):
        Experiment.from_dict(TINY | fields)


def test_the_former_name_of_the_method_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('task = "mrpc"\nmodel = "small"\nrule = "bam"\n')
    assert read_experiment(path).method == "bam"
    for field in ("rule", "method"):
        assert read_experiment(path, parse_overrides([f"{field}=softmax"])).method == "softmax"
    assert Experiment.from_dict(TINY | {"rule": "bam"}).to_dict()["method"] == "bam"
    assert Record("", {"rule": "bam"}, {}, {}).experiment == {"method": "bam"}
    with pytest.raises(ConfigError, match="rule is the former name of method, and both are given"):
        parse_overrides(["rule=bam", "method=bam"])
    path.write_text('rule = "bam"\nmethod = "bam"\n')
    with pytest.raises(ConfigError, match=r"e\.toml: rule is the former name of method"):
        read_experiment(path)


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('task = "mrpc"\nmodel = "small"\nstep = 3\n')
    with pytest.raises(ConfigError, match=r"a\.toml: An experiment has no field step"):
        read_experiment(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text("task = \n")
    with pytest.raises(ConfigError, match=r"b\.toml is not TOML"):
        read_experiment(tmp_path / "b.toml")
    with pytest.raises(ConfigError, match="Did you mean table1/mrpc-belief"):
        find_config("table1/mrpc-beleif")
    with pytest.raises(ConfigError, match=r"nor built in\. Built in are the cells of"):
        find_config("table9/none")
    with pytest.raises(ConfigError, match="needs model and task"):
        Experiment.from_dict({})
    with pytest.raises(ConfigError, match="Write NAME=VALUE"):
        parse_overrides(["steps"])


def test_runs_that_differ_have_folders_that_differ() -> None:
    config = find_config("table1/mrpc-belief")
    plain = run_path(config, {}, 0)
    assert plain == Path("runs/table1/mrpc-belief/seed-0")
    other = run_path(config, {"settings": {"rho": 4}, "data": "/x/y", "seed": 2}, 2)
    assert other == Path("runs/table1/mrpc-belief+settings.rho=4/seed-2")


def test_the_method_has_the_settings() -> None:
    config = tiny(settings={"rho": 3.0, "kl_weight": 0.5}).method_config()
    assert isinstance(config, babn.BeliefConfig)
    assert config.rho == 3.0
    assert tiny(settings={"kl_weight": 0.5}, kl_warmup=1.0).annealing().at(50, 100) == 0.25


def test_configurations_are_plain_toml() -> None:
    for name in built_in():
        assert tomllib.loads(find_config(name).read_text())["task"]
