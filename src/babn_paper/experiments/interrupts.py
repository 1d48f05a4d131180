"""Defers SIGINT and SIGTERM to the next checkpoint of long work."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Records the first SIGINT within its block; the second one interrupts as usual.

    SIGTERM, by which batch systems and torchrun end processes, is handled in the same way.

    Example:
        with Interrupts() as interrupts:
            while not interrupts.requested:
                ...
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
