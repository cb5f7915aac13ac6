"""`es-sbert engine` with real servers, through the command line and in a home of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from es_sbert.engines.local import RunningEngine, find_servers
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import process_identity, server_account
from es_sbert.filesystem import file_lock
from tests.conftest import free_port
from tests.faults.servers import call

pytestmark = [pytest.mark.slow, pytest.mark.engine]

COMMAND = [sys.executable, "-m", "es_sbert", "engine"]
NAME = "es9-small"  # which is the quickest to unpack and to start


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@dataclass(frozen=True)
class Home:
    """An engine home and the environment of commands that use it."""

    folder: Path
    environ: dict[str, str]

    @property
    def state(self) -> Path:
        """Folder of the notes and locks of its servers."""
        layout = EngineHome.from_environment(self.environ, root=os.geteuid() == 0)
        layout.create(server_account())
        return layout.state

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        if arguments[0] == "up" and "--timeout" not in arguments:
            arguments = (*arguments, "--timeout", "500")  # on a loaded machine a server takes minutes
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Whoever runs the tests in the background may ignore Ctrl-C, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            done = finish(process)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def servers(self, port: int) -> list[RunningEngine]:
        """What runs on a port: nothing or one server."""
        return [each for each in self.noted() if each.port == port]

    def noted(self) -> list[RunningEngine]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ES_SBERT_ENGINE_HOME", self.environ["ES_SBERT_ENGINE_HOME"])
            return [server.running for server in find_servers() if server.running]


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home where the server's user may go (pytest's own folders are closed); all its servers are stopped."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="es-sbert-test-") as folder:
        Path(folder).chmod(0o755)
        home = Home(Path(folder), {**os.environ, "ES_SBERT_ENGINE_HOME": f"{folder}/engines"})
        yield home
        home.run("down", "--all")


@pytest.fixture
def port(home: Home) -> Iterator[int]:
    """A free port; an es9-small on it is stopped and removed after the test."""
    port = free_port()
    yield port
    home.run("down", NAME, "--port", str(port), "--purge", "--yes")


@dataclass(frozen=True)
class Begun:
    """The server of this module, and what the commands printed that started it and found it running."""

    port: int
    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def up(self) -> tuple[str, ...]:
        return "up", NAME, "--port", str(self.port)


@pytest.fixture(scope="module")
def begun(home: Home) -> Iterator[Begun]:
    port = free_port()
    with ExitStack() as stack:
        with file_lock(home.state / f"{NAME}-{port}.lock", lambda: None):  # as a third holds it
            both = [stack.enter_context(home.start("up", NAME, "--port", str(port))) for _ in range(2)]
            for process in both:
                assert process.stderr is not None
                assert "Waiting for another es-sbert" in process.stderr.readline()
        ended = [finish(process) for process in both]
    first, second = sorted(ended, key=lambda done: "is already running" in done.stderr)
    yield Begun(port, first, second)
    home.run("down", NAME, "--port", str(port), "--purge", "--yes")


@pytest.fixture
def server(home: Home, begun: Begun) -> RunningEngine:
    """The module's server, which runs. A test may stop it: the next one starts it again."""
    if not home.servers(begun.port):
        home.run(*begun.up)
    [server] = home.servers(begun.port)
    return server


def test_concurrent_up_starts_one_server(home: Home, begun: Begun, server: RunningEngine) -> None:
    assert [begun.first.returncode, begun.second.returncode] == [0, 0], (begun.first.stderr, begun.second.stderr)
    assert [begun.first.stdout, begun.second.stdout] == [f"{begun.url}\n"] * 2
    assert "Starting Elasticsearch 9." in begun.first.stderr
    assert "is already running" not in begun.first.stderr
    assert "is already running" in begun.second.stderr
    assert "an earlier `es-sbert engine up` started it" in begun.second.stderr
    assert "Starting Elasticsearch" not in begun.second.stderr
    assert [each.port for each in home.noted()] == [begun.port]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_server_started_by_root_runs_as_unprivileged_user(home: Home, server: RunningEngine) -> None:
    account = server_account()
    assert account is not None
    assert Path(f"/proc/{server.pid}").stat().st_uid == account.pw_uid
    program = [path.stat() for path in (home.folder / "engines" / "dist").rglob("*")]
    assert program
    assert not [status for status in program if status.st_uid == account.pw_uid or status.st_mode & 0o022]


def test_down_and_up_keeps_data(home: Home, begun: Begun, server: RunningEngine) -> None:
    call(begun.url, "PUT", "/kept/_doc/1?refresh=true", {"text": "precious"})
    down = home.run("down")
    assert home.servers(begun.port) == []
    assert f"{NAME} on port {begun.port}: stopped; data kept." in down.stderr
    assert process_identity(server.pid) != server.started
    up = home.run(*begun.up)
    assert up.stdout == f"{begun.url}\n"
    assert "Starting Elasticsearch 9." in up.stderr
    assert "The server continues with the data of an earlier run" in up.stderr
    [now] = home.servers(begun.port)
    assert process_identity(now.pid) == now.started
    assert call(begun.url, "GET", "/kept/_doc/1", None)["_source"] == {"text": "precious"}
    # That it has started, it writes after it answers.
    for log in (Path(now.log), Path(server.log).with_name("console.previous.log")):
        assert "starting" in log.read_text()


@pytest.mark.long
def test_interrupted_up_leaves_no_server(home: Home, port: int) -> None:
    with home.start("up", NAME, "--port", str(port)) as process:
        assert process.stderr is not None
        while "Starting" not in process.stderr.readline():
            assert process.poll() is None
        while not (servers := home.servers(port)):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    assert not servers[0].is_alive
    assert home.servers(port) == []
