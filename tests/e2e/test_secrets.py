"""Real loads with random secrets, ending well and badly: whatever is written anywhere is searched for them."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from tests.e2e.own_process import OwnProcess
from tests.engine.ingest_support import contents, open_engine, sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy


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
        f"Basic {header}",
        [word, header],
        arguments=["--username", "anna", "--password-file", "word"],
        files={"word": word},
    )


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
    err: str


class Office:
    """Runs commands against an engine that wants the login, and keeps all that they show."""

    def __init__(self, proxy: FaultyProxy, login: Login, index: str, model: Path, folder: Path) -> None:
        self.proxy = proxy
        self.login = login
        self.folder = folder
        self._started: list[OwnProcess] = []
        self._index = ["--index", index]
        self._model = ["--model", str(model), "--precision", "fp32", "--threads", "1"]
        self.name = index
        host = urlsplit(proxy.url).netloc
        self._environment = os.environ | login.environment | {"ES_SBERT_URL": f"http://{login.in_url}{host}"}
        for name, text in login.files.items():
            (folder / name).write_text(text + "\n")
        write_jsonl(folder / "docs.jsonl", [*sentences(40), {"id": "x", "text": "the cat", "price": "no number"}])

    def start(self, *arguments: str, debug: bool = False, broken: bool = False) -> OwnProcess:
        prints = self.folder / f"prints-{len(self._started)}"
        self._started.append(
            OwnProcess(
                [*arguments, *self.login.arguments], self.folder, self._environment, prints, debug=debug, broken=broken
            )
        )
        return self._started[-1]

    def run(self, *arguments: str, debug: bool = False, broken: bool = False) -> Run:
        process = self.start(*arguments, debug=debug, broken=broken)
        return Run(process.end(), process.err)

    def loading(self, *more: str) -> list[str]:
        return ["ingest", *self._index, *self._model, "--id-field", "id", "docs.jsonl", *more]

    def ingest(self, *more: str, debug: bool = False, broken: bool = False) -> Run:
        return self.run(*self.loading(*more), debug=debug, broken=broken)

    def on_index(self, command: str, *more: str) -> Run:
        return self.run(command, *self._index, *self._model, *more, debug=True)

    def written(self) -> Iterator[str]:
        """Whatever came out of the commands, and whatever they left."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name not in self.login.files:
                yield path.read_bytes().decode(errors="replace")


# A password of a file is that of the OpenSearch client's test; in the header it looks as one of an address does.
@pytest.fixture(params=[by_api_key, by_token, by_url], ids=["api-key", "token", "url"])
def login(request: pytest.FixtureRequest) -> Login:
    made: Login = request.param()
    return made


def check(url: str, index: str, login: Login, model: Path, folder: Path) -> None:
    with FaultyProxy(url, authorization=login.authorization) as proxy:
        office = Office(proxy, login, index, model, folder)
        broken = office.ingest(broken=True, debug=True)
        assert (broken.code, "RuntimeError: broken on purpose" in broken.err) == (1, True)
        crashed = office.ingest("--log-format", "json", broken=True)
        assert orjson.loads(crashed.err.splitlines()[-1])["event"] == "crashed"
        assert office.ingest("--log-format", "json").code == 1  # one document is dead
        assert office.on_index("search", "the cat").code == 0
        assert office.on_index("doctor").code == 0
        assert office.run("index", "show", index, debug=True).code == 0

        write_jsonl(folder / "docs.jsonl", sentences(80))
        proxy.always = lambda exchange: (500, b"{}")
        assert office.ingest("--retry-seconds", "0.5", debug=True).code == 1
        proxy.always = None
        proxy.down.set()
        assert office.ingest("--retry-seconds", "0", debug=True).code == 2
        proxy.down.clear()
        proxy.authorization = "another one"
        refused = office.ingest("--log-format", "json", debug=True)
        assert (refused.code, "refused the credentials" in refused.err) == (2, True)
    with open_engine(url) as engine:
        state = engine.get_index(index)
    stored = [str(state), str(contents(url, index))]
    for found in [*office.written(), *stored]:
        for hidden in login.secrets:
            assert hidden not in found


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
def test_no_secret_is_written_anywhere(
    es9_url: str, fresh_index: Callable[[str], str], login: Login, model: Path, tmp_path: Path
) -> None:
    check(es9_url, fresh_index(es9_url), login, model, tmp_path)


@pytest.mark.usefixtures("alone_on_engines")
def test_opensearch_client_writes_no_secret(
    opensearch_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    check(opensearch_url, fresh_index(opensearch_url), by_password(), model, tmp_path)


def test_password_in_url_on_command_line_is_refused(tmp_path: Path) -> None:
    word = secret()
    url = f"http://localhost:1,http://anna:{word}@localhost:2"
    command = [sys.executable, "-m", "es_sbert", "index", "show", "docs", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a command line is public" in done.stderr
    assert "ES_SBERT_PASSWORD" in done.stderr
    assert word not in done.stderr
