"""`babn inspect`."""

import json as json_format


def inspect(
    model: str,
    *,
    method: str | None = None,
    rho: float | None = None,
    set_: list[str] = [],  # noqa: B006  (typer needs a list)
    json: bool = False,
) -> None:
    """Show which attention calls of a model babn converts, and what that adds.

    Only the model's configuration is read: no weights are loaded, and nothing is changed.

    Args:
        model: A folder that save_pretrained wrote, or the name of a model on the Hugging Face hub.
        method: The attention method: belief (the default), bam, softmax or mc-dropout.
        rho: Weibull shape of a typical key in the belief method; larger means less noise.
        set_: Another setting of the method as NAME=VALUE, e.g. layers=last:4 or noise_over=pairs;
            may be repeated.
        json: Print JSON for other programs instead of a table.
    """
    from babn.cli._inspection import as_plain, inspection

    settings = [*set_, *([f"rho={rho}"] if rho is not None else [])]
    found = inspection(model, method, settings)
    print(json_format.dumps(as_plain(found), indent=2) if json else found)
