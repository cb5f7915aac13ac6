"""A TCP relay in front of a real engine, to cut connections where a test wants it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class Relay:
    """Hands bytes on to an engine until `stop()`, then drops all connections and refuses new ones."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port or 80)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # stopped
            upstream = socket.create_connection(self._target)
            self._sockets += [client, upstream]
            for source, sink in ((client, upstream), (upstream, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, sink)))
                self._threads[-1].start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            return  # one of the two is gone; stop() closes both

    def stop(self) -> None:
        """Drop everything; calling it twice does no harm."""
        try:
            # close() alone does not wake a thread that waits in accept().
            self._server.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        self._server.close()
        for end in self._sockets:
            with suppress(OSError):  # its peer may have closed it already
                end.shutdown(socket.SHUT_RDWR)
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
