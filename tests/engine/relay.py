"""A TCP relay in front of a real engine, to cut connections where a test wants it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

# Closing with this option sends a reset in place of an orderly end.
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Hands bytes on to an engine until `stop()`, then drops all connections and refuses new ones.

    Args:
        target: Address of the engine.
        limit: Called for each direction of each new connection: bytes that it lets through before both ends are cut
            off, with a reset or without; None lets everything through.
        port: To listen on; 0 for any.
    """

    def __init__(self, target: str, limit: Callable[[], tuple[int, bool] | None] = lambda: None, port: int = 0) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port or 80)
        self._server = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._limit = limit
        self.cuts = 0
        self._thawed = threading.Event()
        self._thawed.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # stopped
            try:
                upstream = socket.create_connection(self._target)
            except OSError:
                client.close()  # the engine itself is away
                continue
            self._sockets += [client, upstream]
            for source, sink in ((client, upstream), (upstream, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, sink)))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        limit = self._limit()
        left = limit[0] if limit is not None else 0
        try:
            while data := source.recv(65536):
                self._thawed.wait()
                if limit is not None and len(data) >= left:
                    sink.sendall(data[:left])
                    self._cut(source, sink, reset=limit[1])
                    return
                sink.sendall(data)
                left -= len(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of the two is gone; stop() closes both

    def _cut(self, *ends: socket.socket, reset: bool) -> None:
        self.cuts += 1
        for end in ends:
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # The other direction's thread waits in recv(): shutdown wakes it, close() alone would not.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def freeze(self) -> None:
        """Hand nothing on, as a stopped process: connections are taken and kept, and get no answer."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Hand on what waits, and all that comes."""
        self._thawed.set()

    def drop(self) -> None:
        """Cut the connections that there are; new ones are taken."""
        for end in list(self._sockets):
            with suppress(OSError):  # closed already
                end.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Drop everything; calling it twice does no harm."""
        try:
            # close() alone does not wake a thread that waits in accept().
            self._server.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        self._server.close()
        self.drop()
        self.thaw()
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
