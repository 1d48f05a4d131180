"""What requests ask for, and which of them are refused."""

import json
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from babn.viewer.inputs import Text, TextError


@dataclass(frozen=True)
class Limits:
    """What the server takes.

    Attributes:
        characters: Characters of one text.
        tokens: Tokens of one text.
        body: Bytes of one request; four for each character leave room for any script.
        waiting: Requests that may wait for the model.
    """

    characters: int = 5000
    tokens: int = 256
    body: int = 64_000
    waiting: int = 4


DEFAULT_LIMITS = Limits()


class RefusedError(Exception):
    """A request that is not answered, with its status and the reason."""

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
    """The body of a JSON request, not read further than `most` bytes.

    Other pages can send plain forms here without asking, but not JSON.
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
    """The texts that a request asks for: one, a pair read together, or two side by side."""
    try:
        asked = json.loads(body)
        first, second, relation = (asked.get(n, "") for n in ("text", "second", "relation"))
    except (ValueError, AttributeError, RecursionError):
        raise RefusedError(400, "The request is not a JSON object.") from None
    if not isinstance(first, str) or not isinstance(second, str):
        raise RefusedError(400, "The texts of the request are not strings.")
    for text in (first, second):
        if len(text) > characters:
            raise TextError(f"A text has {len(text)} characters; at most {characters} are taken.")
    if not second.strip():
        return [first]
    return [(first, second)] if relation == "pair" else [first, second]
