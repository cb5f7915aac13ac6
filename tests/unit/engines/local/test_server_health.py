"""Looking at ports (what a real engine answers is in tests/engine)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from es_sbert.engines.local.server_health import cluster_health, listening_version, port_is_free


@pytest.fixture(
    params=[
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ]
)
def chatty_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A program that is no search engine: it answers every connection with the same bytes and hangs up."""

    def serve(server: socket.socket, answer: bytes) -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(65536) == b"stop":
                    return
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server, request.param))
        thread.start()
        yield server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as last:
            last.sendall(b"stop")
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_non_engine_server_has_no_status(chatty_port: int) -> None:
    assert cluster_health(chatty_port) is None
    assert listening_version(chatty_port) is None
    assert not port_is_free(chatty_port)


def test_just_closed_port_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first and lingers in TIME_WAIT
        assert not port_is_free(port)
    assert port_is_free(port)
    assert cluster_health(port) is None


def test_port_bound_to_all_interfaces_is_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not port_is_free(server.getsockname()[1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use any port")
def test_reserved_port_raises_permission_error() -> None:
    with pytest.raises(PermissionError):
        port_is_free(1)
