"""Gradients by CUDA graphs: recorded once for each shape of batch, and replayed from then on.

Launching the kernels of a small model one by one can take the CPU longer than they take the GPU. A
recording launches all of them at once. It holds addresses and no values, so that batch,
parameters, gradients, noise and the divergence's weight stay in their places: gradients are set to
zero and not given up, and noise comes from torch's generator, which recordings advance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from babn.attention.static_shapes import static_shapes
from babn.cuda_graphs import CudaRecorder
from babn_paper.experiments.stage import Portion
from babn_paper.tasks.encoded import Batch

Terms = dict[str, Tensor]
Take = Callable[[Portion], Terms]
Recorder = Callable[[Callable[[], Terms]], tuple[Terms, Callable[[], None]]]
"""Records a call without running it; returns where results will be, and what runs it."""

MOST = 64
"""Recordings that are kept; batches of further shapes go without."""


@dataclass(frozen=True)
class Recording:
    """A recorded call.

    Attributes:
        batch: Where it reads its batch.
        terms: Where its results will be.
        run: Runs it.
    """

    batch: Batch
    terms: Terms
    run: Callable[[], None]

    def __call__(self, batch: Batch) -> Terms:
        """Runs it for a batch; what it returns is good until the next time."""
        for name, place in self.batch.items():
            place.copy_(batch[name])
        self.run()
        return self.terms


class Replayed:
    """Adds the gradients of batches, by recordings where a shape comes again.

    The first batch of a shape is taken as it is, which compiles and allocates what is needed.

    Args:
        take: Adds gradients and returns the terms of the loss.
        recorder: Records calls; with CUDA by default.
    """

    def __init__(self, take: Take, recorder: Recorder | None = None) -> None:
        self.take = take
        self.recorder = recorder or CudaRecorder()
        self.taken: set[Any] = set()
        self.recordings: dict[Any, Recording] = {}

    def __call__(self, portion: Portion) -> Terms:
        """Adds the gradients of a batch."""
        shape = _shape(portion)
        if shape in self.recordings:
            return self.recordings[shape](portion.batch)
        # Texts are padded on the right by construction, and so are the regions of images.
        with static_shapes(keys_in_order=True):
            if shape not in self.taken or len(self.recordings) == MOST:
                self.taken.add(shape)
                return self.take(portion)
            self.recordings[shape] = self._recorded(portion)
        return self.recordings[shape](portion.batch)

    def _recorded(self, portion: Portion) -> Recording:
        batch = {name: each.clone() for name, each in portion.batch.items()}
        own = Portion(portion.share, portion.weight, batch)

        def call() -> Terms:
            return {name: term.detach() for name, term in self.take(own).items()}

        return Recording(batch, *self.recorder(call))


def _shape(portion: Portion) -> tuple[Any, ...]:
    """What a recording cannot do without: sizes, types, and numbers that are written into it."""
    each = ((name, x.shape, x.dtype) for name, x in sorted(portion.batch.items()))
    return (portion.share, portion.weight, *each)
