"""`es-sbert ingest` as users and their shells call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, letters, open_engine
from tests.faulty_proxy import Exchange, FaultyProxy

pytestmark = pytest.mark.one_engine

COMMAND = [sys.executable, "-m", "es_sbert", "ingest"]
COUNTS = ("read", "indexed", "updated", "unchanged", "dead")


def options(url: str, index: str, model: Path) -> list[str]:
    return ["--index", index, "--url", url, "--model", str(model), "--precision", "fp32"]


@pytest.fixture
def ingest(cli: Cli, model: Path, engine_url: str, index_name: str) -> Callable[..., Done]:
    return lambda *arguments: cli("ingest", *options(engine_url, index_name, model), *arguments)


def counts(done: Done) -> dict[str, Any]:
    return {name: done.summary[name] for name in COUNTS if done.summary[name]}


def test_summary_goes_to_stderr_and_json_to_stdout(ingest: Callable[..., Done], model: Path) -> None:
    long = {"text": "cat " * 30}
    Path("docs.jsonl").write_bytes(b'{"text": "the cat"}\n\n{"text": ""}\nnonsense\n' + orjson.dumps(long))
    done = ingest("docs.jsonl")
    assert (done.code, done.out) == (1, "")
    for fact in ("4 documents read", "2  embedded and indexed", "1  skipped: no text", "1  not loaded: see test-"):
        assert fact in done.err
    quiet = ingest("docs.jsonl", "--quiet", "--json")
    assert quiet.err == ""
    assert counts(quiet) == {"read": 4, "unchanged": 2, "dead": 1}
    summary = quiet.summary
    assert summary["skipped"] == {"empty": 1, "duplicate": 0, "superseded": 0, "deleted": 0}
    [path] = Path.cwd().glob("test-*.dead-letters.jsonl")
    assert path.name == summary["dead_letters"]
    first, second = letters(path)
    assert (first["raw"], second["raw"]) == ("nonsense", "nonsense")
    assert first["run"] < second["run"]


def start(arguments: list[str], **kwargs: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_unembedded_documents_and_prints_summary(
    es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    index = fresh_index(es9_url)
    arguments = options(es9_url, index, model)
    process = start(
        [*arguments, "-", "--format", "lines", "--json", "--batch-window", "4", "--log-format", "json"],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"the cat sleeps\na man plays\nthe guitar\nthe mat\na cat\nhalf a li")
    process.stdin.flush()
    # The pipe stays open and silent: nothing but the signal ends this load.
    events = map(orjson.loads, process.stderr)
    assert next(event for event in events if event.get("read") == 5)["event"] == "progress"
    process.send_signal(number)
    out, err = _output(process)
    assert process.returncode == 130, err
    summary = orjson.loads(out)
    assert (summary["read"], summary["left"], summary["dead"], summary["interrupted"]) == (5, 5, 0, True)
    assert "Stopping: finished vectors are sent" in err
    assert "the same command resumes where it stopped" in err
    assert "Traceback" not in err
    assert not contents(es9_url, index)


def test_second_signal_exits_while_engine_hangs(
    es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    released = threading.Event()

    def hang(exchange: Exchange) -> tuple[int, bytes]:
        released.wait(600)
        return exchange.forward()

    (tmp_path / "docs.txt").write_text("the cat\n")
    with FaultyProxy(es9_url, always=hang) as proxy:
        process = start([*options(proxy.url, fresh_index(es9_url), model), "docs.txt"], cwd=tmp_path)
        try:
            while process.poll() is None and not proxy.bulk_sizes:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            # Two signals that come before the process has its turn are one to it.
            assert process.stderr is not None
            assert any(b"Stopping: finished vectors" in line for line in process.stderr)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.5)  # the first one waits for the request that holds finished vectors
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
            released.set()
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Stopped at once: the same command resumes where it stopped."
    assert "Traceback" not in err.decode()


def _output(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    """Output of a process that ends by itself while its standard input is still open."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.wait(300)
    with process.stdin, process.stdout, process.stderr:
        return process.stdout.read(), process.stderr.read().decode()


@pytest.mark.long
def test_memory_does_not_grow_with_source_size(
    es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    """Windows and bodies hold a sixteenth of what they usually do: much less than either source is on its way."""
    peaks = []
    for name, count in (("small", 100), ("large", 800)):
        index = fresh_index(es9_url)
        with open_engine(es9_url) as engine:
            engine.create_index(index, {"mappings": {"dynamic": False}})
        path = tmp_path / f"{name}.jsonl"
        filler = "x" * 100_000
        with path.open("wb") as file:
            for number in range(count):
                file.write(orjson.dumps({"text": f"the cat {number}", "filler": filler}) + b"\n")
        environment = os.environ | {"PEAK": str(tmp_path / f"{name}.peak")}
        # The kernel's own high-water mark of the process, read by itself at its end.
        code = (
            "import atexit, os, re\n"
            "atexit.register(lambda: open(os.environ['PEAK'], 'w').write("
            "re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)))\n"
            "from es_sbert.ingest import load_pipeline\nload_pipeline.WINDOW_BYTES >>= 4\n"
            "from es_sbert.cli.main import main\nmain()"
        )
        arguments = ["ingest", *options(es9_url, index, model), str(path), "--json", "--bulk-bytes", str(5 << 16)]
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, env=environment, cwd=tmp_path, timeout=300, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert orjson.loads(done.stdout)["indexed"] == count
        peaks.append(int(Path(environment["PEAK"]).read_text()) / 1024)
        path.unlink()
    small, large = peaks
    # 80 MB held anywhere along the way would show; what differs is how full the channels ran.
    assert large - small < 50, peaks
