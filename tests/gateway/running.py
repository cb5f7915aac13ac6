"""A gateway as its operator runs it, in a process, whose memory can be measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import server


class GatewayProcess:
    def __init__(self, url: str, process: int) -> None:
        self.url = url
        self.process = process
        self._folder = Path(f"/proc/{process}")

    def memory(self, name: str) -> int:
        """Bytes: `VmRSS` as it is now, `VmHWM` at most since `forget_peak`."""
        found = re.search(rf"{name}:\s+(\d+) kB", (self._folder / "status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def forget_peak(self) -> None:
        """Count `VmHWM` from now on."""
        (self._folder / "clear_refs").write_text("5")


@contextmanager
def gateway_process(upstream: str, folder: Path, *options: str) -> Iterator[GatewayProcess]:
    """Run `es-sbert serve` until the block ends."""
    command = [sys.executable, "-m", "es_sbert.cli.main", "serve", "--upstream", upstream, "--port", "0", *options]
    # The shell gives its place to the gateway, so that both have the same number.
    started = ["sh", "-c", 'echo $$ > process && exec "$@"', "sh", *command]
    with server(started, folder=folder, environment={}, log=folder / "gateway.log") as url:
        yield GatewayProcess(url, int((folder / "process").read_text()))


@contextmanager
def serve(upstream: str, folder: Path, *options: str) -> Iterator[str]:
    with gateway_process(upstream, folder, *options) as gateway:
        yield gateway.url
