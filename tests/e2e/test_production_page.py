"""The commands of "In ten commands" and "Several instances" in docs/production.md, run in one shell.

The shell finds only the programs that are named here, so that a command that is not known fails. What takes root or a
running systemd is replaced: folders by the table of substitutes, `systemctl` by a service manager of the tests, and the
packages that pip would download by those of this environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import free_port
from tests.e2e.systemd_units import ROOT, ServiceManager, replace_all, substitutes, wait_for, write_program
from tests.engine.secured import PASSWORD, Secured

pytestmark = [pytest.mark.long, pytest.mark.engine]
_PAGE = (ROOT / "docs/production.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Programs of the system that the page uses, as they are.
_PROGRAMS = ("cat", "curl", "grep", "install", "ln", "mkdir", "openssl", "rm", "sed")
_INDICES = ("docs", "docs-news")
_KEYS = ("es-sbert-gateway", "es-sbert-loader", "search-application")
_PORTS = ("9281", "9282")
_TIMEOUT = 600


def page_blocks(title: str) -> list[str]:
    """The blocks of commands in a section."""
    section = _PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [match[1] for match in _BLOCK.finditer(section)]


class Shell:
    """A shell of a fresh machine in `folder`, whose programs are those of `_PROGRAMS` and the replaced ones.

    Attributes:
        installed: The arguments of each `pip install`.
    """

    def __init__(self, folder: Path, manager: ServiceManager) -> None:
        self.home = folder / "home"
        self.installed: list[list[str]] = []
        self._manager = manager
        self._bin, self._requests, self._answers = folder / "bin", folder / "requests", folder / "answers"
        self._log = folder / "shell.log"
        for path in (self.home, self._bin):
            path.mkdir()
        for name in _PROGRAMS:
            program = shutil.which(name)
            assert program is not None, f"{name} is not on PATH"
            (self._bin / name).symlink_to(program)
        for pipe in (self._requests, self._answers):
            os.mkfifo(pipe)
        for name in ("python3", "systemctl", "promtool"):
            self.write_replacement(self._bin / name)
        if (promtool := shutil.which("promtool")) is not None:
            (self._bin / "promtool").unlink()
            (self._bin / "promtool").symlink_to(promtool)
        self.checkout = folder / "checkout"
        threading.Thread(target=self._serve, daemon=True).start()

    def write_replacement(self, path: Path) -> None:
        """Write a program that asks `_replaced` to do its work."""
        path.write_text(
            f'#!/bin/bash\nprintf "%q " "$0" "$@" > {self._requests}\nread -r code < {self._answers}\nexit "$code"\n'
        )
        path.chmod(0o755)

    def start(self) -> None:
        self._output = self._log.open("wb")
        self._process = subprocess.Popen(
            ["/bin/bash"],
            cwd=self.checkout,
            env={"PATH": str(self._bin), "HOME": str(self.home), "LANG": "C.UTF-8", "TMPDIR": str(self.home)},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self._send("set -euo pipefail\n")

    def run(self, block: str, *, typed: str = "") -> str:
        """Run a block to its end; what it printed.

        Args:
            typed: What is typed during it.
        """
        script = self.checkout.parent / "block.sh"
        # `set -e` sees only the last command of `first && second`.
        script.write_text(block.replace(" && ", "\n"))
        before, mark = self._log.stat().st_size, "=== the block has ended"
        self._send(f"source {shlex.quote(str(script))}\n{typed}echo '{mark}'\n")

        def printed() -> str:
            return self._log.read_bytes()[before:].decode()

        wait_for(
            lambda: printed().endswith(f"{mark}\n") or self._process.poll() is not None,
            lambda: f"{block}\n{printed()}\n{self._manager.log()}",
            _TIMEOUT,
        )
        assert printed().endswith(f"{mark}\n"), f"{block}\n{printed()}\n{self._manager.log()}"
        return printed().removesuffix(f"{mark}\n")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())

    def _serve(self) -> None:
        while True:
            words = shlex.split(self._requests.read_text())
            code = 1
            try:
                self._replaced(Path(words[0]), words[1:])
                code = 0
            except BaseException as error:
                with self._log.open("ab") as log:
                    log.write(f"{shlex.join(words)}: {error!r}\n".encode())
            self._answers.write_text(f"{code}\n")

    def _replaced(self, program: Path, arguments: list[str]) -> None:
        match program.name, arguments:
            case "systemctl", _:
                self._manager.systemctl(*arguments)
            case "python3", ["-m", "venv", folder]:
                (Path(folder) / "bin").mkdir(parents=True)
                self.write_replacement(Path(folder) / "bin/pip")
            case "pip", ["install", "--constraint", "constraints.txt", requirement]:
                assert (self.checkout / "constraints.txt").is_file()
                assert requirement in (ROOT / "README.md").read_text()
                write_program(program.parent / "es-sbert")
                self.installed.append(arguments)
            case "pip", ["install", "--no-deps", package]:
                assert package in (ROOT / "README.md").read_text()
                self.installed.append(arguments)
            case "promtool", ["check" | "test", "config" | "rules", *options, file]:
                assert options in ([], ["--syntax-only"])
                assert (self.checkout / file).is_file()
            case _:
                raise AssertionError("not known here")


@contextmanager
def machine(folder: Path, replaced: dict[str, str]) -> Iterator[tuple[Shell, ServiceManager]]:
    """A shell, and the services that it starts; the files of the checkout have the same substitutes as the page."""
    root = folder / "root"
    for name in ("opt", "etc/systemd/system", "var/cache", "var/lib"):
        (root / name).mkdir(parents=True)
    manager = ServiceManager(root)
    shell = Shell(folder, manager)
    shutil.copytree(ROOT / "examples/deploy", shell.checkout / "examples/deploy")
    for path in (shell.checkout / "examples/deploy").rglob("*"):
        if path.is_file():
            path.write_text(replace_all(path.read_text(), replaced))
    shutil.copy(ROOT / "constraints.txt", shell.checkout)
    shell.start()
    try:
        yield shell, manager
    finally:
        shell.stop()
        manager.kill_all()


@pytest.fixture
def documents(secured_es8: Secured) -> Iterator[list[dict[str, Any]]]:
    """The articles of the example, in both indices, without anything of es-sbert's."""
    found = [json.loads(line) for line in (ROOT / "examples/articles.jsonl").read_text().splitlines()]
    for index in _INDICES:
        for document in found:
            secured_es8.ask("PUT", f"/{index}/_doc/{document['id']}", document)
        secured_es8.ask("POST", f"/{index}/_refresh")
    yield found
    for index in _INDICES:
        secured_es8.ask("DELETE", f"/{index}")


