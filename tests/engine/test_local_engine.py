"""`es-sbert engine` with real servers, through the command line and in a home of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from es_sbert.engines.local import RunningEngine, find_servers
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import find_jdk, process_identity, server_account
from es_sbert.filesystem import file_lock
from tests.conftest import free_port

pytestmark = [pytest.mark.slow, pytest.mark.engine]

COMMAND = [sys.executable, "-m", "es_sbert", "engine"]
NAME = "es9-small"  # which is the quickest to unpack and to start


def http(url: str, path: str, method: str = "GET", body: Any = None) -> Any:
    """The JSON that a server answers; HTTP errors are raised."""
    request = urllib.request.Request(
        f"{url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=300) as response:
        return json.loads(response.read())


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

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        if arguments[0] == "up" and "--timeout" not in arguments:
            arguments = (*arguments, "--timeout", "500")  # on a loaded machine a server takes minutes
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env={**self.environ, **environ},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Whoever runs the tests in the background may ignore Ctrl-C, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **environ) as process:
            stdout, stderr = process.communicate(timeout=600)
        assert process.returncode == code, stderr
        assert "Traceback" not in stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def servers(self, port: int) -> list[dict[str, Any]]:
        """What runs on a port: nothing or one server."""
        return [json.loads(each.model_dump_json()) for each in self.noted() if each.port == port]

    def note(self, port: int, process: subprocess.Popen[str]) -> RunningEngine:
        """The note of a server that a command is starting."""
        while not (found := [each for each in self.noted() if each.port == port]):
            assert process.poll() is None
        return found[0]

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
    """The server of this module, as two commands at once started it.

    Attributes:
        first: Of the command that started it.
        second: Of the command that found it running.
    """

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
        said = [process.communicate(timeout=600) for process in both]
    ended = [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(both, said, strict=True)
    ]
    first, second = sorted(ended, key=lambda done: "is already running" in done.stderr)
    yield Begun(port, first, second)
    home.run("down", NAME, "--port", str(port), "--purge", "--yes")


@pytest.fixture
def server(home: Home, begun: Begun) -> dict[str, Any]:
    """What is listed of the module's server, which runs. A test may stop it: the next one starts it again."""
    if not home.servers(begun.port):
        home.run(*begun.up)
    [server] = home.servers(begun.port)
    return server


def test_concurrent_up_starts_one_server(home: Home, begun: Begun, server: dict[str, Any]) -> None:
    assert [begun.first.returncode, begun.second.returncode] == [0, 0], (begun.first.stderr, begun.second.stderr)
    assert [begun.first.stdout, begun.second.stdout] == [f"{begun.url}\n"] * 2
    assert "Starting Elasticsearch 9." in begun.first.stderr
    assert "is already running" not in begun.first.stderr
    assert "is already running" in begun.second.stderr
    assert "an earlier `es-sbert engine up` started it" in begun.second.stderr
    assert "Starting Elasticsearch" not in begun.second.stderr
    assert [each.port for each in home.noted()] == [begun.port]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_server_started_by_root_runs_as_unprivileged_user(home: Home, server: dict[str, Any]) -> None:
    account = server_account()
    assert account is not None
    assert Path(f"/proc/{server['pid']}").stat().st_uid == account.pw_uid
    program = [path.stat() for path in (home.folder / "engines" / "dist").rglob("*")]
    assert program
    assert not [status for status in program if status.st_uid == account.pw_uid or status.st_mode & 0o022]


def test_down_and_up_keeps_data(home: Home, begun: Begun, server: dict[str, Any]) -> None:
    http(begun.url, "/kept/_doc/1?refresh=true", "PUT", {"text": "precious"})
    down = home.run("down")
    assert home.servers(begun.port) == []
    assert f"{NAME} on port {begun.port}: stopped; data kept." in down.stderr
    assert process_identity(server["pid"]) != server["started"]
    up = home.run(*begun.up)
    assert up.stdout == f"{begun.url}\n"
    assert "Starting Elasticsearch 9." in up.stderr
    assert "The server continues with the data of an earlier run" in up.stderr
    [now] = home.servers(begun.port)
    assert process_identity(now["pid"]) == now["started"]
    assert http(begun.url, "/kept/_doc/1")["_source"] == {"text": "precious"}
    # That it has started, it writes after it answers.
    for log in (Path(now["log"]), Path(server["log"]).with_name("console.previous.log")):
        assert "starting" in log.read_text()


@pytest.mark.long
def test_interrupted_up_leaves_no_server(home: Home, port: int) -> None:
    with home.start("up", NAME, "--port", str(port)) as process:
        assert process.stderr is not None
        while "Starting" not in process.stderr.readline():
            assert process.poll() is None
        server = home.note(port, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    assert not server.is_alive
    assert home.servers(port) == []


@pytest.mark.long
def test_server_failing_to_start_shows_its_log(home: Home, port: int) -> None:
    done = home.run("up", NAME, "--port", str(port), "--heap", "1k", code=2)
    assert done.stdout == ""
    assert "exited during startup" in done.stderr
    assert "console.log" in done.stderr
    assert "Too small" in done.stderr  # the JVM's own words about a heap of 1 kB
    assert "--purge" in done.stderr
    assert home.servers(port) == []


@pytest.mark.long
def test_server_start_timeout_stops_it(home: Home, port: int) -> None:
    done = home.run("up", NAME, "--port", str(port), "--timeout", "0.5", code=2)
    assert f"does not answer on port {port} after 0.5 s" in done.stderr
    assert "--timeout 600" in done.stderr
    assert home.servers(port) == []


@pytest.fixture
def bare_home(home: Home, tmp_path: Path) -> Iterator[Home]:
    """Nothing installed, and only the JDK of the other home known."""
    folder = home.folder / "bare"
    java = find_jdk(range(21, 1000), os.environ, server_account()).home
    yield Home(folder, {**home.environ, "ES_SBERT_ENGINE_HOME": str(folder), "ES_JAVA_HOME": str(java)})
    shutil.rmtree(folder)


def test_up_without_maven_suggests_docker(bare_home: Home, tmp_path: Path) -> None:
    bare_home.environ.pop("MAVEN_HOME", None)
    bare_home.environ.pop("M2_HOME", None)
    done = bare_home.run("up", NAME, "--port", str(free_port()), code=2, PATH=str(tmp_path))
    assert "Maven (mvn), which downloads packages, is not on PATH" in done.stderr
    assert "docker-compose.yml" in done.stderr


def test_up_without_network_suggests_maven_settings(bare_home: Home, tmp_path: Path) -> None:
    nowhere = f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={free_port()}"
    options = f"-Dmaven.repo.local={tmp_path} {nowhere} {nowhere.replace('https', 'http')}"
    done = bare_home.run("up", NAME, "--port", str(free_port()), code=2, MAVEN_OPTS=options)
    assert "Maven cannot fetch org.elasticsearch" in done.stderr
    assert "settings.xml" in done.stderr
    assert not list(bare_home.folder.glob("dist/*"))
