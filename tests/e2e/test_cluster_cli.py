"""`es-sbert cluster` on files and on indices, with bad input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine, write_jsonl

pytestmark = pytest.mark.one_engine

# The words of the tiny model; equal texts have one vector with any model.
GROUPS = ["a man plays guitar", "the cat sleeps on the mat", "query passage"]
TEXTS = [GROUPS[number] for number in (0, 1, 0, 2, 1, 0, 1, 0, 2)]
DOCUMENTS = [{"id": f"d{9 - number}", "text": text} for number, text in enumerate(TEXTS)]
NAMES = ["guitar, man, plays", "cat, mat, sleeps", "passage, query"]


@pytest.fixture
def cluster(cli: Cli, model: Path) -> Callable[..., Done]:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)

    return partial(cli, "cluster", "--model", model, "--precision", "fp32", "--threads", "1")


def objects(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


def test_texts_are_output_by_cluster_largest_first(cluster: Callable[..., Done]) -> None:
    done = cluster("docs.jsonl", "--id-field", "id", "--k", "3", "--json")
    assert done.code == 0
    found = objects(done.out)
    assert [(one["cluster"], one["name"], one["id"]) for one in found] == [
        (0, NAMES[0], "d9"),
        (0, NAMES[0], "d7"),
        (0, NAMES[0], "d4"),
        (0, NAMES[0], "d2"),
        (1, NAMES[1], "d8"),
        (1, NAMES[1], "d5"),
        (1, NAMES[1], "d3"),
        (2, NAMES[2], "d6"),
        (2, NAMES[2], "d1"),
    ]
    assert {one["cosine"] for one in found} == {1.0}
    assert found[0] == {"cluster": 0, "name": NAMES[0], "id": "d9", "cosine": 1.0, "text": TEXTS[0]}
    assert "3 clusters of 9 texts by kmeans, silhouette 1.000, in" in done.err
    cluster("docs.jsonl", "--id-field", "id", "--k", "3", "-o", "out.jsonl")
    assert Path("out.jsonl").read_text() == done.out


@pytest.mark.parametrize(
    ("arguments", "smallest", "message"),
    [
        (("agglomerative",), 2, "by agglomerative, their number chosen by silhouette, silhouette 1.000"),
        (("hdbscan", "--min-size", "2"), 2, "by hdbscan, 0.0% noise, silhouette 1.000"),
        (("communities", "--min-cosine", "0.9999", "--min-size", "3"), None, "by communities, 22.2% noise"),
    ],
)
def test_each_method_finds_the_groups(
    cluster: Callable[..., Done], arguments: tuple[str, ...], smallest: int | None, message: str
) -> None:
    done = cluster("docs.jsonl", "--json", "--method", *arguments)
    assert done.code == 0
    assert {(one["text"], one["cluster"]) for one in objects(done.out)} == set(
        zip(GROUPS, (0, 1, smallest), strict=True)
    )
    assert message in done.err


def test_stop_words_option_takes_none_or_a_file(cluster: Callable[..., Done]) -> None:
    Path("stop.txt").write_text("\ufeffMan\r\ncat\n", encoding="utf-8")
    by_file = cluster("docs.jsonl", "--k", "3", "--stop-words", "stop.txt")
    assert "cluster 0: 4 texts  guitar, plays\n" in by_file.out
    assert "cluster 1: 3 texts  the, mat, on, sleeps" in by_file.out
    assert "cluster 1: 3 texts  the, cat, mat, on" in cluster("docs.jsonl", "--k", "3", "--stop-words", "none").out


def load(cli: Cli, model: Path, url: str, index: str) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    options = ("--url", url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index, *options).code == 0


@pytest.mark.parametrize("method", ["kmeans", "communities"])
def test_clustering_an_index_leaves_it_unchanged(
    cli: Cli, model: Path, engine_url: str, index_name: str, method: str
) -> None:
    load(cli, model, engine_url, index_name)
    before = contents(engine_url, index_name)
    options = [] if method == "kmeans" else ["--min-size", "2", "--min-cosine", "0.9999"]
    done = cli("cluster", "--index", index_name, "--url", engine_url, "--json", "--method", method, *options)
    assert [(one["cluster"], one["name"], one["id"]) for one in objects(done.out)] == [
        *((0, NAMES[0], name) for name in ("d2", "d4", "d7", "d9")),
        *((1, NAMES[1], name) for name in ("d3", "d5", "d8")),
        *((2, NAMES[2], name) for name in ("d1", "d6")),
    ]
    assert contents(engine_url, index_name) == before


def test_cluster_name_is_written_to_document_field(cli: Cli, model: Path, engine_url: str, index_name: str) -> None:
    load(cli, model, engine_url, index_name)
    arguments = ("cluster", "--index", index_name, "--url", engine_url, "--write-field", "cluster")
    done = cli(*arguments, "--k", "3", "--dry-run")
    assert "cluster would be written to 9 documents and removed from 0" in done.err
    assert not any("cluster" in source for source in contents(engine_url, index_name).values())
    done = cli(*arguments, "--k", "3")
    assert done.code == 0
    assert "cluster written to 9 documents and removed from 0; 0 documents already had the right value" in done.err
    facet = {"size": 0, "aggs": {"clusters": {"terms": {"field": "cluster"}}}}
    with open_engine(engine_url) as engine:
        buckets = engine.search(index_name, facet)["aggregations"]["clusters"]["buckets"]
    assert {bucket["key"]: bucket["doc_count"] for bucket in buckets} == dict(zip(NAMES, (4, 3, 2), strict=True))

    noise = ("--method", "communities", "--min-size", "3", "--min-cosine", "0.9999")
    done = cli(*arguments, *noise)
    assert "cluster written to 0 documents and removed from 2; 7 documents already had the right value" in done.err
    values = {name: source.get("cluster") for name, source in contents(engine_url, index_name).items()}
    assert values["d6"] is values["d1"] is None
    assert list(values.values()).count(NAMES[0]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "neither is given"),
        (("docs.jsonl", "--index", "i"), "both are given"),
        (("one.txt",), "a comparison needs two texts, but there is one"),
        (("docs.jsonl", "--k", "10"), "10 clusters requested for 9 texts\n  Request fewer clusters"),
        (("docs.jsonl", "--k", "4"), "have only 3 different vectors\n  Request at most 3 clusters"),
        (("docs.jsonl", "--k", "0"), "0 is not in the range x>=1"),
        (("docs.jsonl", "--k", "some"), "'some' is not a valid"),
        (("absent.jsonl", "--k", "3", "--method", "hdbscan"), "(k) does not apply to hdbscan\n  Leave it out"),
        (("absent.jsonl", "--k", "auto", "--method", "communities"), "(k) does not apply to communities"),
        (("absent.jsonl", "--min-cosine", "0.5"), "a minimum cosine does not apply to kmeans"),
        (("absent.jsonl", "--min-size", "3", "--method", "agglomerative"), "a minimum size does not apply to agglomer"),
        (("docs.jsonl", "--min-size", "1", "--method", "hdbscan"), "1 is not in the range x>=2"),
        (("docs.jsonl", "--method", "median"), "'median' is not one of"),
        (("docs.jsonl", "--write-field", "cluster"), "--write-field requires --index"),
        (("docs.jsonl", "--html", "missing/page.html"), "cannot be written: its folder does not exist"),
        (("docs.jsonl", "--stop-words", "german"), "german cannot be read: No such file or directory\n  Set --stop"),
        (("docs.jsonl", "--stop-words", "latin.txt"), "latin.txt cannot be read: it is not UTF-8"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_remedy(
    cluster: Callable[..., Done], cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    Path("one.txt").write_text("the cat\n")
    Path("latin.txt").write_bytes("für\n".encode("latin-1"))
    done = cli("cluster", *arguments) if "--index" in arguments else cluster(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
