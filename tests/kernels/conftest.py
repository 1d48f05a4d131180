"""The kernels run compiled on a GPU, and through Triton's interpreter anywhere else."""

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import torch
from interpreter_patch import patch_language_once
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

import babn.kernels
from babn.kernels import dispatch

KERNELS = (
    "triton.experimental.gluon",  # which Triton imports at the first call
    *(f"babn.kernels.{module.name}" for module in iter_modules(babn.kernels.__path__)),
    "small_kernels",
)


def interpret_kernels() -> None:
    """Imports the kernels for the interpreter.

    Triton asks for the variable when a kernel is defined. It does not stay set, since babn asks for
    it too, and would compute the models in the tests of other folders through the interpreter.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        interpret_triton()
        patch_language_once()
        for name in KERNELS:
            import_module(name)


def interpret_triton() -> None:
    """Does the same for Triton's own functions, such as `tl.sum`.

    torch may have imported Triton already, and the tests of other folders torch's compiler.
    """
    import_module("triton.language")
    for name in [name for name in sys.modules if name.startswith("triton.language")]:
        for attribute, value in list(vars(sys.modules[name]).items()):
            if isinstance(value, JITFunction):
                setattr(sys.modules[name], attribute, InterpretedFunction(value.fn))


if not torch.cuda.is_available():
    interpret_kernels()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Masked rows take logarithms of zero and discard them; in the interpreter numpy warns."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"))


@pytest.fixture(autouse=True)
def kernels_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets babn choose the kernels on a CPU, in this folder alone."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(dispatch, "interpreted", lambda: True)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
