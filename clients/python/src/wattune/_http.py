"""One request to the daemon over a Unix socket or loopback TCP, with a deadline for the whole of it.

The standard library's HTTP client bounds each read, not the request, and imports TLS and mail parsers, which cost the
training thread milliseconds while they hold the interpreter. The daemon speaks plain HTTP/1.1 with small JSON bodies.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

_log = logging.getLogger("wattune")

DEFAULT_SOCKET = "/run/wattune/wattune.sock"
DEFAULT_LISTEN = "127.0.0.1:4938"
# A status of a node with thousands of jobs stays below this; a larger answer is not the daemon's.
_MAX_ANSWER = 64 * 1024 * 1024
_MAX_HEAD = 64 * 1024


class Unreachable(Exception):
    """The daemon did not answer: nothing listens, the connection broke, or time ran out."""


class BadAnswer(Exception):
    """Something answered that is not the daemon, or not in its protocol."""


@dataclass(frozen=True)
class UnixAddress:
    """A Unix socket, by its path."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class TcpAddress:
    """A TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Address = Union[UnixAddress, TcpAddress]


@dataclass(frozen=True)
class Answer:
    """The daemon's answer: the status, and the body's JSON value."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """True if the daemon did what was asked."""
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """The daemon's own words about a refusal, with the field that it names."""
        if isinstance(self.body, dict) and isinstance(self.body.get("detail"), str):
            field = self.body.get("field")
            return f"{field}: {self.body['detail']}" if field else str(self.body["detail"])
        return f"status {self.status}"


def parse_listen(text: str) -> TcpAddress:
    """Returns the TCP address in `host:port`, `[ipv6]:port` or `http://host:port`.

    Raises:
        ValueError: If the text is none of these.
    """
    bare = text.strip()
    if bare.startswith("http://"):
        bare = bare[len("http://") :].rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise ValueError(f"{text!r} is not an address such as {DEFAULT_LISTEN}")
    return TcpAddress(host.strip("[]"), int(port))


def addresses(
    socket_path: str | None = None, listen: str | None = None, environ: Mapping[str, str] | None = None
) -> list[Address]:
    """Returns where the daemon may answer, the most preferred first.

    An argument replaces the environment's variable, which replaces the default. Unix sockets come before TCP: the
    kernel says who asks, and no other host's program can listen there. `WATTUNE_LISTEN=off`, the daemon's own way to
    say that it has no TCP, leaves TCP out. An explicit argument is the only candidate: whoever names a daemon wants
    no other one.

    Raises:
        ValueError: If an address given as an argument is malformed.
    """
    env = os.environ if environ is None else environ
    if socket_path is not None or listen is not None:
        chosen: list[Address] = []
        if socket_path is not None:
            chosen.append(UnixAddress(os.fspath(socket_path)))
        if listen is not None:
            chosen.append(parse_listen(listen))
        return chosen
    found: list[Address] = []
    named = env.get("WATTUNE_SOCKET", "")
    for path in (named, DEFAULT_SOCKET):
        if path and UnixAddress(path) not in found:
            found.append(UnixAddress(path))
    tcp = env.get("WATTUNE_LISTEN", "") or DEFAULT_LISTEN
    if tcp != "off":
        try:
            found.append(parse_listen(tcp))
        except ValueError as error:
            # The environment is not the program's doing: it must not end the training.
            _log.warning("WATTUNE_LISTEN is ignored: %s", error)
    return found


