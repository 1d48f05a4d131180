"""HTTP connections that are closed when their client stalls."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 15.0
"""Time in which a whole request has to arrive, and in which a client has to go on reading."""


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for requests and for readers.

    uvicorn itself times out connections between requests only: a client that sends half a request
    line, half a body or a byte now and then, and one that stops reading, would hold its connection
    as long as it likes.
    """

    seconds = SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._begin_deadline()

    def data_received(self, data: bytes) -> None:
        """Goes on waiting, until the request is there."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._begin_deadline()
        else:
            self._end_deadline()

    def pause_writing(self) -> None:
        """Begins to wait for the client to read."""
        super().pause_writing()
        self._begin_deadline()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._end_deadline()
        super().connection_lost(exc)

    def _begin_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._expire)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        self.transport.abort()
