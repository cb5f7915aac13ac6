"""What importing the package may and may not bring with it."""

import pkgutil
import subprocess
import sys

import pytest

import es_sbert

# Modules that need torch (extra `train`); ingest, search and everything below them never do.
_TORCH = ("es_sbert.exporters.tracing", "es_sbert.networks.", "es_sbert.training.")
# Rooms within training that are only settings and data: recipes can be read and checked without torch.
_LIGHT = ("es_sbert.training.data.", "es_sbert.training.recipe", "es_sbert.training.objective_settings")
_NOT_LIGHT = ("es_sbert.training.batch_sampler",)

# Needs a library that is installed for its own tests only (`tests/frameworks`).
_FOREIGN = ("es_sbert.integrations.haystack",)

_ALL = sorted(
    name
    # Not its whole path, which in a checkout that is not installed holds all top-level folders.
    for _, name, _ in pkgutil.walk_packages(es_sbert.__path__[:1], "es_sbert.")
    if not name.endswith("__main__") and name not in _FOREIGN
)


def _needs_torch(name: str) -> bool:
    return name.startswith(_TORCH) and not name.startswith(_LIGHT)


def _imported_by(*statements: str) -> list[set[str]]:
    """Names of the top-level packages that a fresh interpreter has loaded after each of some statements."""
    tell = "print(*{name.partition('.')[0] for name in sys.modules})"
    code = "\n".join(["import sys", *(f"{statement}\n{tell}" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.train
def test_nothing_is_loaded_before_it_is_needed() -> None:
    """Neither by the help, nor by a load, nor by all that is neither training nor tracing."""
    light = [name for name in [*_ALL, "es_sbert.exporters.export_bundle"] if not _needs_torch(name)]
    assert len(light) > 100
    by_help, by_ingest, by_all = _imported_by(
        "from click.testing import CliRunner\nfrom es_sbert.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0",
        "import es_sbert.ingest.load, es_sbert.ingest.load_plan",
        "\n".join(f"import {name}" for name in light),
    )
    assert not by_help & {"onnxruntime", "onnx", "numpy", "elasticsearch", "opensearchpy", "torch"}
    # The libraries of the extras of a load.
    assert not by_ingest & {"pyarrow", "s3fs", "aiohttp", "sqlalchemy", "psycopg"}
    assert {"onnxruntime", "elasticsearch", "opensearchpy"} <= by_all
    assert not by_all & {"torch", "transformers", "sentence_transformers"}


@pytest.mark.train
def test_training_and_exporters_know_no_engine() -> None:
    [loaded] = _imported_by(
        "import es_sbert.training.training_run, es_sbert.exporters.export_bundle, es_sbert.exporters.export_bundle"
    )
    assert "torch" in loaded
    assert not loaded & {"elasticsearch", "opensearchpy"}
