"""The gateway's process."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from es_sbert.cli.main import cli
from es_sbert.cli.serve import gateway_settings, serve
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


def test_search_log_key_file_gives_equal_queries_one_hash_in_all_gateways(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef\n")

    def query_hash(*options: str) -> object:
        # With the parent: click keeps the help option of the first context that a command was given.
        with cli.make_context("es-sbert", ["serve"]) as parent:
            context = serve.make_context("serve", ["--search-log", "-", *options], parent=parent)
        settings = gateway_settings(context.params)
        assert settings.search_log is not None
        return settings.search_log.wording.of_texts(["how plants make energy"])["query_hash"]

    key = ("--search-log-key-file", str(tmp_path / "key"))
    assert query_hash(*key) == query_hash(*key)
    assert query_hash() != query_hash()