def status(server: Secured, key: str, method: str, path: str, body: object = None) -> int:
    """Status of the engine's own answer to an API key."""
    return httpx.request(
        method,
        f"{server.url}{path}",
        json=body,
        headers={"authorization": f"ApiKey {key}"},
        verify=ssl.create_default_context(cafile=server.ca_certs),
        trust_env=False,
        timeout=60,
    ).status_code


def check_keys(server: Secured, folder: Path) -> None:
    """Each key may do what the page says, and nothing else of what is tried."""
    keys = {name: (folder / f"{name}.key").read_text().strip() for name in ("gateway", "loader", "application")}
    month = "es-sbert-searches-test-2000.01"
    attempts: list[tuple[str, str, object, set[str]]] = [
        ("GET", "/docs/_search", None, {"loader", "application"}),
        ("GET", "/docs/_mapping", None, {"gateway", "loader"}),
        ("PUT", "/docs/_doc/01", {"text": "changed"}, {"loader"}),
        ("GET", "/docs/_stats", None, {"loader"}),
        ("GET", "/_cluster/health", None, {"loader"}),
        ("POST", f"/{month}/_doc?op_type=create", {"query": "none"}, set()),
        ("GET", f"/{month}/_search", None, set()),
        ("DELETE", "/docs/_doc/01", None, set()),
        ("DELETE", "/docs", None, set()),
        ("PUT", "/docs-of-nobody", None, set()),
        ("PUT", "/docs/_settings", {"index.refresh_interval": "1s"}, set()),
        ("GET", "/other/_search", None, set()),
        ("PUT", "/_cluster/settings", {"persistent": {"cluster.max_shards_per_node": 1001}}, set()),
        ("GET", "/_security/user", None, set()),
        ("POST", "/_security/api_key", {"name": "more", "role_descriptors": {"all": {"cluster": ["all"]}}}, set()),
    ]
    server.ask("PUT", "/other")
    try:
        for method, path, body, allowed in attempts:
            statuses = {name: status(server, key, method, path, body) for name, key in keys.items()}
            assert {name for name, code in statuses.items() if code < 300} == allowed, (method, path, statuses)
            assert {code for code in statuses.values() if code >= 300} <= {403}, (method, path, statuses)
    finally:
        for index in ("other", month):
            with suppress(OSError):
                server.ask("DELETE", f"/{index}")
    assert {(folder / f"{name}.key").stat().st_mode & 0o777 for name in (*keys, "metrics")} == {0o600}


