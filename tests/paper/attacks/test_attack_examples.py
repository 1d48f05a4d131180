"""Every model is attacked on the same examples, and bad ones are told one by one."""

from pathlib import Path

import pytest

from babn.errors import ConfigError
from babn_paper.attacks.victim import check_task, read_targets
from babn_paper.tasks.catalogue import find_task

SST2 = check_task(find_task("sst2"))


def test_the_order_depends_on_the_seed_alone() -> None:
    first = read_targets(SST2, "builtin", "dev", seed=3)
    again = read_targets(SST2, "builtin", "dev", seed=3)
    other = read_targets(SST2, "builtin", "dev", seed=4)
    assert first.order == again.order != other.order
    assert sorted(first.order) == list(range(32))


def test_more_examples_begin_with_the_same() -> None:
    targets = read_targets(SST2, "builtin", "dev", seed=0)
    few, many = list(targets.first(5)), list(targets.first(20))
    assert many[:5] == few
    assert len(list(targets.first(1000))) == 32


def test_an_example_holds_what_its_line_says() -> None:
    targets = read_targets(SST2, "builtin", "dev", seed=0)
    part = SST2.read("builtin", "dev")
    for target in targets.first(32):
        example = part.examples[target.place]
        assert (tuple(target.texts.values()), target.label) == (example.texts, example.label)
        assert list(target.texts) == ["sentence"]
        assert not target.problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("\t1", "hold no text"),
        ("... !\t1", "no word to change"),
        ("fine\tmaybe", "'maybe' is not a class"),
        ("fine\t-1", "marks a missing label"),
    ],
)
def test_a_bad_line_is_told_and_others_stay(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\ngood\t1\n{line}\nbad\t0\n")
    targets = sorted(read_targets(SST2, str(tmp_path), "dev", 0).first(9), key=lambda t: t.place)
    assert problem in targets[1].problem
    assert "dev.tsv:3" in targets[1].problem
    assert [t.problem for t in targets if t.place != 1] == ["", ""]


@pytest.mark.parametrize("task", ["stsb", "squad1.1", "commonsense"])
def test_only_classes_of_texts_can_be_attacked(task: str) -> None:
    with pytest.raises(ConfigError, match=f"task='{task}' cannot be attacked"):
        check_task(find_task(task))
