"""The requests, against answers that come in pieces, not at all, or from something else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wattune._http import BadAnswer, Connection, TcpAddress, UnixAddress, Unreachable, addresses, parse_listen, token


@contextmanager
def answering(folder: Path, *pieces: bytes, pause_s: float = 0.0, then_wait: bool = False) -> Iterator[Connection]:
    """Serves these pieces to each request, and closes; returns a connection to it."""
    path = str(folder / "h.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                for piece in pieces:
                    time.sleep(pause_s)
                    try:
                        client.sendall(piece)
                    except OSError:
                        break
                if then_wait:
                    time.sleep(2.0)

    threading.Thread(target=serve, daemon=True).start()
    connection = Connection(UnixAddress(path))
    yield connection
    connection.close()
    listener.close()


def test_an_answer_in_pieces(folder: Path) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-", b"Length: 7\r\n\r\n[1", b",2,3", b"]"]
    with answering(folder, *pieces, pause_s=0.02) as connection:
        assert connection.request("GET", "/").body == [1, 2, 3]
        assert connection.request("GET", "/").body == [1, 2, 3], "a closed connection is opened anew"


def test_a_chunked_answer(folder: Path) -> None:
    with answering(
        folder, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n2;x=1\r\n2]\r\n", b"0\r\n\r\n"
    ) as c:
        assert c.request("GET", "/").body == [1, 2]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"SSH-2.0-x\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: -9\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
        [b"x" * 100_000],
        [b"HTTP/1.1 200"],
    ],
)
def test_what_is_no_answer(folder: Path, pieces: list[bytes]) -> None:
    with answering(folder, *pieces) as connection, pytest.raises(BadAnswer):
        connection.request("GET", "/")


def test_the_deadline_is_for_the_whole_request(folder: Path) -> None:
    """Each piece comes in time, but they never end."""
    begun = time.monotonic()
    with answering(folder, *[b"H"] * 100, pause_s=0.05) as connection, pytest.raises(Unreachable, match="in time"):
        connection.request("GET", "/", timeout_s=0.3)
    assert time.monotonic() - begun < 0.6


def test_nothing_answers(folder: Path) -> None:
    with pytest.raises(Unreachable, match="no such socket"):
        Connection(UnixAddress(str(folder / "none.sock"))).request("GET", "/")
    with pytest.raises(Unreachable, match="refused"):
        Connection(TcpAddress("127.0.0.1", 9)).request("GET", "/")
    with pytest.raises(Unreachable):
        Connection(UnixAddress("/" + "x" * 200)).request("GET", "/")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:4938", TcpAddress("127.0.0.1", 4938)),
        ("[::1]:80", TcpAddress("::1", 80)),
        ("http://localhost:4938/", TcpAddress("localhost", 4938)),
    ],
)
def test_addresses_are_read(text: str, expected: TcpAddress) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "off", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", ":4938", "host:port"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address such as"):
        parse_listen(text)


def test_the_order_of_addresses() -> None:
    default = [UnixAddress("/nonexistent/wattune.sock"), TcpAddress("127.0.0.1", 9)]
    assert addresses(environ={}) == default
    assert addresses(environ={"WATTUNE_SOCKET": "/x", "WATTUNE_LISTEN": "127.0.0.1:8"}) == [
        UnixAddress("/x"),
        default[0],
        TcpAddress("127.0.0.1", 8),
    ]
    assert addresses(environ={"WATTUNE_LISTEN": "off"}) == default[:1]
    assert addresses(environ={"WATTUNE_LISTEN": "nonsense"}) == default[:1]
    assert addresses("/y", "127.0.0.1:7", {"WATTUNE_SOCKET": "/x"}) == [UnixAddress("/y"), TcpAddress("127.0.0.1", 7)]


def test_the_token_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "token"
    file.write_text("from-a-file\n")
    assert token({}) is None
    assert token({"WATTUNE_TOKEN": "", "WATTUNE_TOKEN_FILE": str(file)}) == "from-a-file"
    assert token({"WATTUNE_TOKEN": " given ", "WATTUNE_TOKEN_FILE": str(file)}) == "given"
    assert token({"WATTUNE_TOKEN_FILE": str(folder / "missing")}) is None
    assert token({"WATTUNE_TOKEN": "a\r\nb: c"}) is None, "no second header"

    path = str(folder / "t.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    requests: list[bytes] = []

    def serve() -> None:
        for _ in range(2):
            client, _ = listener.accept()
            with client:
                requests.append(client.recv(65536))
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    connection = Connection(UnixAddress(path))
    monkeypatch.delenv("WATTUNE_TOKEN", raising=False)
    connection.request("GET", "/")
    monkeypatch.setenv("WATTUNE_TOKEN", "secret")
    connection.request("GET", "/")
    server.join()
    listener.close()
    assert b"authorization" not in requests[0]
    assert b"\r\nauthorization: Bearer secret\r\n" in requests[1]
