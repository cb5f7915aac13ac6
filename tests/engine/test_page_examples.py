"""The Python examples of the pages run. Those of other pages have their own tests, see `ELSEWHERE`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from es_sbert import SemanticIndex
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.export_bundle import export_reranker
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_cross_encoder

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SENTENCES = [
    "a man plays a guitar", "a man plays a guitar", "the cat sits on the mat", "a cat sat on the mat", "the dog runs",
    "a dog runs", "a woman eats", "the woman is eating", "a plane lands", "the plane has landed",
    "rain falls on the town", "it rains in the town", "the child sings", "a child sings a song",
]  # fmt: skip

# Page → the test that runs its examples.
ELSEWHERE = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/api.md": "tests/engine/test_docstring_examples.py",
    "docs/search.md": "tests/e2e/test_search_page.py",
    "docs/integrations.md": "tests/frameworks/test_own_environment.py",
    "docs/embeddings.md": "tests/gateway/test_embeddings_api.py",  # the same client, against a gateway of the test
}


def blocks(page: str) -> list[str]:
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run(page: str, code: str, space: dict[str, object]) -> None:
    exec(compile(code, f"{page}, an example", "exec"), space)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return str(write_tiny_bert(tmp_path / "tiny"))


@pytest.fixture
def vectors(model: str) -> np.ndarray:
    with Encoder(model, device="cpu", precision="fp32", threads=1) as encoder:
        return encoder.encode(SENTENCES)


@pytest.fixture
def index(engine_url: str, fresh_index: Callable[[str], str], model: str) -> str:
    name = fresh_index(engine_url)
    with SemanticIndex.create(name, engine_url, model=model, text_fields=["title"]) as index:
        index.add([{"_id": str(number), "title": text} for number, text in enumerate(SENTENCES)])
    return name


def test_every_page_with_examples_is_tested() -> None:
    listed = subprocess.run(["git", "ls-files", "docs/*.md", "README.md"], cwd=ROOT, capture_output=True, text=True)
    pages = {page for page in listed.stdout.split() if blocks(page)}
    here = Path(__file__).read_text(encoding="utf-8")
    assert {page for page in pages if f'"{page}"' not in here} == set()
    assert all((ROOT / tested).exists() for tested in ELSEWHERE.values())


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True)
def test_analysis_of_an_index(engine_url: str, index: str, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, object] = {}
    page = "docs/analysis.md"
    for code in blocks(page):
        code = code.replace("http://localhost:9200", engine_url).replace('"python-docs"', repr(index))
        run(page, code.replace("k=12", "k=3"), space)
    shown = capsys.readouterr().out
    assert "keep 0 of ['0', '1'" in shown
    assert re.search(r"^\d+ groups$", shown, re.MULTILINE)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True)
def test_search_with_a_reranker(engine_url: str, index: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    cross_encoder = read_cross_encoder(write_cross_encoder(Path("cross-encoder"), layers=1))
    export_reranker(cross_encoder, Path("my-reranker"), [Variant.FP32], force=True)
    [code] = blocks("docs/commands/search.md")
    code = code.replace('"docs"', repr(index)).replace("http://localhost:9200", engine_url)
    run("docs/commands/search.md", code.replace('"my-reranker"', f'"{Path.cwd() / "my-reranker"}"'), {})
    assert len(capsys.readouterr().out.splitlines()) == 10
    space: dict[str, object] = {"question": "who sings", "passages": SENTENCES}
    [code] = blocks("docs/commands/export.md")
    run("docs/commands/export.md", code.replace('"my-reranker"', f'"{Path.cwd() / "my-reranker"}"'), space)
    scores, best = space["scores"], space["best"]
    assert isinstance(scores, np.ndarray)
    assert isinstance(best, list)
    assert best[0]["corpus_id"] == int(scores.argmax())
    assert len(best) == 3


def test_analysis_of_vectors(vectors: np.ndarray) -> None:
    space: dict[str, object] = {"vectors": vectors, "texts": SENTENCES}
    [pairs] = blocks("docs/commands/pairs.md")
    run("docs/commands/pairs.md", pairs, space)
    first = space["pairs"][0]  # type: ignore[index]
    assert {first.first, first.second} == {0, 1}
    [groups] = blocks("docs/commands/duplicates.md")
    run("docs/commands/duplicates.md", groups, space)
    assert any({0, 1} <= set(group.members) for group in space["groups"])  # type: ignore[attr-defined]
    [clusters] = blocks("docs/commands/cluster.md")
    run("docs/commands/cluster.md", clusters.replace("k=20", "k=4"), space)
    assert len(space["names"]) == 4  # type: ignore[arg-type]


def test_python_of_adapt() -> None:
    [adaptation] = blocks("docs/commands/adapt.md")
    # Tuning takes minutes (tests/e2e/test_adapt_cli.py): all but its call runs here.
    before, call, _ = adaptation.partition("result = adapt_model(")
    assert call
    space: dict[str, object] = {}
    run("docs/commands/adapt.md", before, space)
    assert callable(space["adapt_model"])
