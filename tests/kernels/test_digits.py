"""How exactly kernels multiply matrices."""

import torch

from babn.kernels.launch import precision
from babn.kernels.settings import Precision


def test_products_of_float32_are_computed_as_torch_is_told() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert precision(torch.float32) == Precision.IEEE
        assert precision(torch.bfloat16) == Precision.HALF
        torch.set_float32_matmul_precision("high")
        assert precision(torch.float32) == Precision.TF32
        assert precision(torch.float16) == Precision.HALF
    finally:
        torch.set_float32_matmul_precision(before)
