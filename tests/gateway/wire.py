"""Requests sent and answers read as they are: nothing added, followed, decoded or put in order."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.gateway.recorded import Request


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


def send(url: str, request: Request, *, timeout: float = 120) -> Answer:
    """One request on a connection of its own."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", parts.netloc)
        for name, value in request.headers:
            connection.putheader(name, value)
        if request.chunked:
            connection.putheader("transfer-encoding", "chunked")
            connection.endheaders()
            for piece in _chunks(request.body):
                connection.send(piece)
        else:
            if request.body:
                connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body or None)
        response = connection.getresponse()
        return Answer(response.status, tuple(response.getheaders()), response.read())
    finally:
        connection.close()


def _chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 7):
        piece = body[start : start + 7]
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def talk(url: str, *pieces: bytes, timeout: float = 120) -> bytes:
    """Everything a server says to these bytes until it hangs up; they should ask for that, or be refused."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate(pieces):
            time.sleep(0.02 if number else 0)
            connection.sendall(piece)
        said = []
        while part := connection.recv(65_536):
            said.append(part)
        return b"".join(said)
