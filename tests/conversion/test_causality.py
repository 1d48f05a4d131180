"""What comes later in a sequence changes nothing that came before."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from babn.attention.noise_source import NoiseSource
from babn.attention.posterior import Posterior
from babn.conversion.override import overriding
from babn.conversion.transformers_route import mask_like_sdpa
from models import Batch, Case, cases

CAUSAL = cases("torch-transformer", kinds=("decoder", "seq2seq"))
MODES = pytest.mark.parametrize("mode", ["mean", "sample"])
CUT = 3


def with_another_end(batch: Batch) -> Batch:
    """The same batch with other tokens from `CUT` on."""
    name = next(n for n in ("decoder_input_ids", "target", "input_ids") if n in batch)
    changed = batch[name].clone()
    changed[:, CUT:] = changed[:, CUT:].flip(0, 1)
    return batch | {name: changed}


def run(model: nn.Module, batch: Batch, mode: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of the first tokens, and the KL of their rows in every causal call."""
    posteriors: list[tuple[str, Posterior]] = []
    changes = {"mode": mode, "noise_source": NoiseSource([0]), "posteriors": posteriors}
    with torch.no_grad(), overriding(model, **changes):
        output = model(**batch)
    logits = output if isinstance(output, Tensor) else output.logits
    rows = {
        name: posterior.kl()[:, :, :CUT]
        for name, posterior in posteriors
        if "encoder.layers" not in name and "encoder.block" not in name
    }
    return logits[:, :CUT], rows


@MODES
@pytest.mark.parametrize("case", CAUSAL)
def test_later_tokens_change_nothing_before_them(case: Case, mode: str) -> None:
    model, batch = case.converted(sigma=0.1), case.batch()

    logits, rows = run(model, batch, mode)
    other_logits, other_rows = run(model, with_another_end(batch), mode)

    torch.testing.assert_close(other_logits, logits, rtol=1e-5, atol=1e-6)
    assert rows
    for name, row in rows.items():
        torch.testing.assert_close(other_rows[name], row, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", CAUSAL)
def test_later_tokens_change_what_comes_from_them_on(case: Case) -> None:
    """The other way round, so that the test above is not empty."""
    model, batch = case.converted(sigma=0.1), case.batch()

    outputs = [model(**b) for b in (batch, with_another_end(batch))]

    first, second = (x if isinstance(x, Tensor) else x.logits for x in outputs)
    assert not torch.allclose(first[:, CUT:], second[:, CUT:], atol=1e-3)


def mask_of(**changes: Any) -> Tensor | None:
    """The mask that transformers asks for, of two texts with six tokens."""
    sizes = {"batch_size": 2, "q_length": 6, "kv_length": 6}
    rest = {"mask_function": causal_mask_function, "attention_mask": None}
    return mask_like_sdpa(**(sizes | rest | changes))


def test_compiled_models_get_no_mask_for_causality_alone() -> None:
    assert torch.compile(mask_of, backend="eager")() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"q_length": 2, "q_offset": 4},
        {"local_size": 3},
        {"allow_is_causal_skip": False},
        {"attention_mask": torch.tensor([[False] + 5 * [True], 6 * [True]])},
    ],
)
def test_caches_windows_and_padding_have_a_mask(changes: dict[str, Any]) -> None:
    found = mask_of(**changes)
    assert found is not None
    assert found.shape[-2:] == (changes.get("q_length", 6), 6)
