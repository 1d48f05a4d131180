"""Three ways to predict, each reproducible by seed and number of the query."""

from pathlib import Path

import pytest
import torch
from attack_cases import subject_of

import babn
from babn.errors import ConfigError
from babn_paper.attacks.plan import Plan, Threat, threats_for
from babn_paper.attacks.victim import Victim
from babn_paper.experiments.experiment import Experiment
from babn_paper.experiments.training_state import TaskModel
from babn_paper.tasks.task import Part, without_labels
from babn_paper.tasks.text_task import TextExample

pytestmark = pytest.mark.thorough

TEXT = ("a moving and wonderful film",)
OTHER = ("the plot was thin , the jokes were old and nobody in the room laughed",)


@pytest.fixture(scope="module")
def task_model(belief_run: Path) -> TaskModel:
    return subject_of(belief_run)


def victim(task_model: TaskModel, threat: Threat, samples: int = 1, seed: int = 0) -> Victim:
    made = Victim(task_model, Plan(recipe="textfooler", threat=threat, samples=samples, seed=seed))
    made.begin(7)
    return made


def test_the_mean_predicts_like_the_model_itself(task_model: TaskModel) -> None:
    attacked = victim(task_model, "mean")
    part = Part("attack", [TextExample(TEXT, 0)], "", "")
    encoded = task_model.task.encode(
        part, task_model.tokenizer, task_model.max_length, training=False
    )
    with torch.no_grad(), babn.posterior_mean(task_model.model.eval()):
        expected = task_model.model(**without_labels(encoded.batch(torch.tensor([0])))).logits
    found = attacked([TEXT])
    torch.testing.assert_close(found, expected.softmax(-1).double(), atol=1e-6, rtol=0)
    assert torch.equal(found, attacked([TEXT]))


def test_a_sample_is_fresh_for_every_query(task_model: TaskModel) -> None:
    attacked = victim(task_model, "sample")
    together, later = attacked([TEXT, TEXT]), attacked([TEXT])
    probs = torch.cat([together, later])[:, 0]
    assert len(probs.unique()) == 3
    assert attacked.queries == 3


def test_a_sample_depends_on_the_number_of_its_query_and_not_on_the_others(
    task_model: TaskModel,
) -> None:
    together = victim(task_model, "sample")([TEXT, TEXT, TEXT])
    one_by_one = victim(task_model, "sample")
    apart = torch.cat([one_by_one([TEXT]) for _ in range(3)])
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)


@pytest.mark.parametrize("threat", ["sample", "average"])
def test_noise_follows_seed_and_example(task_model: TaskModel, threat: Threat) -> None:
    samples = 2 if threat == "average" else 1
    attacked = victim(task_model, threat, samples)
    first = attacked([TEXT])
    attacked.begin(7)
    assert torch.equal(attacked([TEXT]), first)
    attacked.begin(8)
    assert not torch.equal(attacked([TEXT]), first)
    assert not torch.equal(victim(task_model, threat, samples, seed=1)([TEXT]), first)


def test_averages_vary_less_than_samples(task_model: TaskModel) -> None:
    def spread(attacked: Victim) -> float:
        return float(torch.cat([attacked([TEXT]) for _ in range(30)])[:, 0].std())

    assert 0 < spread(victim(task_model, "average", 16)) < spread(victim(task_model, "sample")) / 2


@pytest.mark.parametrize("threat", ["mean", "sample", "average"])
def test_rows_add_up_to_one_in_double_precision(task_model: TaskModel, threat: Threat) -> None:
    found = victim(task_model, threat, 5 if threat == "average" else 1)([TEXT, OTHER, ("",)])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.sum(-1), torch.ones(3).double(), atol=1e-12, rtol=0)


def test_asking_leaves_the_model_and_the_global_generator_alone(task_model: TaskModel) -> None:
    task_model.model.train()
    before = torch.get_rng_state()
    victim(task_model, "sample")([TEXT])
    assert task_model.model.training
    assert torch.equal(torch.get_rng_state(), before)
    task_model.model.eval()


def test_threats_follow_from_the_method() -> None:
    softmax = Experiment(task="sst2", model="small", method="softmax")
    assert threats_for(softmax) == threats_for(softmax, "sample,mean") == ("mean",)
    for method in ("bam", "belief", "mc-dropout"):
        random = Experiment(task="sst2", model="small", method=method)
        assert threats_for(random) == ("mean", "sample", "average")
        assert threats_for(random, "sample") == ("sample",)
        assert threats_for(random, "average, mean") == ("mean", "average")
    with pytest.raises(ConfigError, match="needs random attention"):
        threats_for(softmax, "average")
    with pytest.raises(ConfigError, match="threat='worst' is not known"):
        threats_for(softmax, "worst")
