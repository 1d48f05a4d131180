"""Locks on run folders: one process at a time, on one machine or on several that share the folder.

Two locks work together. `filelock` locks a file by the operating system, which releases it when the
process ends, however it ends; this separates processes of one machine, and of several machines if
the file system shares locks between them (NFS version 4, GPFS, Lustre mounted with `flock`). Where
it does not, a lease file separates machines: its holder touches it every few seconds, and a lease
of another machine expires one minute after the last touch. `filelock.SoftFileLease` is not used for
this: it measures the minute while it waits, so that it can neither take over a lease that expired
long ago at once nor report the holder without waiting.
"""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from babn.errors import BabnError, StorageError
from babn.files import parse_json

LOCK, HOLDER = ".lock", ".holder"
"""The file that the operating system locks, and the lease file, which names the holder."""

HEARTBEAT, EXPIRES = 10.0, 60.0
"""Seconds between touches of a lease, and seconds without one after which it expires."""


UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Error numbers of file systems without locks."""


class RunError(BabnError, RuntimeError):
    """A run's folder is not in the state that the command needs."""


class BusyError(RunError):
    """Another process holds the lock of the run."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which is created if it does not exist.

    Raises:
        BusyError: If another process holds it.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_local = stack.enter_context(_os_lock(folder))
            _take_lease(folder / HOLDER, is_local)
        except OSError as error:
            raise StorageError.of(folder, error) from error
        stack.callback(_drop_lease, folder / HOLDER)
        stack.enter_context(_heartbeat(folder / HOLDER))
        yield


def lock_holder(folder: Path) -> str | None:
    """A description of the process that holds the lock of a folder, `None` if it is free."""
    if not folder.is_dir():
        return None
    try:
        with _os_lock(folder) as is_local:
            return _lease_holder(folder / HOLDER, is_local)
    except BusyError:
        return _describe(_read_lease(folder / HOLDER))
    except OSError:  # a read-only folder
        return _lease_holder(folder / HOLDER, False)


@contextmanager
def _os_lock(folder: Path) -> Iterator[bool]:
    """Locks the lock file; yields whether the file system supports locks."""
    lock = FileLock(folder / LOCK, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        holder = _describe(_read_lease(folder / HOLDER))
        raise BusyError(f"{folder} is being written by {holder}.") from error
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _take_lease(path: Path, is_local: bool) -> None:
    """Writes the lease file unless another process holds the lease."""
    text = json.dumps({"machine": socket.gethostname(), "process": os.getpid()})
    for _ in range(2):
        try:
            with path.open("x") as file:
                file.write(text)
            return
        except FileExistsError:
            if holder := _lease_holder(path, is_local):
                raise BusyError(
                    f"{path.parent} is being written by {holder}. If that process has ended, wait "
                    f"{EXPIRES:.0f} seconds."
                ) from None
            path.unlink(missing_ok=True)
    raise BusyError(f"{path.parent} is being written by another process.")


def _drop_lease(path: Path) -> None:
    """Removes the lease file; one that cannot be removed expires."""
    with suppress(OSError):
        path.unlink()


def _lease_holder(path: Path, is_local: bool) -> str | None:
    """A description of the holder of a valid lease.

    Args:
        path: The lease file.
        is_local: Whether this process holds the lock of the operating system. A lease of this
            machine is then left over from a process that was killed.
    """
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    lease = _read_lease(path)
    is_stale = is_local and lease.get("machine") == socket.gethostname()
    return None if is_stale or age > EXPIRES else _describe(lease)


def _read_lease(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _describe(lease: dict[str, Any]) -> str:
    if not lease:
        return "another process"
    return f"process {lease.get('process')} of {lease.get('machine')}"


@contextmanager
def _heartbeat(path: Path) -> Iterator[None]:
    """Touches a file regularly while the block runs."""
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
