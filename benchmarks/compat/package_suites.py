"""Tests of client libraries, from the packages that carry them, run by their own test runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from benchmarks.compat.outcomes import Outcome, Status
from es_sbert.errors import UsageError
from tests.programs import program

_LIMIT = 3600.0


class PackageTests(ABC):
    """Tests of one package, made ready in a folder of their own.

    Args:
        folder: For the package and what its tests need.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @abstractmethod
    def prepare(self) -> None:
        """Fetch the package and what its tests need."""

    @abstractmethod
    def run(self, url: str) -> Mapping[str, Outcome]:
        """Run all tests against a server; outcomes by the tests' names."""


class PytestTests(PackageTests):
    """Tests in the source package of a Python library.

    Args:
        requirement: The library: `opensearch-haystack==9.0.0`.
        extras: Further packages that its tests need.
        address: The server's address as the tests have it; replaced by the one to test.
        chosen: Options of pytest that choose the tests.
    """

    def __init__(
        self, folder: Path, requirement: str, extras: tuple[str, ...], address: str, chosen: tuple[str, ...]
    ) -> None:
        super().__init__(folder)
        self._requirement = requirement
        self._extras = extras
        self._address = address
        self._chosen = chosen

    def prepare(self) -> None:
        """Fetch the source package and install it with its dependencies."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "download", "--no-binary", ":all:", "--no-deps", "--dest", str(self._folder), self._requirement])
        [archive] = self._folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self._folder / "source", filter="data")
        _run([sys.executable, "-m", "venv", str(self._folder / "venv")])
        own_pip = [str(self._python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run([*own_pip, "install", str(archive), "pytest", *self._extras])

    @property
    def _source(self) -> Path:
        """The unpacked source package."""
        [unpacked] = (self._folder / "source").iterdir()
        return unpacked

    @property
    def _python(self) -> Path:
        return self._folder / "venv/bin/python"

    def run(self, url: str) -> Mapping[str, Outcome]:
        """Run pytest on a copy of the tests that has the server's address."""
        tests = self._source / "tests"
        # Of the same name as the original: tests may import one another.
        copy = self._folder / f"port-{url.rpartition(':')[2]}" / "tests"
        for source in tests.rglob("*.py"):
            target = copy / source.relative_to(tests)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8").replace(self._address, url), encoding="utf-8")
        report = copy / "report.xml"
        report.unlink(missing_ok=True)
        command = [
            str(self._python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *self._chosen,
            "--rootdir",
            str(copy),
            f"--junitxml={report}",
            str(copy),
        ]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=_LIMIT, check=False)
        if not report.exists():
            raise UsageError(f"pytest ended without a report:\n{done.stdout}{done.stderr}", f"Look into {copy}.")
        return read_junit(report.read_text(encoding="utf-8"))


class GoTests(PackageTests):
    """Tests in a Go module.

    Args:
        module: With its version: `github.com/opensearch-project/opensearch-go/v4@v4.8.1`.
        packages: Those with tests of a server.
        tags: Build tags of these tests.
        environment: Variables that they read; `{url}` is the address.
    """

    def __init__(
        self, folder: Path, module: str, packages: tuple[str, ...], tags: str, environment: Mapping[str, str]
    ) -> None:
        super().__init__(folder)
        self._module = module
        self._packages = packages
        self._tags = tags
        self._environment = environment
        self._source = ""

    def prepare(self) -> None:
        """Fetch the module and compile its tests."""
        described = _run([program("go"), "mod", "download", "-json", self._module], folder=self._folder)
        self._source = json.loads(described)["Dir"]
        self._go_test(["-run", "^$"], {})

    def run(self, url: str) -> Mapping[str, Outcome]:
        """Run all tests, one at a time."""
        values = {name: value.format(url=url) for name, value in self._environment.items()}
        return read_go_events(self._go_test(["-json", "-count=1", "-p=1", "-parallel=1", "-timeout=30m"], values))

    def _go_test(self, options: list[str], environment: Mapping[str, str]) -> str:
        command = [program("go"), "test", f"-tags={self._tags}", *options, *self._packages]
        done = subprocess.run(
            command,
            cwd=self._source,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise UsageError(f"go test cannot run {self._module}:\n{done.stdout}{done.stderr}", "Look at its output.")
        return done.stdout


def read_junit(text: str) -> dict[str, Outcome]:
    """Outcomes by test of a report that pytest wrote."""
    outcomes = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome = Outcome("passed")
        for kind, status in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = case.find(kind)
            if found is not None:
                step = kind if status == "failed" else ""
                outcome = Outcome(status, step, (found.get("message") or "")[:500])  # type: ignore[arg-type]
                break
        outcomes[name] = outcome
    return outcomes


def read_go_events(text: str) -> dict[str, Outcome]:
    """Outcomes by test of what `go test -json` prints. A test with subtests counts as its subtests."""
    actions: dict[str, Status] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    outcomes: dict[str, Outcome] = {}
    printed: dict[str, str] = {}
    for line in text.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if "Test" not in event:
            continue
        name = f"{event['Package'].rpartition('/')[2]}: {event['Test']}"
        if event["Action"] == "output":
            printed[name] = printed.get(name, "") + event["Output"]
        elif event["Action"] in actions:
            status = actions[event["Action"]]
            reason = "" if status == "passed" else " ".join(printed.get(name, "").split())[:500]
            outcomes[name] = Outcome(status, reason=reason)
    parents = {name.rpartition("/")[0] for name in outcomes if "/" in name}
    return {name: outcome for name, outcome in outcomes.items() if name not in parents}


def _run(command: list[str], *, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode:
        raise UsageError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}", "Look at its output.")
    return done.stdout
