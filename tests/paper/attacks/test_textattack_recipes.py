"""TextAttack's own recipes, with tiny resources: `make test-attacks`."""

import sys
from pathlib import Path
from typing import Any

import pytest
from attack_cases import subject_of, train
from resource_folders import TEXTS, write_all

from babn_paper.attacks.attack_loop import ExampleError
from babn_paper.attacks.attack_records import AttackFolder
from babn_paper.attacks.attack_run import attack
from babn_paper.attacks.local_resources import LocalResources
from babn_paper.attacks.plan import Plan, Recipe, Threat
from babn_paper.attacks.resources import ResourceError
from babn_paper.attacks.textattack_attacker import (
    UNUSED,
    TextAttackAttacker,
    import_textattack,
    prepare_nltk,
    seeded,
)
from babn_paper.attacks.victim import Victim

pytestmark = pytest.mark.attacks

RECIPES: tuple[Recipe, ...] = ("textfooler", "textbugger", "bae")


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> LocalResources:
    return LocalResources(write_all(tmp_path_factory.mktemp("attack") / "resources"))


def make(
    run: Path, resources: LocalResources, recipe: Recipe, threat: Threat = "mean"
) -> tuple[Victim, TextAttackAttacker]:
    victim = Victim(subject_of(run), Plan(recipe=recipe, threat=threat))
    return victim, TextAttackAttacker(recipe, victim, resources)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_attacks_and_does_the_same_again(
    belief_run: Path, resources: LocalResources, recipe: Recipe
) -> None:
    settings: dict[str, Any] = {"threat": "sample", "examples": 6, "resources": resources.folder}
    attack(belief_run, recipe, **settings)
    place = AttackFolder.of(belief_run, Plan(recipe=recipe, threat="sample"))
    first = [{**vars(record), "seconds": 0} for record in place.read()]
    attack(belief_run, recipe, overwrite=True, **settings)
    assert [{**vars(record), "seconds": 0} for record in place.read()] == first
    assert {record["outcome"] for record in first} <= {"success", "failed", "skipped"}
    assert any(record["perturbed"] != record["original"] for record in first)
    assert any(record["queries"] > 1 for record in first)
    assert place.describe()["environment"]["versions"]["textattack"] == "0.3.11"


@pytest.mark.parametrize(
    ("threat", "fresh"), [("mean", False), ("sample", True), ("average", True)]
)
def test_random_victims_are_queried_again(
    belief_run: Path, resources: LocalResources, threat: Threat, fresh: bool
) -> None:
    victim, attacker = make(belief_run, resources, "textfooler", threat)
    goal = attacker._attack.goal_function
    text = attacker._text("a good film")
    goal.init_attack_example(text, 1)
    victim.begin(0)
    first, second = (goal._call_model([text])[0] for _ in range(2))
    assert (first != second).any() == fresh
    assert victim.queries == (2 if fresh else 0)  # the first text was queried before counting began


def test_thresholds_are_textattacks_own(belief_run: Path, resources: LocalResources) -> None:
    found = {}
    for recipe in RECIPES:
        _, attacker = make(belief_run, resources, recipe)
        constraints = {type(each).__name__: each for each in attacker._attack.constraints}
        found[recipe] = constraints["UniversalSentenceEncoder"].threshold
        assert ("PartOfSpeech" in constraints) == (recipe != "textbugger")
        if recipe == "textfooler":
            assert constraints["WordEmbeddingDistance"].min_cos_sim == 0.5
        if recipe == "bae":
            transformation = attacker._attack.transformation
            assert (transformation.max_candidates, transformation.min_confidence) == (50, 0.0)
    assert found == {"textfooler": 0.840845057, "textbugger": 0.8, "bae": 0.936338023}


def test_the_encoder_is_the_one_that_was_given(belief_run: Path, resources: LocalResources) -> None:
    _, attacker = make(belief_run, resources, "textbugger")
    constraint = attacker._attack.constraints[-1]
    texts = ["a good film", "a bad film"]
    assert (constraint.encode(texts) == resources.encoder()(texts).numpy()).all()


