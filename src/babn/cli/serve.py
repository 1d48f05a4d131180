"""`babn serve`."""

from pathlib import Path

from babn.cli._errors import check_model
from babn.validation import check_count


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    samples: int = 10,
    seed: int = 0,
    max_tokens: int = 256,
) -> None:
    """Serve the page of `babn view` on this machine, for text that you type.

    Ctrl-C stops the server. There is no password: whoever can reach the address can use the model.

    Args:
        model: A run of babn train, or a folder with a converted model and its tokenizer, both saved
            by save_pretrained.
        host: IPv4 address to listen on; the default accepts this machine only.
        port: Port to listen on; 0 for any free one.
        samples: Samples of attention for the class probabilities.
        seed: Seed of the samples.
        max_tokens: Maximum number of tokens of a text.
    """
    check_model(model)
    check_count("samples", samples)
    check_count("max_tokens", max_tokens)

    from rich.console import Console

    from babn.viewer import server
    from babn.viewer.texts import open_model

    with server.listen(host, port) as listening:
        address, free = listening.getsockname()
        local = server.is_local(address)
        made = server.Server(
            *open_model(model),
            Path(model).resolve().name,
            samples=samples,
            seed=seed,
            limits=server.Limits(tokens=max_tokens),
            guarded=local,
        )
        if not local:
            warning = f"--host {host} lets other machines use this model. There is no password."
            Console(stderr=True).print(f"warning: {warning}", style="yellow", soft_wrap=True)
        print(f"Open http://{host}:{free} in a browser. Ctrl-C stops.", flush=True)
        server.serve(made.app(), listening)
    print("stopped")
