"""The examples of the API page run, with small models and a real engine."""

from __future__ import annotations

import ast
import asyncio
import gzip
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import es_sbert
from es_sbert import Encoder, Reranker, SemanticIndex
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_reranker
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_cross_encoder
from tests.unit.test_public_api import OBJECTS

_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^((?:    .*\n|\n)+)", re.MULTILINE)
# Functions that need minutes, or an index in a certain state, and their results → the test that calls them. mypy checks
# their examples (scripts/check-types).
ELSEWHERE = {
    "tests/e2e/test_adapt_cli.py": {"AdaptResult", "ModelComparison", "PairedDifference", "Verdict", "adapt_model"},
    "tests/engine/test_adopt.py": {"AdoptionReport", "MetadataCounts", "adopt_vectors"},
    "tests/engine/migration/test_migrate.py": {"MigrationResult", "cancel_migration", "migrate_index"},
    "tests/unit/training/test_distillation.py": {"Distillation", "distill_model"},
    "tests/unit/training/support.py": {"TrainingResult", "train_model"},
}
TEXTS = ["Heavy rain", "Heavy rain", "Storm damage", "The price of food", "How vaccines work", "Iron in a field"]


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
    model = str(write_tiny_bert(tmp_path / "all-MiniLM-L6-v2"))
    cross_encoder = write_cross_encoder(tmp_path / "my-cross-encoder", layers=1)
    export_reranker(read_cross_encoder(cross_encoder), tmp_path / "my-reranker", [Variant.FP32], force=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("es_sbert.search.semantic_index.DEFAULT_MODEL", model)
    Path("data/sts").mkdir(parents=True)
    scored = "\n".join(f"{text}\tThe cat sleeps\t{score}" for score, text in enumerate(TEXTS))
    Path("data/sts/small-test.tsv").write_text(f"sentence1\tsentence2\tscore\n{scored}\n")
    Path("judgements.csv").write_text("query,document,grade\nrain,doc0,1\nfood,doc3,1\n")
    with gzip.open("docs.jsonl.gz", "wt") as file:
        file.write('{"id": "file1", "title": "Snow", "body": "It falls."}\n')
    docs, shown = fresh_index(es9_url), dict[str, str]()

    def run_on(code: str, names: dict[str, object]) -> str:
        replaced = {"docs": docs, "news": fresh_index(es9_url), "http://localhost:9200": es9_url}
        replaced |= {name: str(tmp_path / name) for name in ("all-MiniLM-L6-v2", "my-cross-encoder", "my-reranker")}
        run(re.sub(r'"([^"\n]+)"', lambda found: repr(replaced.get(found[1], found[1])), code), names)
        return capsys.readouterr().out

    with (
        SemanticIndex.create(docs, es9_url, text_template="{title}. {body}") as index,
        Encoder(model) as encoder,
        Reranker(tmp_path / "my-reranker") as reranker,
    ):
        index.add([{"_id": f"doc{number}", "title": text, "body": ""} for number, text in enumerate(TEXTS)])
        given = {path.rpartition(".")[2]: value for path, value in OBJECTS.items()}
        given |= {"index": index, "encoder": encoder, "reranker": reranker, "texts": TEXTS}
        given |= {"vectors": encoder.encode(TEXTS)}
        elsewhere = set().union(*ELSEWHERE.values())
        for path, value in OBJECTS.items():
            for code in [] if path.rpartition(".")[2] in elsewhere else _BLOCK.findall(value.__doc__ or ""):
                try:
                    shown[path] = run_on(textwrap.dedent(code), dict(given))
                except Exception as error:
                    error.add_note(f"in the example of {path}")
                    raise
    assert len(shown["es_sbert.SemanticIndex"].splitlines()) == 5
    assert shown["es_sbert.AsyncSemanticIndex"] == "How vaccines work\n"
    shown |= {path: "" for path in OBJECTS if path.rpartition(".")[2] in elsewhere}
    assert [path for path in OBJECTS if not path.startswith("es_sbert.errors.") and path not in shown] == []
    front_door = _INDENTED.search(es_sbert.__doc__ or "")
    assert front_door is not None
    docs = fresh_index(es9_url)
    assert run_on(textwrap.dedent(front_door[1]), {}).startswith("1 ")
