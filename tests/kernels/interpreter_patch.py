"""A shorter way through Triton's interpreter."""

from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction


def patch_language_once() -> None:
    """Lets the interpreter patch Triton's language at each launch alone.

    It would do so at every call of a function in a kernel too, which takes half of its time.
    """
    patch, modules = (
        interpreter._patch_lang,
        SimpleNamespace(__globals__={"tl": tl, "core": tl.core}),
    )

    def call(function: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
        return function.rewrite()(*args, **kwargs)

    interpreter._patch_lang = lambda kernel: patch(modules)
    InterpretedFunction.__call__ = call
