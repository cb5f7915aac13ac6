"""A load that is started while its engine restarts waits for it, as one that already runs does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import contents, sentences, write_jsonl
from tests.faulty_proxy import CutConnectionError, Exchange, FaultyProxy, answer


@pytest.mark.parametrize("engine_url", ["es9", "opensearch"], indirect=True)
def test_each_request_may_fail_once_from_startup_on(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    """Connecting, planning and preparing are as patient as loading is."""
    seen: set[str] = set()

    def fails_once(exchange: Exchange) -> tuple[int, bytes]:
        path = exchange.path.partition("?")[0]
        if path in seen:
            return exchange.forward()
        seen.add(path)
        if len(seen) % 2:
            raise CutConnectionError
        return answer(503)(exchange)

    write_jsonl(Path("docs.jsonl"), sentences(5))
    with FaultyProxy(engine_url, always=fails_once, paths="") as proxy:
        options = ("--model", model, "--precision", "fp32", "--id-field", "id", "--json")
        done = cli("ingest", "--index", index_name, "--url", proxy.url, *options, "docs.jsonl")
    assert done.code == 0, done.err
    assert (done.summary["indexed"], done.summary["dead"], done.summary["left"]) == (5, 0, 0)
    assert "Waiting for the engine, up to 300 s: " in done.err
    assert "(--retry-seconds 0 fails at once)" in done.err
    assert len(seen) > 5
    assert len(contents(engine_url, index_name)) == 5


def test_ctrl_c_ends_wait_for_engine_at_startup(silent_port: int, tmp_path: Path) -> None:
    (tmp_path / "docs.txt").write_text("the cat\n")
    command = [sys.executable, "-m", "es_sbert", "ingest", "--index", "docs", "docs.txt", "--retry-seconds", "3600"]
    process = subprocess.Popen(
        [*command, "--url", f"http://127.0.0.1:{silent_port}"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Waiting for the engine, up to 3600 s: nothing listens at http://")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, err.strip().splitlines()[-1]) == (130, "Interrupted.")
