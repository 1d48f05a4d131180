"""Compiled models launch the kernels for one variable per key, without copies of activations."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch

from babn.attention.belief import BeliefConfig
from babn.benchmark.steps import Size, make_batch, make_model
from babn.kernels import dispatch

pytestmark = pytest.mark.thorough

SIZE = Size(length=512, batch=2, layers=2, width=256, heads=4)


class Hopper:
    """The driver of a GPU that is not there, for which compilers may trace kernels."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Traced(NamedTuple):
    """What the graphs of a training step do.

    Attributes:
        launches: Launches of kernels by the forward and by the backward graph.
        saved: Bytes that the forward graph saves for the backward graph, besides its inputs.
        copies: Activations that either graph copies.
    """

    launches: list[int]
    saved: int
    copies: list[str]


def traced(method: BeliefConfig | None) -> Traced:
    """The graphs of a compiled encoder, which are traced as for a GPU and not run."""
    import triton
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.utils import _triton

    triton.runtime.driver.set_active(Hopper())
    _triton.has_triton = lambda: True
    dispatch.why_no_kernels = lambda device, forced: None
    found = []

    def partition(*arguments: Any, num_fwd_outputs: int, **options: Any) -> Any:
        forward, backward = (
            each.graph
            for each in min_cut_rematerialization_partition(
                *arguments, num_fwd_outputs=num_fwd_outputs, **options
            )
        )
        found.append(
            Traced(
                [*map(launches, (forward, backward))],
                saved_bytes(forward, num_fwd_outputs),
                [*copies(forward), *copies(backward)],
            )
        )
        raise InterruptedError

    device = torch.device("cpu")
    backend = aot_autograd(
        fw_compiler=None, partition_fn=partition, decompositions=select_decomp_table()
    )
    run = torch.compile(make_model(SIZE, method, device).train(), fullgraph=True, backend=backend)
    with pytest.raises(BackendCompilerFailed, match="InterruptedError"):
        run(**make_batch(SIZE, device))
    return found[0]


def launches(graph: Any) -> int:
    """Launches of kernels by a graph."""
    return sum("triton" in str(node.target) for node in graph.nodes)


def saved_bytes(forward: Any, outputs: int) -> int:
    """Bytes of the tensors that a forward graph returns after its outputs, besides its inputs."""
    from torch._inductor.fx_utils import get_node_storage

    given = {get_node_storage(node) for node in forward.nodes if node.op == "placeholder"}
    [results] = forward.output_node().args
    kept = {get_node_storage(node): node.meta["val"] for node in results[outputs:]}
    return sum(x.untyped_storage().nbytes() for key, x in kept.items() if key not in given)


def copies(graph: Any) -> list[str]:
    """Activations that change their layout, or that a kernel cannot write in place."""
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

    reinplace_inplaceable_ops_core(graph)
    copied = []
    for node in graph.nodes:
        copied += [node.kwargs["kwargs"][x] for x in node.kwargs.get("tensors_to_clone", ())]
        if node.target is torch.ops.aten.clone.default:
            [x] = node.args
            copied += [x] * (x.meta["val"].stride() != node.meta["val"].stride())
    return [
        node.name
        for node in copied
        if node.meta["val"].numel() >= SIZE.batch * SIZE.length * SIZE.width
    ]


def test_compilers_trace_the_launches_and_save_no_more_than_softmax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In another process, in which kernels are not interpreted and argument types are not checked.
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as unchecked:
        softmax, ours = unchecked.map(traced, [None, BeliefConfig(kernel="triton")])
    # In each of 2 layers forward sums of keys, draw, attention; backward queries, keys, sums, draw.
    assert ours.launches == [6, 8]
    assert ours.saved <= 1.02 * softmax.saved
    assert not ours.copies
