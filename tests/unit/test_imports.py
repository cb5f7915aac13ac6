"""What importing the package may and may not bring with it."""

import pkgutil
import subprocess
import sys

import es_sbert

# Modules that need torch would be listed here; ingest, search and everything below them never do.
_ALL = sorted(
    name for _, name, _ in pkgutil.walk_packages(es_sbert.__path__, "es_sbert.") if not name.endswith("__main__")
)


def _imported_by(statement: str) -> set[str]:
    """Names of the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_module_imports_torch() -> None:
    assert len(_ALL) > 30
    loaded = _imported_by("\n".join(f"import {name}" for name in [*_ALL, "es_sbert.exporters.export"]))
    assert {"onnxruntime", "elasticsearch", "opensearchpy"} <= loaded
    assert not loaded & {"torch", "transformers", "sentence_transformers"}


def test_help_loads_nothing_heavy() -> None:
    loaded = _imported_by("from click.testing import CliRunner\nfrom es_sbert.cli.main import cli\n"
                          "assert CliRunner().invoke(cli, ['--help']).exit_code == 0")  # fmt: skip
    assert not loaded & {"onnxruntime", "onnx", "numpy", "elasticsearch", "opensearchpy", "torch"}
