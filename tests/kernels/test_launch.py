"""Kernels are launched with as much of the shared memory as there is; operators have names."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from babn.kernels import launch
from babn.kernels.flags import call_options
from babn.kernels.heads import states_over_heads
from babn.kernels.launch import VERSION, Launcher, fitted, precision
from babn.kernels.op import pair_attention, pair_attention_backward
from babn.kernels.settings import Settings


class Gpu:
    """Has room for so many tiles at once."""

    def __init__(self, room: int, lacks: str = "shared memory") -> None:
        self.room, self.lacks, self.tried = room, lacks, list[int]()

    def __call__(self, options: dict[str, Any]) -> str:
        self.tried.append(options["num_stages"])
        if options["num_stages"] > self.room:
            raise OutOfResources(2, 1, self.lacks)
        return f"ran with {options['BM']} queries"


@pytest.mark.parametrize(("room", "tried"), [(3, [3]), (2, [3, 2]), (1, [3, 2, 1])])
def test_fewer_tiles_are_loaded_where_memory_is_short(room: int, tried: list[int]) -> None:
    gpu = Gpu(room)
    assert fitted(gpu, {"BM": 64, "num_stages": 3}) == "ran with 64 queries"
    assert gpu.tried == tried


def test_what_does_not_fit_at_all_is_an_error() -> None:
    gpu = Gpu(0)
    with pytest.raises(OutOfResources, match="shared memory"):
        fitted(gpu, {"BM": 64})
    assert gpu.tried == [3, 2, 1]
    with pytest.raises(OutOfResources, match="registers"):
        fitted(Gpu(1, "registers"), {"BM": 64, "num_stages": 2})


def test_operators_are_named_after_their_version() -> None:
    """Compilers keep graphs by operators' names, and with them the sizes of results."""
    for each in (pair_attention, pair_attention_backward, states_over_heads):
        assert str(each.compiled) == f"babn.{each.function.__name__}_v{VERSION}.default"


def test_a_launcher_forgets_the_oldest_kind_of_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "CACHED_LAUNCHES", 2)
    launcher = Launcher(None)
    for kind in "abc":
        launcher.remember(kind, (None, ()))
    assert list(launcher.compiled) == ["b", "c"]


def test_sizes_of_blocks_are_constants_with_a_name() -> None:
    """Triton 3.6 takes no attribute of a constant in the shape of `tl.zeros` and `tl.full`."""
    for path in Path(launch.__file__).parent.glob("*.py"):
        assert not re.search(r"tl\.(zeros|full)\(\s*\[[^\]]*\bC\.", path.read_text()), path


def test_products_of_float32_follow_the_setting_of_torch() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert precision(torch.float32) == "ieee"
        assert precision(torch.bfloat16) == "half"
        torch.set_float32_matmul_precision("high")
        assert precision(torch.float32) == "tf32"
        assert precision(torch.float16) == "half"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("keys", "size", "masked", "over_heads", "expected"),
    [
        (512, 64, False, False, 32),
        (128, 64, False, False, 16),
        (512, 64, True, False, 16),
        (512, 64, False, True, 16),
        (512, 32, False, False, 16),
    ],
)
def test_long_texts_have_a_larger_tile(
    keys: int, size: int, masked: bool, over_heads: bool, expected: int
) -> None:
    q = torch.empty(1, 2, keys, size, dtype=torch.bfloat16)
    mask = torch.ones(1, 1, 1, keys, dtype=torch.bool) if masked else None
    settings = Settings(0.125, 12.0, 0.0, 1e-6, 1.0, 1.0, True, True, True, True, True)
    found = call_options(q, q, keys, mask, None, [*map(float, settings)], True, 2, over_heads)
    assert expected == found.rows["C"].BLOCK_N
