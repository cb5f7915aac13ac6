"""Which libraries an import may load, and that only `es-sbert engine` needs a Unix-like system."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import es_sbert
import es_sbert.exporters
import es_sbert.mappings

ROOT = Path(__file__).parents[2]

# Modules that need torch (extra `train`); ingest, search and everything below them never do.
_TORCH = ("es_sbert.exporters.tracing", "es_sbert.runtime.siamese_encoder", "es_sbert.training.")
# Recipes can be read without torch.
_LIGHT = ("es_sbert.training.recipe",)

# Starts servers by scripts that need a Unix-like system.
_ENGINE_UP = ("es_sbert.cli.engine", "es_sbert.engines.local")

_ALL = sorted(
    name
    # The two outer folders by themselves: an editable installation's finder does not list them below es_sbert. And of
    # es_sbert not its whole path, which in a checkout holds all top-level folders.
    for path, package in (
        (es_sbert.__path__[:1], "es_sbert."),
        (es_sbert.exporters.__path__, "es_sbert.exporters."),
        (es_sbert.mappings.__path__, "es_sbert.mappings."),
    )
    for _, name, _ in pkgutil.walk_packages(path, package)
    if not name.endswith("__main__")
)

# One interpreter imports all modules, because that takes most of the time. Before the step of training, es_sbert and
# the engines' clients are removed from sys.modules, so that a module that imports a client again is noticed.
_PROGRAM = """
import builtins, importlib, json, sys
import tests.without_posix

plan, found, failed = json.load(sys.stdin), {}, {}
without_posix = builtins.__import__

def note(step, names=()):
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = repr(error)
    found[step] = sorted({name.partition(".")[0] for name in sys.modules})

from click.testing import CliRunner
from es_sbert.cli.main import cli
assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
note("help")
note("ingest", plan["ingest"])
note("portable", plan["portable"])
builtins.__import__ = tests.without_posix._import
note("all", plan["engine up"])
builtins.__import__ = without_posix
for name in list(sys.modules):
    if name.partition(".")[0] in ("es_sbert", "elastic_transport"):
        del sys.modules[name]
note("training", plan["training"])
note("torch", plan["torch"])
json.dump({"found": found, "failed": failed}, sys.stdout)
"""


def _needs_torch(name: str) -> bool:
    return name.startswith(_TORCH) and not name.startswith(_LIGHT)


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """`found`: what a fresh interpreter has loaded by the end of each step; `failed`: what it could not import."""
    light = [name for name in _ALL if not _needs_torch(name)]
    plan = {
        "ingest": ["es_sbert.ingest.load", "es_sbert.ingest.load_plan"],
        "portable": [name for name in light if not name.startswith(_ENGINE_UP)],
        "engine up": [name for name in light if name.startswith(_ENGINE_UP)],
        "training": ["es_sbert.training.training_run", "es_sbert.exporters.export_bundle"],
        "torch": [name for name in _ALL if _needs_torch(name)],
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.train
def test_every_module_can_be_imported(imported: dict[str, Any]) -> None:
    """Without the modules of Python that only Unix-like systems have, but for what starts servers."""
    assert {"es_sbert.ingest.load", "es_sbert.gateway.server.app", "es_sbert.exporters.export_bundle"} <= set(_ALL)
    assert imported["failed"] == {}


@pytest.mark.train
def test_heavy_modules_are_imported_lazily(imported: dict[str, Any]) -> None:
    """Neither by the help, nor by a load, nor by all that is neither training nor tracing."""
    by_help, by_ingest, by_all = (set(imported["found"][step]) for step in ("help", "ingest", "all"))
    assert not by_help & {"onnxruntime", "onnx", "numpy", "elastic_transport", "opensearchpy", "torch"}
    # The libraries of the extras of a load.
    assert not by_ingest & {"pyarrow", "aiohttp"}
    assert {"onnxruntime", "elastic_transport"} <= by_all
    # Of the official clients, the transport of Elasticsearch's is enough.
    assert not by_all & {"elasticsearch", "opensearchpy", "torch", "transformers", "sentence_transformers"}


@pytest.mark.train
def test_training_and_exporters_import_no_engine_client(imported: dict[str, Any]) -> None:
    loaded = set(imported["found"]["training"])
    assert "torch" in loaded
    assert not loaded & {"elastic_transport", "elasticsearch", "opensearchpy"}
