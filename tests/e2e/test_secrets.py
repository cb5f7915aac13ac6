"""Real loads with random secrets, ending well and badly: whatever is written anywhere is searched for them."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from tests.engine.ingest_support import contents, open_engine, sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy

# Everything that a library may log is logged, and a mistake of this program's own ends in a traceback.
WRAPPER = """
import logging, os, sys
import elastic_transport
if "DEBUG_ALL" in os.environ:
    logging.basicConfig(level=logging.DEBUG)
    elastic_transport.debug_logging()
if "BREAK_EMBEDDING" in os.environ:
    from es_sbert.encoder.encoder import Encoder
    def broken(*arguments):
        raise RuntimeError("broken on purpose")
    Encoder.embed = broken
from es_sbert.cli.main import main
main(sys.argv[1:])
"""


def secret() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_letters, k=24))


@dataclass
class Login:
    """A way to sign in.

    Attributes:
        authorization: The header that the engine wants to see.
        secrets: None of which may show up anywhere.
        environment, arguments, files: How the command gets them; `files` are written beside it.
        in_url: What goes into the address.
    """

    authorization: str
    secrets: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    in_url: str = ""


def basic(user: str, password: str) -> str:
    return b64encode(f"{user}:{password}".encode()).decode()


def by_api_key() -> Login:
    key = secret()
    return Login(f"ApiKey {key}", [key], {"ES_SBERT_API_KEY": key})


def by_password() -> Login:
    word = secret()
    header = basic("anna", word)
    return Login(
        f"Basic {header}", [word, header], arguments=["--username", "anna", "--password-file", "word"],
        files={"word": word},
    )  # fmt: skip


def by_token() -> Login:
    token = secret()
    return Login(f"Bearer {token}", [token], arguments=["--token-file", "token"], files={"token": token})


def by_url() -> Login:
    word = secret()
    header = basic("anna", word)
    return Login(f"Basic {header}", [word, header], in_url=f"anna:{word}@")


@dataclass
class Run:
    code: int
    out: str
    err: str


class Office:
    """Runs commands against an engine that wants the login, and keeps all that they show."""

    def __init__(self, proxy: FaultyProxy, login: Login, index: str, model: Path, folder: Path) -> None:
        self.proxy = proxy
        self.login = login
        self.folder = folder
        self.shown: list[str] = []
        self._index = ["--index", index]
        self._model = ["--model", str(model), "--precision", "fp32", "--threads", "1"]
        self.name = index
        host = urlsplit(proxy.url).netloc
        self._environment = os.environ | login.environment | {"ES_SBERT_URL": f"http://{login.in_url}{host}"}
        (folder / "wrapper.py").write_text(WRAPPER)
        for name, text in login.files.items():
            (folder / name).write_text(text + "\n")
        write_jsonl(folder / "docs.jsonl", [*sentences(40), {"id": "x", "text": "the cat", "price": "no number"}])

    def run(self, *arguments: str, while_running: Callable[[subprocess.Popen[str]], None] | None = None,
            **environment: str) -> Run:  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "wrapper.py", *arguments, *self.login.arguments], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment | environment,
        )  # fmt: skip
        self.shown.append(Path(f"/proc/{process.pid}/cmdline").read_text())
        if while_running is not None:
            while_running(process)
        out, err = process.communicate(timeout=240)
        self.shown += [out, err]
        return Run(process.returncode, out, err)

    def ingest(self, *more: str, while_running: Callable[[subprocess.Popen[str]], None] | None = None,
               **environment: str) -> Run:  # fmt: skip
        arguments = ["ingest", *self._index, *self._model, "--id-field", "id", "docs.jsonl", *more]
        return self.run(*arguments, while_running=while_running, **environment)

    def on_index(self, command: str, *more: str, **environment: str) -> Run:
        return self.run(command, *self._index, *self._model, *more, **environment)

    def written(self) -> Iterator[str]:
        """Whatever came out of the commands, and whatever they left."""
        yield from self.shown
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name not in self.login.files:
                yield path.read_bytes().decode(errors="replace")


@pytest.fixture(params=[by_api_key, by_password, by_token, by_url], ids=["api-key", "password", "token", "url"])
def login(request: pytest.FixtureRequest) -> Login:
    made: Login = request.param()
    return made


def scrape(office: Office) -> Callable[[subprocess.Popen[str]], None]:
    """Ask for the metrics once the command says where they are."""

    def look(process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            office.shown.append(line)
            if '"metrics_served"' in line:
                url = orjson.loads(line)["url"]
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
                    office.shown.append(answer.read().decode())
                return

    return look


def check(url: str, index: str, login: Login, model: Path, folder: Path) -> None:
    with FaultyProxy(url, authorization=login.authorization) as proxy:
        office = Office(proxy, login, index, model, folder)
        broken = office.ingest(BREAK_EMBEDDING="1", DEBUG_ALL="1")
        assert (broken.code, "RuntimeError: broken on purpose" in broken.err) == (1, True)
        crashed = office.ingest("--log-format", "json", BREAK_EMBEDDING="1")
        assert orjson.loads(crashed.err.splitlines()[-1])["event"] == "crashed"
        done = office.ingest("--log-format", "json", "--metrics", "0", while_running=scrape(office))
        assert done.code == 1  # one document is dead
        assert office.on_index("search", "the cat", DEBUG_ALL="1").code == 0
        assert office.on_index("doctor", DEBUG_ALL="1").code == 0
        assert office.run("index", "show", index, DEBUG_ALL="1").code == 0

        write_jsonl(folder / "docs.jsonl", sentences(80))
        proxy.always = lambda exchange: (500, b"{}")
        assert office.ingest("--retry-seconds", "0.5", DEBUG_ALL="1").code == 1
        proxy.always = None
        proxy.down.set()
        assert office.ingest(DEBUG_ALL="1").code == 2
        proxy.down.clear()
        proxy.authorization = "another one"
        refused = office.ingest("--log-format", "json", DEBUG_ALL="1")
        assert (refused.code, "refused the credentials" in refused.err) == (2, True)
    with open_engine(url) as engine:
        state = engine.get_index(index)
    stored = [str(state), str(contents(url, index))]
    for found in [*office.written(), *stored]:
        for hidden in login.secrets:
            assert hidden not in found


def test_no_secret_is_written_anywhere(
    es9_url: str, fresh_index: Callable[[str], str], login: Login, model: Path, tmp_path: Path
) -> None:
    check(es9_url, fresh_index(es9_url), login, model, tmp_path)


def test_nor_by_the_opensearch_client(
    opensearch_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    check(opensearch_url, fresh_index(opensearch_url), by_password(), model, tmp_path)


def test_a_password_in_the_url_is_refused_on_a_command_line(tmp_path: Path) -> None:
    word = secret()
    command = [sys.executable, "-m", "es_sbert", "index", "show", "docs", "--url", f"http://anna:{word}@localhost:1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a command line is public" in done.stderr
    assert "ES_SBERT_URL" in done.stderr
    assert word not in done.stderr
