"""Limits of HTTP requests: sizes, hosts, and deadlines of connections."""

import asyncio
import json
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from babn.viewer.text_inputs import Text, TextError

SECONDS = 15.0
"""Deadline for a whole request, and for a client to continue reading."""


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Attributes:
        characters: Maximum number of characters of one text.
        tokens: Maximum number of tokens of one text.
        body: Maximum number of bytes of one request, enough for any script.
        waiting: Maximum number of requests that wait for the model.
    """

    characters: int = 5000
    tokens: int = 256
    body: int = 64_000
    waiting: int = 4


DEFAULT_LIMITS = Limits()


class RefusedError(Exception):
    """A request is rejected, with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_local(host: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def read_body(request: Request, most: int) -> bytes:
    """The body of a JSON request of at most `most` bytes.

    Other sites can send plain forms across origins, but not JSON.
    """
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RefusedError(415, "The request is not JSON.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise RefusedError(413, f"The text is too long: over {most} bytes. Shorten it.")
    return body


def read_texts(body: bytes, characters: int) -> list[Text]:
    """The texts of a request: one, a pair, or two to compare."""
    try:
        fields = json.loads(body)
        first, second, relation = (fields.get(n, "") for n in ("text", "second", "relation"))
    except (ValueError, AttributeError, RecursionError):
        raise RefusedError(400, "The request is not a JSON object.") from None
    if not isinstance(first, str) or not isinstance(second, str):
        raise RefusedError(400, "The texts of the request are not strings.")
    for text in (first, second):
        if len(text) > characters:
            raise TextError(f"A text has {len(text)} characters; at most {characters} are allowed.")
    if not second.strip():
        return [first]
    return [(first, second)] if relation == "pair" else [first, second]


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for requests and for readers.

    uvicorn itself times out connections between requests only: a client that sends part of a
    request, or stops reading, would keep its connection forever.
    """

    seconds = SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Starts the deadline of the first request."""
        super().connection_made(transport)
        self._begin_deadline()

    def data_received(self, data: bytes) -> None:
        """Ends the deadline when the request is complete."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._begin_deadline()
        else:
            self._end_deadline()

    def pause_writing(self) -> None:
        """Starts the deadline for the client to read."""
        super().pause_writing()
        self._begin_deadline()

    def resume_writing(self) -> None:
        """Ends the deadline, since the client has read."""
        super().resume_writing()
        self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the deadline."""
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