def test_candidates_of_the_language_model_do_not_depend_on_padding(
    belief_run: Path, resources: LocalResources
) -> None:
    _, attacker = make(belief_run, resources, "bae")
    ours, text = attacker._attack.transformation, attacker._text("a good film of the year")
    found = ours._bae_replacement_words(text, [1, 2])
    whole = type(ours).__mro__[1]._encode_text
    ours._encode_text = lambda texts: whole(ours, texts)
    assert ours._encode_text(["a"])["input_ids"].shape == (1, ours.max_length)
    assert [words[:20] for words in ours._bae_replacement_words(text, [1, 2])] == [
        words[:20] for words in found
    ]
    assert len(found[0]) == 50


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("text", ["good", "... good", "good \n film", "<SPLIT> I am", "ﬁne ❤ film"])
def test_strange_texts_do_not_stop(
    belief_run: Path, resources: LocalResources, recipe: Recipe, text: str
) -> None:
    victim, attacker = make(belief_run, resources, recipe)
    victim.begin(0)
    label = int(victim([(text,)])[0].argmax())
    try:
        attempt = attacker.attack({"sentence": text}, label, 0)
    except ExampleError as error:
        assert "TextAttack cannot attack it" in str(error)
    else:
        assert not attempt.skipped
        assert list(attempt.texts) == ["sentence"]


def test_textfooler_leaves_the_premise_alone(
    tmp_path: Path, resources: LocalResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tmp_path / "mnli", task="mnli", method="softmax", steps=5)
    victim, attacker = make(run, resources, "textfooler")
    texts = {"premise": TEXTS[0], "hypothesis": TEXTS[1]}
    label = int(victim([tuple(texts.values())])[0].argmax())
    requests: list[tuple[str, ...]] = []
    original = Victim.__call__
    monkeypatch.setattr(
        Victim,
        "__call__",
        lambda self, queries: requests.extend(queries) or original(self, queries),
    )
    attacker.attack(texts, label, 0)
    assert {premise for premise, _ in requests} == {TEXTS[0]}
    assert len({hypothesis for _, hypothesis in requests}) > 2


def test_what_was_put_in_place_is_taken_away() -> None:
    textattack = import_textattack(None)
    for name in UNUSED:
        assert name not in sys.modules or sys.modules[name].__spec__ is not None
    module = textattack.attack_recipes.bae_garg_2019
    assert module.WordSwapMaskedLM is textattack.transformations.WordSwapMaskedLM


def test_without_a_network_downloads_are_refused(
    belief_run: Path, resources: LocalResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    textattack = import_textattack(resources.nltk_data)

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(textattack.shared.utils, "download_from_s3", unreachable)
    monkeypatch.setattr(LocalResources, "embedding", lambda *_: None)
    with pytest.raises(ResourceError, match=r"no route to host.*--resources"):
        make(belief_run, resources, "textfooler")


def test_nltk_data_that_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(
        "babn_paper.attacks.textattack_attacker._missing_nltk_data", lambda: "stopwords"
    )
    with pytest.raises(ResourceError, match="does not find stopwords in"):
        prepare_nltk(tmp_path)
    assert nltk.data.path == [str(tmp_path)]
    requests: list[str] = []
    monkeypatch.setattr(nltk, "download", lambda name, quiet: requests.append(name))
    with pytest.raises(ResourceError, match="give a folder with --resources"):
        prepare_nltk(None)
    assert "averaged_perceptron_tagger_eng" in requests


def test_global_generators_are_restored() -> None:
    import random

    import numpy as np

    before = (random.getstate(), np.random.get_state()[1].tolist())
    with seeded(2**62 + 5):
        first = (random.random(), np.random.rand())
    with seeded(2**62 + 5):
        assert (random.random(), np.random.rand()) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
