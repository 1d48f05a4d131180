"""`babn version`."""

import platform
from importlib import metadata

from babn import __version__


def version() -> None:
    """Show the versions of babn and what it runs on, for a bug report."""
    for name, value in versions().items():
        print(f"{name:<13} {value}")


def versions() -> dict[str, str]:
    """Versions of babn, Python, torch and transformers, the platform and the device."""
    import torch

    device = f"cpu, {torch.get_num_threads()} threads"
    return {
        "babn": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _installed("transformers"),
        "platform": platform.platform(),
        "device": f"cuda: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else device,
    }


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
