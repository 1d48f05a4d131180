"""`babn estimate`."""

import json as json_format

from babn.cli._errors import CommandError, check_model
from babn.estimate.sizes import PRESETS, Workload, preset, shape_of


def estimate(
    model: str,
    *,
    batch: int = 1,
    length: int = 512,
    samples: int = 1,
    upward: str | None = None,
    layers: str = "all",
    queries: int = 0,
    cached: bool = False,
    train: bool = False,
    frozen: bool = False,
    reference: bool = False,
    json: bool = False,
) -> None:
    """Compute parameters, memory and operations of softmax, BAM and BABN in a model.

    BABN has noise per key, the default, or noise over pairs with maps over keys or heads. Only the
    model's configuration is read. Forward passes draw samples. Operations are those of matrix
    products; babn bench measures time. docs/scale.md has the formulas.

    Args:
        model: A folder with a config.json, a name on the Hugging Face hub, or one of the shapes
            llama-2-7b and llama-3-8b, which need no download.
        batch: Texts in a batch.
        length: Tokens in each text.
        samples: Samples of attention, all in one pass.
        upward: Axis of the maps of noise over pairs, keys or heads; both by default.
        layers: The stochastic layers, e.g. last:4.
        queries: Tokens per pass, with the earlier ones in a cache; 0 for all at once.
        cached: Estimate one more token, with all others in a cache.
        train: Estimate a training step with Adam.
        frozen: In training, freeze the base and train only the belief parameters.
        reference: Leave out fused kernels.
        json: Print JSON with all parts instead of a table.
    """
    if upward not in (None, "keys", "heads"):
        raise CommandError(f"--upward {upward} is invalid. Give keys or heads.")
    check_model(model)
    work = Workload(
        batch=batch,
        length=length,
        samples=samples,
        queries=queries,
        cached=cached,
        train=train,
        frozen=frozen,
    )

    from rich.console import Console

    from babn.cli._inspection import read_config
    from babn.cli._terminal import plain_table
    from babn.estimate.costs import COLUMNS, estimates, table

    shape = preset(model) if model in PRESETS else shape_of(read_config(model), model)
    axes = (upward,) if upward else ("keys", "heads")
    found = estimates(shape, work, layers=layers, upward=axes, kernels=not reference)
    if json:
        print(json_format.dumps([one.to_dict() for one in found], indent=2))
        return
    console = Console(highlight=False)
    console.print(
        f"{model}: {shape.parameters / 1e9:.3g}B parameters; {describe(work)}; "
        f"{len(found[-1].chain.calls)} of {shape.layers} layers stochastic."
    )
    console.print(plain_table(COLUMNS, table(found)))


def describe(work: Workload) -> str:
    """A workload in words."""
    texts = f"{work.batch} x {work.length:,} tokens"
    if work.samples > 1:
        texts += f" x {work.samples} samples"
    if work.train:
        return f"a training step on {texts}" + (", base frozen" if work.frozen else "")
    if work.cached:
        return f"one more token after {texts} in a cache"
    return f"{texts}, {work.queries} at a time" if work.queries else f"a pass over {texts}"
