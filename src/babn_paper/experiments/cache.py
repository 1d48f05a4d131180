"""A disk cache of encoded data, which many runs share."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from babn.errors import FormatError
from babn_paper.tasks.encoded import Encoded
from babn_paper.tasks.task import Part, Task, Tokenizer

VERSION = 2
"""Part of the cache key; changes with the way tasks encode their data."""


def encoded(
    task: Task[Any], part: Part[Any], tokenizer: Tokenizer, max_length: int, training: bool
) -> Encoded:
    """Encodes a part of the data, or reads it from the cache."""
    path = cache_path(task.name, part, tokenizer, max_length, training) if task.cached else None
    if path is None:
        return task.encode(part, tokenizer, max_length, training)
    try:
        return Encoded.load(path)
    except FormatError:
        made = task.encode(part, tokenizer, max_length, training)
        with suppress(OSError):  # the cache is optional
            made.save(path)
        return made


def cache_path(
    task: str, part: Part[Any], tokenizer: Tokenizer, max_length: int, training: bool
) -> Path | None:
    """The cache file of a part, or `None` if the tokenizer's content is unknown."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    # Truncation and padding are state of earlier calls.
    words = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    content = [VERSION, task, part.fingerprint, max_length, training, words]
    return cached_file(f"{task}-{part.name}", content, ".safetensors")


def cached_file(name: str, content: list[Any], suffix: str) -> Path:
    """The cache file of something that is determined by `content`."""
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:24]
    return cache_folder() / f"{name}-{digest}{suffix}"


def cache_folder() -> Path:
    """`$BABN_CACHE`, or `~/.cache/babn`."""
    own = os.environ.get("BABN_CACHE")
    return Path(own) if own else Path.home() / ".cache" / "babn"
