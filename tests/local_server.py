"""What the small servers of tests share: a port of their own, and a thread of this process."""

from __future__ import annotations

import socketserver
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


class LocalServer(ABC):
    """Serves on the loopback interface while it is used as a context manager."""

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), self._handler())
        # A short poll: shutdown() waits for it at the end of every test.
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @abstractmethod
    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        """Class that serves one connection; it has the server in its closure."""
