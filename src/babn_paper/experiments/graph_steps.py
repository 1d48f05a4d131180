"""Step functions recorded as CUDA graphs, one graph for each batch shape.

Launching the kernels of a small model one by one can take the CPU longer than they take the GPU. A
CUDA graph launches all of them at once. It stores addresses and no values, so batch, parameters,
gradients, noise and the KL weight stay in the same memory: gradients are zeroed rather than freed,
and noise comes from torch's generator, which graphs advance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from babn.attention.masking import static_shapes
from babn_paper.experiments.cuda_graphs import CudaRecorder
from babn_paper.experiments.training_state import MicroBatch
from babn_paper.tasks.encoded import Batch

LossTerms = dict[str, Tensor]
StepFunction = Callable[[MicroBatch], LossTerms]
"""Adds the gradients of a micro-batch and returns the terms of its loss."""

Recorder = Callable[[Callable[[], LossTerms]], tuple[LossTerms, Callable[[], None]]]
"""Records a call without running it; returns the output tensors and a function that replays it."""

MAX_GRAPHS = 64
"""Recorded graphs; micro-batches of further shapes run without a graph."""


@dataclass(frozen=True)
class Recording:
    """A recorded step function.

    Attributes:
        batch: Its input tensors.
        terms: Its output tensors.
        replay: Runs it.
    """

    batch: Batch
    terms: LossTerms
    replay: Callable[[], None]

    def __call__(self, batch: Batch) -> LossTerms:
        """Replays the recording for a batch; the output is valid until the next replay."""
        for name, place in self.batch.items():
            place.copy_(batch[name])
        self.replay()
        return self.terms


class GraphedStep:
    """A step function that replays a recording for every shape it has seen before.

    The first micro-batch of a shape runs eagerly, which compiles kernels and allocates memory; the
    second one is recorded.

    Args:
        step: The eager step function.
        recorder: Records calls; CUDA graphs by default.
    """

    def __init__(self, step: StepFunction, recorder: Recorder | None = None) -> None:
        self.step = step
        self.recorder = recorder or CudaRecorder()
        self.seen: set[Any] = set()
        self.recordings: dict[Any, Recording] = {}

    def __call__(self, micro: MicroBatch) -> LossTerms:
        """Adds the gradients of a micro-batch and returns the terms of its loss."""
        shape = _shape(micro)
        if shape in self.recordings:
            return self.recordings[shape](micro.batch)
        # Texts and image regions are padded on the right by construction.
        with static_shapes(keys_in_order=True):
            if shape not in self.seen or len(self.recordings) == MAX_GRAPHS:
                self.seen.add(shape)
                return self.step(micro)
            self.recordings[shape] = self._record(micro)
        return self.recordings[shape](micro.batch)

    def _record(self, micro: MicroBatch) -> Recording:
        batch = {name: each.clone() for name, each in micro.batch.items()}
        inputs = MicroBatch(micro.share, micro.weight, batch)

        def call() -> LossTerms:
            return {name: term.detach() for name, term in self.step(inputs).items()}

        return Recording(batch, *self.recorder(call))


def _shape(micro: MicroBatch) -> tuple[Any, ...]:
    """Key of a recording: sizes and dtypes of tensors, and the numbers that it has as constants."""
    tensors = ((name, x.shape, x.dtype) for name, x in sorted(micro.batch.items()))
    return (micro.share, micro.weight, *tensors)
