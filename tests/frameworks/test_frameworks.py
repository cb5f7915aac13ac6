"""Runs `inside/` where the libraries and their engine clients are: in a process of its own, one for all files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.installed import ROOT, installed_frameworks

pytestmark = pytest.mark.long

INSIDE = Path(__file__).parent / "inside"


def test_checks_pass_in_own_process(es9_url: str, es8_url: str, opensearch_url: str) -> None:
    path = [str(ROOT), str(installed_frameworks()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "ES_SBERT_TEST_ES9": es9_url,
        "ES_SBERT_TEST_ES8": es8_url,
        "ES_SBERT_TEST_OPENSEARCH": opensearch_url,
        # Neither library tells its maker of these tests.
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        "LANGSMITH_TRACING": "false",
    }
    options = ["-q", "-p", "no:cacheprovider", "-o", "python_files=check_*.py"]
    command = [sys.executable, "-m", "pytest", *options, str(INSIDE)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
