"""Graphs of compiled models: launches, operators, what they save, and copies of activations."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from interpreter_patch import patch_language_once
from torch import Tensor

from babn.attention.bam import BamConfig
from babn.attention.belief import BeliefConfig
from babn.attention.method import MethodConfig
from babn.benchmark.results import Size
from babn.benchmark.steps import make_batch, make_model
from babn.kernels import dispatch

pytestmark = pytest.mark.thorough

SIZE = Size(length=512, batch=2, layers=2, width=256, heads=4)
TINY = Size(length=300, batch=2, layers=2, width=32, heads=2)


class Hopper:
    """The driver of a GPU that is not there, for which compilers may trace kernels."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Traced(NamedTuple):
    """What the graphs of a training step do.

    Attributes:
        launches: Launches of kernels by the forward and by the backward graph.
        operators: Calls of operators for noise over pairs by both.
        saved: Bytes that the forward graph saves for the backward graph, besides its inputs.
        copies: Activations that either graph copies.
    """

    launches: list[int]
    operators: list[int]
    saved: int
    copies: list[str]


def pretend_to_have_a_gpu() -> None:
    """Lets compilers trace the kernels."""
    import triton
    from torch.utils import _triton

    triton.runtime.driver.set_active(Hopper())
    vars(_triton)["has_triton"] = lambda: True
    dispatch.why_no_kernels = lambda device, forced: None


def traced(method: MethodConfig | None) -> Traced:
    """The graphs of a compiled encoder, which are traced as for a GPU and not run."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    pretend_to_have_a_gpu()
    torch._dynamo.reset()
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
                [calls_of("triton", each) for each in (forward, backward)],
                [calls_of("pair_attention", each) for each in (forward, backward)],
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


def calls_of(name: str, graph: Any) -> int:
    """Operations of a graph whose name contains another one."""
    return sum(name in str(node.target) for node in graph.nodes)


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


def gradients(run: Any, model: Any) -> list[Tensor]:
    """Loss and gradients of a step."""
    torch.manual_seed(3)
    loss = run(**make_batch(TINY, torch.device("cpu"))).loss
    found = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    return [x.detach() for x in (loss, *found) if x is not None]


def tiny_model() -> Any:
    """A converted encoder with large weights, so that attention is not uniform."""
    model = make_model(TINY, BeliefConfig(kernel="triton"), torch.device("cpu")).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 10
    return model


def of_eager_model() -> list[Tensor]:
    """Loss and gradients by interpreted kernels."""
    patch_language_once()
    model = tiny_model()
    return gradients(model, model)


def launch(module: str, name: str, grid: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs an interpreted kernel, and returns its arguments."""
    getattr(import_module(module), name)[tuple(grid)](**arguments)
    return arguments


def run_graph(interpreter: ProcessPoolExecutor, graph: Any, _: Any) -> Any:
    """A function that runs a graph, the kernels of which another process interprets."""
    from torch._higher_order_ops import triton_kernel_wrap as wrap
    from torch._inductor.utils import clone_preserve_strides

    class Runner(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is not wrap.triton_kernel_wrapper_functional:
                return super().call_function(target, args, kwargs)
            kernel: Any = wrap.kernel_side_table.get_kernel(kwargs["kernel_idx"])
            constants = wrap.kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
            written = kwargs["tensors_to_clone"]
            arguments = {
                name: clone_preserve_strides(x.detach()) if name in written else x.detach()
                for name, x in kwargs["kwargs"].items()
            }
            [grid] = kwargs["grid"]
            found = interpreter.submit(
                launch, kernel.fn.__module__, kernel.fn.__name__, grid, {**arguments, **constants}
            ).result()
            return {name: found[name] for name in written}

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return Runner(graph).run(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def of_compiled_model() -> list[Tensor]:
    """Loss and gradients of the traced graphs."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    pretend_to_have_a_gpu()
    torch._dynamo.reset()
    model = tiny_model()
    import_module("babn.kernels.key_attention")
    os.environ["TRITON_INTERPRET"] = "1"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as interpreter:
        # Starts the process while the variable is set. Modules cannot be returned.
        interpreter.submit(import_module, "babn.kernels.key_attention").exception()
        interpreter.submit(patch_language_once).result()
        del os.environ["TRITON_INTERPRET"]
        compiler = partial(run_graph, interpreter)
        backend = aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            partition_fn=min_cut_rematerialization_partition,
        )
        return gradients(torch.compile(model, fullgraph=True, backend=backend), model)


@pytest.fixture(scope="module")
def compiler() -> Iterator[ProcessPoolExecutor]:
    """A process in which kernels are not interpreted and shapes not checked.

    Compilers can trace neither.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(pretend_to_have_a_gpu).result()
    with pool:
        yield pool


def test_the_graphs_of_compilers_compute_the_same(
    compiler: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = compiler.submit(of_compiled_model).result()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as interpreter:
        eager = interpreter.submit(of_eager_model).result()
    assert len(eager) == len(graphs) > 20
    for x, y in zip(eager, graphs, strict=True):
        assert float((x - y).norm()) <= 1e-4 * float(x.norm()) + 1e-7


def test_compilers_trace_the_launches_and_save_no_more_than_softmax(
    compiler: ProcessPoolExecutor,
) -> None:
    softmax, ours = compiler.map(traced, [None, BeliefConfig(kernel="triton")])
    # In each of 2 layers forward sums of keys, draw, attention; backward queries, keys, sums, draw.
    # The KL of both takes one more in each direction.
    assert ours.launches == [7, 9]
    assert ours.saved <= 1.02 * softmax.saved
    assert not ours.copies


@pytest.mark.parametrize(
    "method",
    [
        BamConfig(kernel="triton"),
        BeliefConfig.pairs(kernel="triton", max_length=512),
        BeliefConfig.pairs(kernel="triton", upward="heads"),
    ],
)
def test_noise_over_pairs_breaks_no_graph(
    method: MethodConfig, compiler: ProcessPoolExecutor
) -> None:
    found = compiler.submit(traced, method).result()
    assert found.operators == [2, 2] and not any(found.launches)
