"""`babn inspect`."""

import json as json_format
from dataclasses import asdict

from babn.cli._errors import check_model


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
    check_model(model)

    from babn.cli._inspection import inspection

    settings = [*set_, *([f"rho={rho}"] if rho is not None else [])]
    found = inspection(model, method, settings)
    if not json:
        print(found)
        return
    values = {
        "model": found.model,
        "converted": found.converted,
        "method": found.config.to_dict(),
        "calls": found.calls,
        "parameters_added": found.parameters_added,
        "share": found.share,
        "chains": [asdict(chain) for chain in found.chains],
        "kept": [asdict(call) for call in found.kept],
        "skipped": found.skipped,
        "kernel": found.kernel,
    }
    print(json_format.dumps(values, indent=2))
