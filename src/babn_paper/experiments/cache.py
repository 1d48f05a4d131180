"""Encoded data on disk, so that only the first of many runs has to encode it."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from babn.errors import FormatError
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.task import Part, Task, Tokenizer

VERSION = 1
"""Changes when tasks encode differently."""


def encoded(
    task: Task[Any], part: Part[Any], tokenizer: Tokenizer, max_length: int, training: bool
) -> Encoded:
    """A part as tensors, from the cache where it was encoded before."""
    path = cache_path(task.name, part, tokenizer, max_length, training) if task.cached else None
    if path is None:
        return task.encode(part, tokenizer, max_length, training)
    try:
        return Encoded.load(path)
    except FormatError:
        made = task.encode(part, tokenizer, max_length, training)
        with suppress(OSError):  # a run can do without the cache
            made.save(path)
        return made


def cache_path(
    task: str, part: Part[Any], tokenizer: Tokenizer, max_length: int, training: bool
) -> Path | None:
    """The file for a part under a tokenizer; `None` for one whose content cannot be told."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    # What an earlier call cut or padded to is part of a tokenizer, but not of what it is.
    words = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    content = [VERSION, task, part.fingerprint, max_length, training, words]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    return cache_folder() / f"{task}-{part.name}-{digest}.safetensors"


def cache_folder() -> Path:
    """`$BABN_CACHE`, or `babn` in the user's folder of caches."""
    own = os.environ.get("BABN_CACHE")
    return Path(own) if own else Path.home() / ".cache" / "babn"
