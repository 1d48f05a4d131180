"""The lines that tables count run as they are printed."""

from typing import Any

import pytest
import torch
from torch import nn

import babn
import small_problem
from babn_paper.method_comparison import Deterministic, McDropout
from babn_paper.method_comparison.adapters import PVERA, RandomAdapter
from babn_paper.method_comparison.basic_methods import Ensemble
from babn_paper.method_comparison.random_attention import RandomAttention
from babn_paper.method_comparison.sngp import SNGP, Sngp, add_sngp, fit_gp
from small_problem import DEVELOPMENT, TEST, TRAINING

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "method", [Deterministic, McDropout, RandomAttention, Ensemble, Sngp, RandomAdapter]
)
def test_code_gives_probabilities(method: Any) -> None:
    torch.manual_seed(0)
    inputs = {name: x for name, x in TEST[0].items() if name != "labels"}
    known = {
        "babn": babn,
        "nn": nn,
        "torch": torch,
        "model": small_problem.bert().eval(),
        "batch": inputs,
        "rate": 0.1,
        "factor": 1.0,
        "train": lambda seed: small_problem.bert().eval(),
        "development_batches": DEVELOPMENT,
        "training_batches": TRAINING,
        "add_sngp": add_sngp,
        "fit_gp": fit_gp,
    }
    code = method.code
    if method is RandomAdapter:  # the configuration is the adapter's own
        known["model"] = PVERA.prepare(known["model"])
        code = code.partition("\n")[2]
    exec(code, known)
    torch.testing.assert_close(known["probs"].sum(-1), torch.ones(16))
    assert SNGP.prepare is add_sngp
