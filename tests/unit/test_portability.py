"""Nothing but `es-sbert engine` needs a Unix-like system."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import es_sbert
import es_sbert.exporters
import es_sbert.mappings
from es_sbert.bundle.local_registry import REGISTRY_VARIABLE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# Starts servers by scripts that need a Unix-like system.
ENGINE_UP = ("es_sbert.cli.engine", "es_sbert.engines.local")
# Needs a library that is installed for its own tests only (`tests/frameworks`).
FOREIGN = ("es_sbert.integrations.haystack",)

IMPORT_ALL = """
import importlib, json, sys
import tests.without_posix
failed = {}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = repr(error)
json.dump(failed, sys.stdout)
"""


def test_every_module_can_be_imported() -> None:
    # The two outer folders by themselves: an editable installation's finder does not list them below es_sbert.
    packages = (es_sbert, es_sbert.exporters, es_sbert.mappings)
    names = {name for at in packages for _, name, _ in pkgutil.walk_packages(at.__path__, at.__name__ + ".")}
    portable = [name for name in names if not name.startswith((*ENGINE_UP, *FOREIGN)) and not name.endswith("__main__")]
    expected = {"es_sbert.ingest.load", "es_sbert.gateway.app", "es_sbert.exporters.export_bundle"}
    assert expected <= set(portable)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input=json.dumps(portable),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout) == {}


def test_loads_work() -> None:
    """The unit tests of ingest, in a process whose es-sbert finds none of these modules."""
    arguments = ["-p", "tests.without_posix", "-p", "no:cacheprovider", "-q", "-m", "not slow", "tests/unit/ingest"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", REGISTRY_VARIABLE))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
    )
    assert done.returncode == 0, done.stdout


def test_the_types_are_right_on_windows() -> None:
    """Whatever Python has not there is an error of type, as `os.killpg` is."""
    done = subprocess.run(
        ["scripts/check-types", "--platform", "win32", "--cache-dir", str(ROOT / ".mypy_cache/win32")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable},
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert errors, done.stdout  # of `es-sbert engine`, so that the others would be found too
    assert [line for line in errors if not line.startswith("es_sbert/engines/local/")] == []
