"""The dry run's notebook of attention calls."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from babn.attention.inputs import Scores
from babn.conversion.plan import Call


class Recorder(threading.local):
    """While `calls` is a list, every attention call is noted there and computed by softmax."""

    def __init__(self) -> None:
        self.calls: list[Call] | None = None
        self.paths: dict[nn.Module, str] = {}
        self.lone_queries = False

    def record(
        self, module: nn.Module, route: str, scores: Scores, windowed: bool, crossed: bool
    ) -> None:
        """Notes one call."""
        assert self.calls is not None
        path = self.paths.get(module, "")
        phi = scores.phi
        named = re.search(r"cross|encoder_attn|encdec", f"{path} {type(module).__name__}".lower())
        crossed = crossed or phi.shape[-2] != phi.shape[-1] or named is not None
        self.calls.append(
            Call(
                path=path,
                module=type(module).__name__,
                route=route,
                heads=phi.shape[1],
                head_dim=scores.key.shape[-1],
                queries=phi.shape[-2],
                keys=phi.shape[-1],
                windowed=windowed,
                crossed=crossed,
                order=len(self.calls),
            )
        )
        lone = scores.mask is not None and not bool(scores.mask.any(-1).all())
        if lone and route != "softmax":
            self.lone_queries = True


recorder = Recorder()


@contextmanager
def recording(model: nn.Module) -> Iterator[Recorder]:
    """Notes the attention calls of `model` in place of applying rules to them."""
    recorder.calls, recorder.lone_queries = [], False
    recorder.paths = {module: path for path, module in model.named_modules()}
    try:
        yield recorder
    finally:
        recorder.calls, recorder.paths = None, {}
