"""A local web server for the page with typed text."""

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from torch import nn

from babn.errors import BabnError, MissingExtraError
from babn.viewer.document import compared, page, policy
from babn.viewer.text_inputs import Text, Tokenizer, most_tokens

try:
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from babn.viewer.http_limits import (
        DEFAULT_LIMITS,
        Limits,
        RefusedError,
        TimedProtocol,
        is_local,
        read_body,
        read_texts,
    )
except ImportError as missing:
    raise MissingExtraError(
        f"babn serve needs {missing.name}: pip install 'babn[serve]'"
    ) from missing

Endpoint = Callable[[Request], Awaitable[Response]]

CONNECT = "'self'"
HEADERS = {
    "Content-Security-Policy": f"{policy(CONNECT)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PortError(BabnError, OSError):
    """The server cannot listen on the given host and port."""


class SafeHeaders:
    """Adds `HEADERS` to every response, including those of the router (404, 405)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_safely)


class Server:
    """Serves one model, one request at a time.

    Args:
        model: A converted model.
        tokenizer: Its tokenizer.
        name: Name of the model.
        samples: Number of attention samples of the class probabilities.
        seed: Seed of the samples.
        limits: Limits of requests.
        guarded: Whether the host of requests must be this machine, which prevents DNS rebinding.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        name: str,
        *,
        samples: int = 20,
        seed: int = 0,
        limits: Limits = DEFAULT_LIMITS,
        guarded: bool = True,
    ) -> None:
        self.models, self.name = [(model, tokenizer)], name
        self.samples, self.seed = samples, seed
        self.limits, self.guarded = limits, guarded
        self.tokens = most_tokens(model, tokenizer, limits.tokens)

    def app(self) -> Starlette:
        """The application: the page at `/`, and its data at `/view`."""
        made = Starlette(
            routes=[
                Route("/", self._handling(self.show), methods=["GET"]),
                Route("/view", self._handling(self.predict), methods=["POST"]),
            ],
            middleware=[Middleware(SafeHeaders)],
        )
        made.router.redirect_slashes = False
        made.state.turn = None  # created in the event loop
        made.state.present = 0  # number of requests that run or wait
        return made

    async def show(self, request: Request) -> Response:
        """The page without any text."""
        limits = {"tokens": self.tokens, "characters": self.limits.characters}
        data = {"columns": [], "model": self.name, "seed": self.seed, "limits": limits}
        return HTMLResponse(page(data, CONNECT))

    async def predict(self, request: Request) -> Response:
        """The columns for the texts of a request."""
        texts = read_texts(await read_body(request, self.limits.body), self.limits.characters)
        state = request.app.state
        state.turn = state.turn or anyio.CapacityLimiter(1)
        if state.present > self.limits.waiting:
            raise RefusedError(503, "The model is busy. Try again in a moment.")
        state.present += 1
        try:
            # In a thread, so that the server stays responsive; one at a time, to limit memory.
            columns = await anyio.to_thread.run_sync(self._columns, texts, limiter=state.turn)
        finally:
            state.present -= 1
        return JSONResponse({"columns": columns})

    def _columns(self, texts: list[Text]) -> list[dict[str, Any]]:
        settings = {"samples": self.samples, "seed": self.seed, "most": self.limits.tokens}
        return compared(self.models, texts, names=[self.name], **settings)

    def _handling(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that responds to failures with a message, and checks the host."""

        async def respond(request: Request) -> Response:
            try:
                if self.guarded and not is_local(request.headers.get("host", "")):
                    raise RefusedError(421, "This server accepts requests to localhost only.")
                response = await endpoint(request)
            except RefusedError as refused:
                response = JSONResponse({"error": str(refused)}, refused.status)
            except BabnError as error:
                response = JSONResponse({"error": str(error)}, 422)
            except ClientDisconnect:  # nobody reads the response
                response = Response(status_code=400)
            except Exception:
                logging.getLogger("babn").exception("a request failed")
                message = "The model failed on this text. See the terminal for the error."
                response = JSONResponse({"error": message}, 500)
            return response

        return respond


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket."""
    made = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except (OSError, OverflowError) as error:
        if made is not None:
            made.close()
        raise PortError(
            f"Cannot listen on {host}, port {port}: {error}. Give another with --port or --host."
        ) from error
    return made


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serves requests until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        web_server(app).run(sockets=[listening])


def web_server(app: Starlette) -> uvicorn.Server:
    """The web server of an application; stalled clients do not block others."""
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        log_level="warning",
        lifespan="off",
        server_header=False,
    )
    return uvicorn.Server(config)
