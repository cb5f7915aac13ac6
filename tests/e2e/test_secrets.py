"""Real loads with random secrets, ending well and badly: everything that is written is searched for them."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import contents, open_engine, sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy

# Logs all that libraries may log; with BROKEN, a mistake of the program ends it in a traceback.
PROGRAM = """
import logging, os, elastic_transport
from es_sbert.cli.main import main
from es_sbert.encoder.text_pipeline import TextPipeline
if "DEBUG" in os.environ:
    logging.basicConfig(level=logging.DEBUG)
    elastic_transport.debug_logging()
def fail(*arguments):
    raise RuntimeError("broken on purpose")
if "BROKEN" in os.environ:
    TextPipeline.embed_until = fail
main()
"""


def secret() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_letters, k=24))


@dataclass
class Login:
    """What the engine requires, what may show up nowhere, and how the command gets it."""

    authorization: str
    secrets: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    in_url: str = ""


def by_api_key(folder: Path) -> Login:
    key = secret()
    return Login(f"ApiKey {key}", [key], {"ES_SBERT_API_KEY": key})


def by_password(folder: Path) -> Login:
    word = secret()
    header = b64encode(f"anna:{word}".encode()).decode()
    (folder / "word").write_text(word)
    return Login(f"Basic {header}", [word, header], arguments=["--username", "anna", "--password-file", "word"])


def by_url(folder: Path) -> Login:
    word = secret()
    header = b64encode(f"anna:{word}".encode()).decode()
    return Login(f"Basic {header}", [word, header], in_url=f"anna:{word}@")


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
@pytest.mark.parametrize(("engine", "how"), [("es9", by_api_key), ("es9", by_url), ("opensearch", by_password)])
def test_no_secret_is_written_anywhere(
    engine: str,
    how: Callable[[Path], Login],
    request: pytest.FixtureRequest,
    fresh_index: Callable[[str], str],
    model: Path,
    tmp_path: Path,
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index, login, shown = fresh_index(url), how(tmp_path), list[str]()
    on_index = ("--index", index, "--model", str(model), "--precision", "fp32", "--threads", "1")
    load = ("ingest", *on_index, "--id-field", "id", "docs.jsonl")
    write_jsonl(tmp_path / "docs.jsonl", [*sentences(40), {"id": "x", "text": "the cat", "price": "no number"}])
    with FaultyProxy(url, authorization=login.authorization) as proxy:
        address = f"http://{login.in_url}{urlsplit(proxy.url).netloc}"

        def run(*arguments: str, debug: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
            environment = os.environ | login.environment | {"ES_SBERT_URL": address} | more
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments, *login.arguments],
                cwd=tmp_path,
                env=environment | ({"DEBUG": "1"} if debug else {}),
                capture_output=True,
                text=True,
                timeout=240,
            )
            shown.extend((done.stdout, done.stderr))
            return done

        broken = run(*load, BROKEN="1")
        assert (broken.returncode, "RuntimeError: broken on purpose" in broken.stderr) == (1, True)
        crashed = run(*load, "--log-format", "json", debug=False, BROKEN="1")
        assert orjson.loads(crashed.stderr.splitlines()[-1])["event"] == "crashed"
        assert run(*load, "--log-format", "json", debug=False).returncode == 1  # one document is dead
        assert run("search", *on_index, "the cat").returncode == 0
        assert run("doctor", *on_index).returncode == 0
        assert run("index", "show", index).returncode == 0

        write_jsonl(tmp_path / "docs.jsonl", sentences(80))
        proxy.always = lambda exchange: (500, b"{}")
        assert run(*load, "--retry-seconds", "0.5").returncode == 1
        proxy.always = None
        proxy.down.set()
        assert run(*load, "--retry-seconds", "0").returncode == 2
        proxy.down.clear()
        proxy.authorization = "another one"
        refused = run(*load, "--log-format", "json")
        assert (refused.returncode, "refused the credentials" in refused.stderr) == (2, True)
    with open_engine(url) as opened:
        shown += [str(opened.get_index(index)), str(contents(url, index))]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "word"]
    shown += [path.read_bytes().decode(errors="replace") for path in written]
    assert not [text for text in shown for hidden in login.secrets if hidden in text]


def test_password_in_url_on_command_line_is_refused(cli: Cli) -> None:
    word = secret()
    public = f"http://anna:{word}@localhost:2"
    for command in (("index", "show", "docs", "--url", f"http://localhost:1,{public}"),
                    ("dashboards", "docs", "--kibana", public)):  # fmt: skip
        done = cli(*command)
        assert (done.code, done.out) == (2, "")
        assert "a command line is public" in done.err
        assert word not in done.err
