"""A local web server for the page with typed text."""

import asyncio
import json
import logging
import socket
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from torch import nn

from babn.errors import BabnError, MissingExtraError
from babn.viewer.document import columns, page, policy
from babn.viewer.texts import Text, TextError, Tokenizer, most_tokens

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as missing:
    raise MissingExtraError(
        f"babn serve needs {missing.name}: pip install 'babn[serve]'"
    ) from missing

CONNECT = "'self'"
HEADERS = {
    "Content-Security-Policy": f"{policy(CONNECT)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PortError(BabnError, OSError):
    """The server cannot listen on the given host and port."""


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


@dataclass(eq=False)
class Server:
    """Serves one model, one request at a time.

    Attributes:
        model: A converted model.
        tokenizer: Its tokenizer.
        name: Name of the model.
        samples: Number of attention samples of the class probabilities.
        seed: Seed of the samples.
        limits: Limits of requests.
        guarded: Whether the host of requests must be this machine, which prevents DNS rebinding.
    """

    model: nn.Module
    tokenizer: Tokenizer
    name: str
    _: KW_ONLY
    samples: int = 10
    seed: int = 0
    limits: Limits = Limits()
    guarded: bool = True

    def __post_init__(self) -> None:
        """Prepares the queue of requests."""
        self.tokens = most_tokens(self.model, self.tokenizer, self.limits.tokens)
        self.turn, self.present = asyncio.Lock(), 0

    def app(self) -> Starlette:
        """The application: the page at `/`, and its data at `/view`."""
        made = Starlette(
            routes=[Route("/", self.show), Route("/view", self.predict, methods=["POST"])],
            exception_handlers={HTTPException: _fail, BabnError: _fail, ClientDisconnect: _fail},
        )
        made.router.redirect_slashes = False
        return made

    async def show(self, request: Request) -> Response:
        """The page without any text."""
        self._check_host(request)
        limits = {"tokens": self.tokens, "characters": self.limits.characters}
        data = {"columns": [], "model": self.name, "seed": self.seed, "limits": limits}
        return HTMLResponse(page(data, CONNECT), headers=HEADERS)

    async def predict(self, request: Request) -> Response:
        """The columns for the texts of a request."""
        self._check_host(request)
        texts = read_texts(await read_body(request, self.limits.body), self.limits.characters)
        if self.present > self.limits.waiting:
            raise HTTPException(503, "The model is busy. Try again in a moment.")
        self.present += 1
        try:
            # In a thread, so that the server stays responsive; one at a time, to limit memory.
            async with self.turn:
                found = await run_in_threadpool(self._columns, texts)
        except BabnError:
            raise
        except Exception as error:
            logging.getLogger("babn").exception("a request failed")
            message = "The model failed on this text. See the terminal for the error."
            raise HTTPException(500, message) from error
        finally:
            self.present -= 1
        return JSONResponse({"columns": found}, headers=HEADERS)

    def _check_host(self, request: Request) -> None:
        if self.guarded and not is_local(request.headers.get("host", "")):
            raise HTTPException(421, "This server accepts requests to localhost only.")

    def _columns(self, texts: list[Text]) -> list[dict[str, Any]]:
        settings = {"samples": self.samples, "seed": self.seed, "most": self.limits.tokens}
        return columns(self.model, self.tokenizer, texts, **settings)


async def _fail(request: Request, error: Exception) -> Response:
    """A response with the message of an error."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, HEADERS)
    return JSONResponse({"error": str(error)}, 422, HEADERS)


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
        raise HTTPException(415, "The request is not JSON.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, f"The text is too long: over {most} bytes. Shorten it.")
    return body


def read_texts(body: bytes, characters: int) -> list[Text]:
    """The texts of a request: one, a pair, or two to compare."""
    try:
        fields = json.loads(body)
        first, second, relation = (fields.get(n, "") for n in ("text", "second", "relation"))
    except (ValueError, AttributeError, RecursionError):
        raise HTTPException(400, "The request is not a JSON object.") from None
    if not isinstance(first, str) or not isinstance(second, str):
        raise HTTPException(400, "The texts of the request are not strings.")
    for text in (first, second):
        if len(text) > characters:
            raise TextError(f"A text has {len(text)} characters; at most {characters} are allowed.")
    if not second.strip():
        return [first]
    return [(first, second)] if relation == "pair" else [first, second]


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket."""
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise PortError(
            f"Cannot listen on {host}, port {port}: {error}. Give another with --port or --host."
        ) from error


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serves requests until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        web_server(app).run(sockets=[listening])


def web_server(app: Starlette) -> uvicorn.Server:
    """The web server of an application."""
    config = uvicorn.Config(
        app, ws="none", log_level="warning", lifespan="off", server_header=False
    )
    return uvicorn.Server(config)
