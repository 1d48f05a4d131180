"""`babn inspect`."""

from babn.cli._errors import check_model


def inspect(
    model: str,
    *,
    method: str | None = None,
    set_: list[str] = [],  # noqa: B006  (typer needs a list)
) -> None:
    """Show which attention calls of a model babn converts, and what that adds.

    Only the model's configuration is read: no weights are loaded, and nothing is changed.

    Args:
        model: A folder that save_pretrained wrote, or the name of a model on the Hugging Face hub.
        method: The attention method: belief (the default), bam, softmax or mc-dropout.
        set_: A setting of the method as NAME=VALUE, e.g. layers=last:4, rho=10 or noise_over=pairs;
            may be repeated.
    """
    check_model(model)

    from babn.cli._inspection import inspection

    print(inspection(model, method, set_))
