"""Responses of the server, and requests that it refuses."""

import json
import socket
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny import TEXT, classifier, data_of, tokenizer

from babn.viewer.server import Limits, PortError, Server, is_local, listen

LIMITS = Limits(characters=400, tokens=20, body=3000, waiting=1)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server(classifier(), tokenizer(), "tiny", samples=3, limits=LIMITS)


@pytest.fixture(scope="module")
def client(server: Server) -> TestClient:
    return TestClient(server.app(), base_url="http://127.0.0.1:8765")


def ask(client: TestClient, **body: Any) -> tuple[int, dict[str, Any]]:
    response = client.post("/view", json=body)
    return response.status_code, response.json()


def test_page_has_a_form_and_its_limits(client: TestClient) -> None:
    response = client.get("/")
    assert response.status_code == 200
    data = data_of(response.text)
    assert data["limits"] == {"tokens": 20, "characters": 400}
    assert data["columns"] == []


def test_every_response_has_safe_headers(client: TestClient) -> None:
    answers = [client.get("/"), client.post("/view", json={"text": TEXT}), client.post("/view")]
    assert [each.status_code for each in answers] == [200, 200, 415]
    strange = [client.get("/none"), client.get("/view"), client.put("/"), client.get("/view/")]
    assert [each.status_code for each in strange] == [404, 405, 405, 404]
    for response in answers + strange:
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "connect-src 'self'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"text": TEXT}, [[TEXT]]),
        ({"text": "a", "second": "b"}, [["a"], ["b"]]),
        ({"text": "a", "second": "b", "relation": "pair"}, [["a", "b"]]),
        ({"text": "half \ud800", "second": " "}, [["half \ufffd"]]),
    ],
)
def test_texts_become_columns(client: TestClient, body: dict[str, str], texts: Any) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/view", content=json.dumps(body), headers=headers)
    assert response.status_code == 200
    assert [column["text"] for column in response.json()["columns"]] == texts


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"text": ""}, 422, "The text is empty"),
        ({"text": "river " * 30}, 422, "32 tokens; at most 20"),
        ({"text": "r" * 401}, 422, "401 characters; at most 400"),
        ({"text": "r" * 4000}, 413, "too long"),
        ({"text": 3}, 400, "not strings"),
        ([1], 400, "not a JSON object"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_message(
    client: TestClient, body: Any, status: int, message: str
) -> None:
    response = client.post("/view", json=body)
    assert response.status_code == status
    assert message in response.json()["error"]


def test_broken_and_foreign_requests_are_refused(client: TestClient) -> None:
    json_type = {"content-type": "application/json"}
    assert client.post("/view", content=b"{", headers=json_type).status_code == 400
    assert client.post("/view", content=b"[" * 2900, headers=json_type).status_code == 400
    assert client.post("/view", content=b'{"text": "a"}').status_code == 415
    assert client.get("/view").status_code == 405
    assert client.get("/etc/passwd").status_code == 404


def test_bodies_are_not_read_beyond_the_limit(client: TestClient) -> None:
    def endless() -> Any:
        for _ in range(1000):
            yield b" " * 1000

    response = client.post("/view", content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert "over 3000 bytes" in response.json()["error"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8765", "", "10.0.0.1"])
def test_foreign_hosts_are_refused_on_this_machine(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421
    assert client.post("/view", json={"text": TEXT}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8765", "[::1]:80"])
def test_this_machine_has_several_names(host: str) -> None:
    assert is_local(host)


def test_open_servers_take_any_host() -> None:
    open_server = Server(classifier(1), tokenizer(), "tiny", guarded=False)
    response = TestClient(open_server.app()).get("/", headers={"host": "lab.example"})
    assert response.status_code == 200


def test_internal_errors_are_reported_without_a_traceback(
    server: Server, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("secret path /home/someone")

    monkeypatch.setattr(server, "_columns", fail)
    status, answer = ask(client, text=TEXT)
    assert status == 500
    assert answer == {"error": "The model failed on this text. See the terminal for the error."}


def test_one_request_runs_and_few_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, go_on = [0], [0], threading.Event()

    def slow(texts: Any) -> list[Any]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        go_on.wait(60)
        running[0] -= 1
        return []

    monkeypatch.setattr(server, "_columns", slow)
    statuses: list[int] = []
    with TestClient(server.app(), base_url="http://localhost") as client:

        def post() -> None:
            statuses.append(ask(client, text="a")[0])
            if 503 in statuses:
                go_on.set()

        threads = [threading.Thread(target=post) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    assert most[0] == 1
    assert sorted(set(statuses)) == [200, 503]


def test_unavailable_ports_are_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(PortError, match="--port"):
            listen("127.0.0.1", busy.getsockname()[1])
    with pytest.raises(PortError, match="--host"):
        listen("no.such.host.invalid", 0)
