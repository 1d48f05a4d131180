"""Who works on a run: one process at a time, on one machine or on several that share the folder."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from babn.errors import BabnError, StorageError
from babn.files import parse_json

LOCK, HOLDER = ".lock", ".holder"
"""Locked by the process that works here, and says which one that is."""

HEARTBEAT, EXPIRES = 10.0, 60.0
"""Seconds between signs of life, and without one until another machine may take over."""


class RunError(BabnError, RuntimeError):
    """A run's folder is not what the command expects."""


class BusyError(RunError):
    """Another process works on the run."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keeps other processes away from a folder; ends with the process, however that ends.

    The kernel's lock on a file (`flock`) tells processes of one machine apart, and of several where
    the file system carries it between them (NFS version 4, GPFS, Lustre mounted with `flock`).
    Where it does not, a second file does, made by an exclusive open and touched every few seconds:
    a claim from another machine counts until it has not been touched for a minute.

    Args:
        folder: Is made if it is not there.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            locked = stack.enter_context(_locked(folder))
            _take(folder / HOLDER, locked)
        except OSError as error:
            raise StorageError.of(folder, error) from error
        stack.callback(_leave, folder / HOLDER)
        stack.enter_context(_heartbeat(folder / HOLDER))
        yield


def holder(folder: Path) -> str | None:
    """Who works on a folder, in words; `None` if nobody does."""
    if not folder.is_dir():
        return None
    try:
        with _locked(folder) as locked:
            return _other(folder / HOLDER, locked)
    except BusyError:
        return _in_words(_read(folder / HOLDER))
    except OSError:  # a read-only folder
        return _other(folder / HOLDER, False)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Locks a folder's lock file; gives whether the system can."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield False
        return
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            can = True
        except BlockingIOError as error:
            who = _in_words(_read(folder / HOLDER))
            raise BusyError(f"{folder} is being written by {who}.") from error
        except OSError:  # a file system without locks
            can = False
        yield can


def _take(path: Path, locked: bool) -> None:
    """Writes who works here, unless somebody does."""
    text = json.dumps({"machine": socket.gethostname(), "process": os.getpid()})
    for _ in range(2):
        try:
            with path.open("x") as file:
                file.write(text)
            return
        except FileExistsError:
            if other := _other(path, locked):
                raise BusyError(
                    f"{path.parent} is being written by {other}. If that has ended, wait "
                    f"{EXPIRES:.0f} seconds."
                ) from None
            path.unlink(missing_ok=True)
    raise BusyError(f"{path.parent} is being written by another process.")


def _leave(path: Path) -> None:
    """Gives a claim up; one that cannot be removed expires."""
    with suppress(OSError):
        path.unlink()


def _other(path: Path, locked: bool) -> str | None:
    """Who holds a claim that still counts; a process of this machine would hold the lock too."""
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    found = _read(path)
    mine = locked and found.get("machine") == socket.gethostname()
    return None if mine or age > EXPIRES else _in_words(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _in_words(found: dict[str, Any]) -> str:
    if not found:
        return "another process"
    return f"process {found.get('process')} of {found.get('machine')}"


@contextmanager
def _heartbeat(path: Path) -> Iterator[None]:
    """Touches a file as long as the block lasts."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