def token(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the access token that is sent to the daemon: `WATTUNE_TOKEN`, else the content of `WATTUNE_TOKEN_FILE`.

    The file is read for each request, because tokens are renewed in it while a training runs. None without a token.
    """
    env = os.environ if environ is None else environ
    text = env.get("WATTUNE_TOKEN", "")
    path = env.get("WATTUNE_TOKEN_FILE", "")
    if not text and path:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read(65536)
        except (OSError, ValueError) as error:
            _log.warning("WATTUNE_TOKEN_FILE is ignored: %s", error)
    text = text.strip()
    if not text.isascii() or any(char.isspace() or not char.isprintable() for char in text):
        _log.warning("WATTUNE_TOKEN is ignored: it is no token")
        return None
    return text or None


class Connection:
    """A connection to one address, kept open between requests. Not for use by several threads at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._unread = b""

    def close(self) -> None:
        """Closes the connection; the next request opens another one."""
        sock, self._socket, self._unread = self._socket, None, b""
        if sock is not None:
            # A close that fails leaves nothing to do.
            with contextlib.suppress(OSError):
                sock.close()

    def request(self, method: str, path: str, body: object = None, timeout_s: float = 5.0) -> Answer:
        """Sends a request and returns the answer.

        A kept connection that the daemon has closed meanwhile is opened anew, once.

        Raises:
            Unreachable: If no answer came within `timeout_s`.
            BadAnswer: If the answer is not one of the daemon.
        """
        deadline = time.monotonic() + timeout_s
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nuser-agent: wattune-python\r\n"
        held = token()
        if held is not None:
            head += f"authorization: Bearer {held}\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n"
        message = head.encode("ascii") + b"\r\n" + payload
        kept = self._socket is not None
        try:
            return self._exchange(message, deadline)
        except _StaleConnection as stale:
            self.close()
            if not kept:
                raise Unreachable(f"{self.address} closed the connection") from stale
        except (OSError, BadAnswer) as error:
            self.close()
            if isinstance(error, BadAnswer):
                raise
            raise Unreachable(f"{self.address}: {_words(error)}") from error
        try:
            return self._exchange(message, deadline)
        except _StaleConnection as stale:
            self.close()
            raise Unreachable(f"{self.address} closed the connection") from stale
        except OSError as error:
            self.close()
            raise Unreachable(f"{self.address}: {_words(error)}") from error
        except BadAnswer:
            self.close()
            raise

    def _exchange(self, message: bytes, deadline: float) -> Answer:
        sock = self._connected(deadline)
        try:
            sock.settimeout(_left(deadline))
            sock.sendall(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _StaleConnection from error
        status, fields = self._read_head(sock, deadline)
        body = self._read_body(sock, fields, deadline)
        if fields.get("connection", "").lower() == "close":
            self.close()
        try:
            return Answer(status, json.loads(body) if body else None)
        except ValueError:
            return Answer(status, body.decode("utf-8", "replace"))

    def _connected(self, deadline: float) -> socket.socket:
        if self._socket is not None:
            return self._socket
        if isinstance(self.address, UnixAddress):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            target: Any = self.address.path
        else:
            family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            target = (self.address.host, self.address.port)
        try:
            sock.settimeout(_left(deadline))
            sock.connect(target)
            if isinstance(self.address, TcpAddress):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        return sock

    def _receive(self, sock: socket.socket, deadline: float) -> bytes:
        sock.settimeout(_left(deadline))
        return sock.recv(65536)

    def _read_head(self, sock: socket.socket, deadline: float) -> tuple[int, dict[str, str]]:
        data = self._unread
        while b"\r\n\r\n" not in data:
            if len(data) > _MAX_HEAD:
                raise BadAnswer(f"{self.address} answers without an end of its head")
            try:
                more = self._receive(sock, deadline)
            except ConnectionResetError as error:
                if not data:
                    raise _StaleConnection from error
                raise
            if not more:
                if not data:
                    raise _StaleConnection
                raise BadAnswer(f"{self.address} ended its answer in the head")
            data += more
        head, _, self._unread = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BadAnswer(f"{self.address} does not speak HTTP")
        fields = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        return int(words[1]), fields

    def _read_body(self, sock: socket.socket, fields: dict[str, str], deadline: float) -> bytes:
        if fields.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunks(sock, deadline)
        length = fields.get("content-length")
        if length is None:
            return b""
        if not length.isdigit() or int(length) > _MAX_ANSWER:
            raise BadAnswer(f"{self.address} announces a body of {length} bytes")
        self._fill(sock, int(length), deadline)
        body, self._unread = self._unread[: int(length)], self._unread[int(length) :]
        return body

    def _read_chunks(self, sock: socket.socket, deadline: float) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._unread:
                self._fill(sock, len(self._unread) + 1, deadline)
            line, _, self._unread = self._unread.partition(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise BadAnswer(f"{self.address} sends a chunk without a size") from None
            if size < 0 or len(body) + size > _MAX_ANSWER:
                raise BadAnswer(f"{self.address} sends more than {_MAX_ANSWER} bytes")
            self._fill(sock, size + 2, deadline)
            body, self._unread = body + self._unread[:size], self._unread[size + 2 :]
            if size == 0:
                return body

    def _fill(self, sock: socket.socket, length: int, deadline: float) -> None:
        parts, have = [self._unread], len(self._unread)
        while have < length:
            more = self._receive(sock, deadline)
            if not more:
                raise BadAnswer(f"{self.address} ended its answer after {have} of {length} bytes")
            parts.append(more)
            have += len(more)
        self._unread = b"".join(parts)


class _StaleConnection(Exception):
    """The other side closed a connection before it answered."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
    return left


def _words(error: OSError) -> str:
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "no answer in time"
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    return (error.strerror or str(error)).lower()
