"""Connections of clients that are slow or disconnect."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tiny import TEXT, classifier, tokenizer

from babn.viewer.server import Limits, Server, listen, web_server

pytestmark = pytest.mark.thorough

PATIENCE = 0.3
PAUSE = PATIENCE / 6
BODY = json.dumps({"text": TEXT}).encode()
HEAD = b"POST /view HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, int]]:
    """A server that runs, and its port."""
    server = Server(classifier(), tokenizer(), "tiny", samples=2, limits=Limits(waiting=9))
    with listen("127.0.0.1", 0) as listening:
        web = web_server(server.app())
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield server, listening.getsockname()[1]
        finally:
            web.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def port(served: tuple[Server, int]) -> int:
    return served[1]


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All log records, including those of uvicorn, which does not propagate them."""
    logging.getLogger("uvicorn").addHandler(caplog.handler)
    yield caplog
    logging.getLogger("uvicorn").removeHandler(caplog.handler)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """What the server still sends before it closes the connection."""
    found = b""
    try:
        while part := connection.recv(2**16):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_whole_requests_are_answered_one_after_the_other(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):
            for part in (REQUEST[:30], REQUEST[30:-4], REQUEST[-4:]):
                connection.sendall(part)
                time.sleep(PAUSE)
            answer = connection.recv(2**16)
            assert answer.startswith(b"HTTP/1.1 200")
            while b'"columns":' not in answer or not answer.endswith(b"}"):
                answer += connection.recv(2**16)


def test_a_model_may_take_its_time(
    served: tuple[Server, int], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(texts: Any) -> list[Any]:
        time.sleep(3 * PATIENCE)
        return []

    monkeypatch.setattr(served[0], "_columns", slow)
    with connect(port) as connection:
        connection.sendall(REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
        assert rest(connection).endswith(b'{"columns":[]}')


@pytest.mark.parametrize("sent", [REQUEST[:-5], REQUEST, b"GET / HTTP/1.1\r\nHost: a"])
def test_a_client_that_disconnects_is_no_failure(
    sent: bytes,
    served: tuple[Server, int],
    port: int,
    complaints: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def slow(texts: Any) -> list[Any]:
        time.sleep(PATIENCE)
        answered.set()
        return [{"text": "x" * 2**20}]

    monkeypatch.setattr(served[0], "_columns", slow)
    connection = connect(port)
    connection.sendall(sent)
    time.sleep(PAUSE)
    connection.close()
    assert answered.wait(PATIENCE * 3) == (sent == REQUEST)
    with connect(port) as other:  # and the server goes on
        other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest(other).startswith(b"HTTP/1.1 200")
    assert not complaints.text
