"""The examples of the API reference: each is Python, and those of the front door run on a real engine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import es_sbert
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_reranker
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_cross_encoder

_USAGE = re.compile(r"^Usage:\n    ```python\n(.*?)    ```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^((?:    .*\n|\n)+)", re.MULTILINE)
FRONT_DOOR = ("AsyncSemanticIndex", "Encoder", "Reranker", "SemanticIndex")


def usage(docstring: str) -> str:
    """The code of a docstring below `Usage:`."""
    found = _USAGE.search(f"{docstring}\n")
    assert found is not None, docstring
    return textwrap.dedent(found[1])


def run(code: str, names: dict[str, object]) -> None:
    compiled = compile(code, "docstring", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_examples_run(
    es9_url: str,
    fresh_index: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a small model in place of the default one; `docs` is an index of this test, and the examples share it."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    write_tiny_bert(tmp_path / "all-MiniLM-L6-v2")
    cross_encoder = write_cross_encoder(tmp_path / "cross-encoder", layers=1)
    export_reranker(read_cross_encoder(cross_encoder), tmp_path / "my-reranker", [Variant.FP32], force=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("es_sbert.search.semantic_index.DEFAULT_MODEL", str(tmp_path / "all-MiniLM-L6-v2"))
    names = {name: getattr(es_sbert, name) for name in FRONT_DOOR}

    def run_on(index: str, code: str) -> None:
        replaced = {'"docs"': repr(index), '"http://localhost:9200"': repr(es9_url)}
        replaced |= {f'"{name}"': repr(str(tmp_path / name)) for name in ("all-MiniLM-L6-v2", "my-reranker")}
        for shown, real in replaced.items():
            code = code.replace(shown, real)
        run(code, names)

    for name in ("Encoder", "Reranker"):
        run_on("", usage(inspect.getdoc(names[name]) or ""))
    index = fresh_index(es9_url)
    run_on(index, usage(inspect.getdoc(es_sbert.SemanticIndex) or ""))
    assert "Vaccines" in capsys.readouterr().out
    run_on(index, usage(inspect.getdoc(es_sbert.AsyncSemanticIndex) or ""))
    assert capsys.readouterr().out == "Vaccines\n"
    front_door = _INDENTED.search(es_sbert.__doc__ or "")
    assert front_door is not None
    run_on(fresh_index(es9_url), textwrap.dedent(front_door[1]))
    assert capsys.readouterr().out.startswith("1 ")