def keys_of(server: Secured) -> list[str]:
    """Names of the page's keys that are valid."""
    found = server.ask("GET", "/_security/api_key?active_only=true")["api_keys"]
    return [key["name"] for key in found if key["name"] in _KEYS]


@pytest.mark.timeout(1800)
def test_every_command_runs_and_leaves_nothing(
    secured_es8: Secured, documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    blocks, [second] = page_blocks("In ten commands"), page_blocks("Several instances")
    setup, install, configure, export, create, keys, start, check, alerts, upgrade, uninstall = blocks
    ports = {port: str(free_port()) for port in _PORTS}
    root = tmp_path / "root"
    replaced = {"https://search.example:9200": secured_es8.url} | substitutes(root) | ports
    # `/var/{cache,lib}` is how the page names two folders.
    replaced["/var/{"] = f"{root}/var/{{"

    def commands(block: str) -> str:
        return replace_all(block, replaced)

    def embedded(index: str) -> int:
        query = {"query": {"exists": {"field": "embedding"}}}
        return int(secured_es8.ask("POST", f"/{index}/_count", query)["count"])

    with machine(tmp_path, replaced) as (shell, manager):
        (shell.checkout / "ca.pem").write_bytes(secured_es8.ca_certs.read_bytes())
        shell.run(commands(setup), typed=f"{PASSWORD}\n")
        for block in (install, configure, export, create):
            shell.run(commands(block))
        assert embedded("docs") == 0
        shell.run(commands(keys))
        assert sorted(keys_of(secured_es8)) == sorted(_KEYS)
        check_keys(secured_es8, root / "etc/es-sbert")
        secured_es8.ask("PUT", "/docs/_doc/01?refresh=true", documents[0])
        shell.run(commands(start))
        # An operator repeats the next block until then.
        wait_for(lambda: embedded("docs") == len(documents), manager.log)
        said = shell.run(commands(check))
        hits = json.loads(said[said.rindex('{"took"') :].splitlines()[0])["hits"]["hits"]
        assert hits[0]["_source"] == {"title": "What to do when somebody's heart stops"}
        assert len(hits) == 3
        said = shell.run(commands(alerts))
        assert 'es_sbert_gateway_requests_total{kind="search"' in said
        shell.run("es-sbert index create docs-news --text-field text")
        shell.run(commands(second))
        wait_for(lambda: embedded("docs-news") == len(documents), manager.log)
        shell.run(commands(upgrade))
        assert (root / "opt/es-sbert/bin/es-sbert").resolve() == root / "opt/es-sbert/0.2.0/bin/es-sbert"
        restarted = [f"es-sbert-gateway@{ports[port]}" for port in ("9281", "9282")] + ["es-sbert-watch@docs"]
        assert manager.exit_codes == {unit: [0] for unit in restarted}
        assert manager.enabled == {*restarted, "es-sbert-watch@docs-news"}
        # The second watch is removed as the page removes the first.
        shell.run("systemctl disable --now es-sbert-watch@docs-news")
        shell.run(commands(uninstall))
        assert not manager.enabled
        assert manager.exit_codes == {unit: [0, 0] for unit in restarted} | {"es-sbert-watch@docs-news": [0]}
        assert [len(arguments) for arguments in shell.installed] == [4, 3, 4]
        left = [path for path in root.rglob("*") if "es-sbert" in path.name and root / "run" not in path.parents]
        assert not left
        assert not [*shell.home.rglob("*")]
    assert not keys_of(secured_es8)
    for index in _INDICES:
        secured_es8.ask("POST", f"/{index}/_refresh")
        body = {"size": 100, "_source": {"excludes": ["embedding*"]}}
        found = secured_es8.ask("POST", f"/{index}/_search", body)["hits"]["hits"]
        assert {hit["_id"]: hit["_source"] for hit in found} == {document["id"]: document for document in documents}


@pytest.mark.parametrize(
    "block",
    [
        "frobnicate docs\n",
        "systemctl mask es-sbert-gateway@9281\n",
        "python3 -m http.server\n",
        "frobnicate | cat\ntrue\n",
        "frobnicate && true\ntrue\n",
    ],
)
def test_unknown_command_fails(block: str, tmp_path: Path) -> None:
    with machine(tmp_path, substitutes(tmp_path / "root")) as (shell, _):
        shell.run("true\n")
        with pytest.raises(AssertionError, match="not known here|command not found"):
            shell.run(block)
