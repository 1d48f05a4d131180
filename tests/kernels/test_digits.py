"""How exactly kernels multiply matrices."""

import torch

from babn.kernels.launch import ALL, FEW, ROUNDED, digits


def test_products_of_float32_are_computed_as_torch_is_told() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert (digits(torch.float32), digits(torch.bfloat16)) == (ALL, FEW)
        torch.set_float32_matmul_precision("high")
        assert (digits(torch.float32), digits(torch.float16)) == (ROUNDED, FEW)
    finally:
        torch.set_float32_matmul_precision(before)
