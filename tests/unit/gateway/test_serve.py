"""The gateway's process."""

from __future__ import annotations

import gc
import subprocess
import sys

from es_sbert.gateway.server import freeze_objects


def test_freeze_objects_excludes_existing_objects_from_gc() -> None:
    before = gc.get_freeze_count()
    try:
        freeze_objects()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_tune_interpreter_shortens_switch_interval_and_eases_gc() -> None:
    """Runs in a subprocess, because it changes settings of the interpreter."""
    code = (
        "import gc, sys; from es_sbert.gateway.server import tune_interpreter; before = sys.getswitchinterval(); "
        "tune_interpreter(); print(sys.getswitchinterval() < before / 2, gc.get_threshold()[2] > 100)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True True\n"
