"""Attacks can be interrupted, go on, grow, and meet bad examples."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from attack_cases import Repeater, lines, repeater

from babn.errors import ConfigError, FormatError
from babn.progress import Progress
from babn_paper.attacks.attack_loop import Attacker, Attempt
from babn_paper.attacks.attack_records import AttackFolder, attack_folders
from babn_paper.attacks.attack_run import Attacked, attack
from babn_paper.attacks.plan import Plan
from babn_paper.attacks.resources import ResourceError
from babn_paper.experiments.run_folder import RunError

pytestmark = pytest.mark.thorough

SAMPLE = Plan(recipe="textfooler", threat="sample")


@pytest.fixture
def belief(belief_run: Path, tmp_path: Path) -> Path:
    """A run that a test has for itself."""
    return Path(
        shutil.copytree(belief_run, tmp_path / "belief", ignore=shutil.ignore_patterns("attacks"))
    )


@pytest.fixture
def resources(tmp_path: Path) -> Path:
    """A folder that has all that the attacker, who needs nothing, could need."""
    folder = tmp_path / "resources"
    for name in (
        "encoder/config.json",
        "nltk_data/corpora/stopwords/english",
        "nltk_data/taggers/averaged_perceptron_tagger_eng/weights.json",
        "nltk_data/taggers/universal_tagset/en-ptb.map",
        "vectors.npz",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def attacked(run: Path, **changes: Any) -> list[Attacked]:
    settings: dict[str, Any] = {"threat": "sample", "examples": 8, "make_attacker": repeater}
    return attack(run, "textfooler", **(settings | changes))


class Crash(Progress):
    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, task: str, total: int, done: int = 0) -> None:
        self.begun = (task, total, done)

    def step(self, count: int, note: str = "") -> None:
        self.left -= count
        if self.left == 0:
            raise KeyboardInterrupt


def test_every_threat_has_a_folder_of_its_own(belief: Path) -> None:
    found = attacked(belief, threat=None, samples=2)
    names = ["textfooler-mean", "textfooler-sample", "textfooler-average"]
    assert [each.folder.path.name for each in found] == names
    assert [each.plan.samples for each in found] == [1, 1, 2]
    places = [[record.place for record in each.folder.read()] for each in found]
    assert places[0] == places[1] == places[2]
    assert {each.path.name for each in attack_folders(belief)} == set(names)
    for each in found:
        assert {path.name for path in each.folder.path.iterdir()} == {
            ".lock",
            "attack.json",
            "attacks.html",
            "attacks.jsonl",
        }


def test_models_are_attacked_on_the_same_examples(belief: Path, softmax_run: Path) -> None:
    attacked(belief, threat="mean")
    attacked(softmax_run, threat="mean")
    ours, theirs = (lines(run) for run in (belief, softmax_run))
    assert [line["original"] for line in ours] == [line["original"] for line in theirs]


def test_records_hold_what_happened(belief: Path) -> None:
    (found,) = attacked(belief, threat="mean", examples=32)
    outcomes = {line["outcome"] for line in lines(belief)}
    assert {"success", "skipped"} <= outcomes
    for line in lines(belief):
        assert len(line["probs_before"]) == len(line["probs_after"]) == 2
        assert line["before"] in ("negative", "positive")
        if line["outcome"] == "success":
            assert line["before"] == line["label"] != line["after"]
            assert 0 < line["changed"] <= line["words"]
            assert line["queries"] >= 2
            assert line["holds"] is True  # the posterior mean predicts the same again
        if line["outcome"] == "skipped":
            assert line["before"] != line["label"]
            assert (line["changed"], line["holds"]) == (0, None)
    assert found.summary["examples"] == 32


def test_an_interrupted_attack_goes_on_to_the_same_records(belief: Path, belief_run: Path) -> None:
    other = Path(
        shutil.copytree(
            belief_run, belief.parent / "other", ignore=shutil.ignore_patterns("attacks")
        )
    )
    attacked(other)
    with pytest.raises(KeyboardInterrupt):
        attacked(belief, progress=Crash(3))
    assert len(lines(belief, SAMPLE)) == 3
    place = AttackFolder.of(belief, SAMPLE)
    assert place.describe()["state"] == "unfinished"
    assert not attack_folders(belief)
    with place.records.open("a") as file:
        file.write('{"place": 5, "outcome": "suc')  # what a killed process leaves
    progress = Crash(99)
    attacked(belief, progress=progress)
    assert progress.begun == ("textfooler-sample", 8, 3)
    assert lines(belief, SAMPLE) == lines(other, SAMPLE)
    assert place.describe()["state"] == "done"


def test_what_is_finished_is_left_alone_and_can_grow(belief: Path) -> None:
    attacked(belief)
    before, made = lines(belief, SAMPLE), Repeater.made
    (again,) = attacked(belief)
    assert (lines(belief, SAMPLE), Repeater.made) == (before, made)
    (grown,) = attacked(belief, examples=12)
    assert lines(belief, SAMPLE)[:8] == before
    assert (again.summary["examples"], grown.summary["examples"]) == (8, 12)
    (fewer,) = attacked(belief, examples=4)
    assert fewer.summary["examples"] == 4
    assert len(lines(belief, SAMPLE)) == 12


def test_other_settings_need_overwrite(belief: Path, resources: Path) -> None:
    attacked(belief)
    with pytest.raises(ConfigError, match=r"was started with seed=0 \(now 5\).*--overwrite"):
        attacked(belief, seed=5)
    with pytest.raises(ConfigError, match="was started with resources="):
        attacked(belief, resources=resources)
    attacked(belief, seed=5, overwrite=True)
    assert AttackFolder.of(belief, SAMPLE).describe()["identity"]["seed"] == 5
    (belief / "model" / "note.txt").write_text("trained again")
    with pytest.raises(ConfigError, match="was started with model="):
        attacked(belief, seed=5)


def test_nothing_is_lost_if_the_new_attacker_cannot_be_made(belief: Path) -> None:
    def broken(*_: object) -> Attacker:
        raise ResourceError("no network")

    attacked(belief)
    before = lines(belief, SAMPLE)
    with pytest.raises(ResourceError):
        attacked(belief, overwrite=True, make_attacker=broken)
    assert lines(belief, SAMPLE) == before


def test_an_attack_without_records_can_be_begun_with_other_settings(belief: Path) -> None:
    def broken(*_: object) -> Attacker:
        raise ResourceError("no network")

    with pytest.raises(ResourceError):
        attacked(belief, make_attacker=broken)
    (found,) = attacked(belief, seed=5)
    assert found.folder.describe()["identity"]["seed"] == 5


def test_bad_examples_are_told_and_do_not_stop(belief: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    bad = ["\t1", "fine\tmaybe", "an unspeakable thing\t0", "good\t1"]
    good = [f"a wonderful film number {i}\t1" for i in range(4)]
    (data / "dev.tsv").write_text("\n".join(["sentence\tlabel", *bad, *good, ""]))
    (found,) = attacked(belief, data=str(data), examples=100)
    errors = {line["place"]: line["error"] for line in lines(belief, SAMPLE) if line["error"]}
    assert sorted(errors) == [0, 1, 2]
    assert "hold no text" in errors[0]
    assert "'maybe' is not a class" in errors[1]
    assert errors[2] == "cannot speak of it"
    assert (found.summary["errors"], found.summary["examples"]) == (3, 5)


def test_an_error_that_is_not_the_examples_stops(belief: Path) -> None:
    class Broken(Attacker):
        def attack(self, *_: object) -> Attempt:
            raise MemoryError("out of memory")

    with pytest.raises(MemoryError):
        attacked(belief, make_attacker=lambda *_: Broken())
    assert lines(belief, SAMPLE) == []


def test_the_description_names_everything(belief: Path, resources: Path) -> None:
    (resources / "resources.json").write_text('{"vectors": {"name": "my vectors"}}')
    (found,) = attacked(belief, resources=resources)
    description = json.loads(found.folder.description.read_text())
    identity = description["identity"]
    assert {"recipe", "threat", "samples", "seed", "part", "model", "data"} <= identity.keys()
    vectors = identity["resources"]["vectors"]
    assert vectors["name"] == "my vectors"
    assert vectors["substituted"]
    assert vectors["original"].startswith("counter-fitted GloVe vectors")
    assert all(each["fingerprint"] for each in identity["resources"].values())
    assert {"torch", "babn", "python"} <= description["environment"]["versions"].keys()
    assert description["summary"] == found.summary


def test_a_run_without_a_model_is_refused(tmp_path: Path, belief: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        attacked(tmp_path / "nothing")
    shutil.rmtree(belief / "model")
    with pytest.raises(RunError, match="has no model"):
        attacked(belief)


def test_settings_without_use_are_refused(belief: Path) -> None:
    with pytest.raises(ConfigError, match="samples=4 does not apply to sample"):
        attacked(belief, samples=4)
    with pytest.raises(ConfigError, match="examples=0"):
        attacked(belief, examples=0)


def test_damaged_records_are_told(belief: Path) -> None:
    attacked(belief)
    place = AttackFolder.of(belief, SAMPLE)
    place.records.write_text("{}\n")
    with pytest.raises(FormatError, match=r"attacks.jsonl:1 is damaged.*--overwrite"):
        attacked(belief)
    place.description.write_text("[]")
    with pytest.raises(FormatError, match="--overwrite"):
        attacked(belief)
    attacked(belief, overwrite=True)
    assert len(lines(belief, SAMPLE)) == 8


def test_an_attack_that_failed_does_not_block_the_corrected_one(
    belief: Path, resources: Path
) -> None:
    def unable(*_: Any) -> Attacker:
        raise ResourceError("no vectors")

    with pytest.raises(ResourceError):
        attacked(belief, make_attacker=unable)
    (result,) = attacked(belief, resources=resources, examples=2)  # other resources than before
    assert result.folder.describe()["state"] == "done"
