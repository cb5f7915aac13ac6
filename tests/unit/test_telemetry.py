"""Usage reporting of dependencies is off, and nothing is written outside the folders of es-sbert.

onnxruntime, among others, reports nothing where `CI` is set, so these tests run processes without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import es_sbert

ROOT = Path(__file__).parents[2]


def environment_of_a_user(home: Path) -> dict[str, str]:
    """An empty home, and no variable that turns reporting off: neither `CI` nor what this process has set by now."""
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in {"CI", *es_sbert.NO_TELEMETRY}}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT)}


def run_python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["es_sbert.encoder.encoder", "es_sbert.exporters.export_bundle", "benchmarks.common"]
)
def test_import_of_onnxruntime_writes_no_file_at_home(module: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    run_python(f"import {module}, onnxruntime", environment_of_a_user(home))
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_load_of_openvino_reports_nothing(tmp_path: Path) -> None:
    """Its reports would begin with an id in ~/intel."""
    pytest.importorskip("openvino_telemetry")
    home = tmp_path / "home"
    code = (
        "from es_sbert.runtime.openvino_session import _load_core; _load_core(); import sys\n"
        "print('openvino_telemetry' in sys.modules, sys.modules['openvino.tools.ovc.telemetry_utils'].tm.__name__)"
    )
    assert run_python(code, environment_of_a_user(home)) == "False openvino.tools.ovc.telemetry_stub"
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("library", "code", "printed"),
    [
        ("huggingface_hub", "from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)", "True"),
        ("ray", "from ray._common.usage.usage_lib import usage_stats_enabled; print(usage_stats_enabled())", "False"),
    ],
)
def test_library_sends_no_telemetry(library: str, code: str, printed: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    assert run_python(f"import es_sbert; {code}", environment_of_a_user(tmp_path / "home")) == printed


def test_settings_of_the_environment_are_kept(tmp_path: Path) -> None:
    chosen = {name: "1" if value != "1" else "0" for name, value in es_sbert.NO_TELEMETRY.items()}
    code = "import es_sbert, os; print({name: os.environ[name] for name in es_sbert.NO_TELEMETRY})"
    assert run_python(code, environment_of_a_user(tmp_path / "home") | chosen) == str(chosen)
    assert run_python(code, environment_of_a_user(tmp_path / "home")) == str(es_sbert.NO_TELEMETRY)
