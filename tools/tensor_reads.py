"""Memory that safetensors leaks per tensor read, and the number of reads in a round of the soak.

    python tools/tensor_reads.py

transformers reads models this way, so memory in `make soak` grows by the product of both.
"""

import ctypes
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file

TENSORS, ROUNDS = 100, 3000


class Counted:
    """An open file that counts the tensors read from it."""

    reads = 0
    real = safetensors.safe_open

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.file = Counted.real(*args, **kwargs)

    def __enter__(self) -> "Counted":
        self.file.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.file.__exit__(*args)

    def get_tensor(self, name: str) -> Any:
        """Reads a tensor."""
        Counted.reads += 1
        return self.file.get_tensor(name)

    def get_slice(self, name: str) -> Any:
        """Opens a slice of a tensor."""
        Counted.reads += 1
        return self.file.get_slice(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def held() -> int:
    """Resident memory in bytes, after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def lost(read: Callable[[Any, str], object], file: Path) -> float:
    """Bytes leaked per tensor that is read and discarded."""

    def once() -> None:
        with Counted.real(file, "pt") as opened:
            for name in list(opened.keys()):
                read(opened, name)

    for _ in range(ROUNDS // 10):
        once()
    before = held()
    for _ in range(ROUNDS):
        once()
    return (held() - before) / (ROUNDS * TENSORS)


def main() -> None:
    """Prints both."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tensors.safetensors"
        save_file({f"layer.{i}.weight": torch.zeros(16) for i in range(TENSORS)}, file)
        whole = lost(lambda opened, name: opened.get_tensor(name), file)
        part = lost(lambda opened, name: opened.get_slice(name)[...], file)
        print(
            f"safetensors {safetensors.__version__}: {whole:.0f} bytes a tensor, {part:.0f} a slice"
        )
        safetensors.safe_open = Counted  # before transformers looks it up
        import soak

        from babn.text import quiet

        with quiet():
            for number in range(len(soak.CONFIGS)):
                soak.one_round(number, Path(folder))
        print(f"{Counted.reads / len(soak.CONFIGS):.0f} tensors are read in a round")


if __name__ == "__main__":
    main()
