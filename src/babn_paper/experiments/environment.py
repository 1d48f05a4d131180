"""The environment of a run: package versions, machine and git commit."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import babn

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "safetensors", "triton", "datasets")


def environment() -> dict[str, Any]:
    """Start time, command, versions, machine and git state, as plain values."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["babn", *sys.argv[1:]]),
        "versions": versions(),
        "machine": machine(),
        "git": git_state(Path(babn.__file__).parent),
    }


def versions() -> dict[str, str]:
    """Versions of Python, babn and the packages that affect results."""
    found = {"python": platform.python_version(), "babn": babn.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor and GPU, without host or user names."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The git commit and whether files were changed; `None` outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "."))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
