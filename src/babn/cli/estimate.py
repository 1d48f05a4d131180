"""`babn estimate`."""

from babn.cli._errors import check_model
from babn.validation import check_at_least, check_count


def estimate(
    model: str,
    *,
    batch: int = 1,
    length: int = 512,
    layers: str = "all",
    queries: int = 0,
    cached: bool = False,
) -> None:
    """Compute parameters, memory and operations of softmax, BAM and BABN in a forward pass.

    BABN has noise per key, the default, or noise over pairs with maps over keys or heads. Only the
    model's configuration is read. Operations are those of matrix products; babn bench measures
    time. docs/scale.md has the formulas.

    Args:
        model: A folder with a config.json, a name on the Hugging Face hub, or llama-2-7b, which
            needs no download.
        batch: Texts in a batch, times samples of attention if they are in one pass.
        length: Tokens in each text.
        layers: The stochastic layers, e.g. last:4.
        queries: Tokens per pass, with the earlier ones in a cache; 0 for all at once.
        cached: Estimate one more token, with all others in a cache.
    """
    check_model(model)
    check_count("batch", batch)
    check_count("length", length)
    check_at_least("queries", queries, 0)

    from rich.console import Console

    from babn.cli._inspection import read_config
    from babn.cli._terminal import plain_table
    from babn.estimate import costs

    if model == costs.EXAMPLE:
        shape = costs.example_shape()
    else:
        shape = costs.shape_of(read_config(model), model)
    chain = costs.chosen_layers(shape, layers)
    work = costs.Workload(batch=batch, length=length, queries=queries, cached=cached)
    console = Console(highlight=False)
    console.print(
        f"{model}: {shape.parameters / 1e9:.3g}B parameters; "
        f"{len(chain.calls)} of {shape.layers} layers stochastic."
    )
    found = costs.estimates(shape, work, chain)
    console.print(plain_table(costs.COLUMNS, costs.table(found)))
