"""Loads on a Ray cluster of several nodes: a node is killed, the command itself is killed, and nothing is lost."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import Cli
from tests.e2e.test_default_search_pipeline import COUNT as HOSTILE_COUNT
from tests.e2e.test_default_search_pipeline import HOSTILE, document, indices
from tests.engine.ingest_support import open_engine, same_vectors, vector_of, write_jsonl
from tests.engine.sources import read_sources
from tests.faults.bench import Bench, Load
from tests.faults.compare import compare
from tests.faults.corpus import corpus
from tests.faults.writers import altering_pipeline, refused
from tests.faulty_proxy import holding

COUNT = 600
STRANGER = "not of the alias"
PARTS = 16


class RayCluster:
    """A head without work and two nodes of one core each, as separate processes on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        small: dict[str, Any] = {"object_store_memory": 100 << 20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self._nodes: list[Any] = []

    def restore(self) -> None:
        """Two nodes, whether or not those before were killed."""
        while len(self._nodes) < 2:
            self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=100 << 20))
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @contextmanager
    def another_node(self, packages: Path) -> Iterator[None]:
        """A third node, whose Python looks for packages in a folder first."""
        path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
        node = self._cluster.add_node(num_cpus=1, object_store_memory=100 << 20, env_vars={"PYTHONPATH": path})
        try:
            yield
        finally:
            self._cluster.remove_node(node, allow_graceful=False)

    def kill_a_node(self) -> None:
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(machines: RayCluster) -> RayCluster:
    machines.restore()
    return machines


def loaded_by(cluster: RayCluster, bench: Bench) -> Bench:
    """A load of several files on the cluster, which are its partitions."""
    lines = bench.source.read_bytes().rstrip(b"\n").split(b"\n")
    bench.arguments = []
    for number in range(PARTS):
        path = bench.folder / f"part-{number}.jsonl"
        path.write_bytes(b"\n".join(lines[len(lines) * number // PARTS : len(lines) * (number + 1) // PARTS]))
        bench.arguments.append(str(path))
    bench.options = (*bench.options, "--ray", cluster.address)
    return bench


@pytest.fixture
def bench(
    cluster: RayCluster, es9_url: str, fresh_index: Callable[[str], str], model: Path, tiny: Encoder, tmp_path: Path
) -> Iterator[Bench]:
    made = Bench("es9", es9_url, fresh_index(es9_url), model, tiny, tmp_path, corpus(COUNT), outage=0)
    with closing(loaded_by(cluster, made)):
        made.create(shards=1)
        yield made


def check(bench: Bench, summary: dict[str, Any]) -> None:
    """Every record has come to one end, and the index holds what it should."""
    assert summary["read"] == len(bench.corpus.lines)
    assert summary["skipped"]["empty"] == bench.corpus.empty
    assert summary["dead"] == len(bench.corpus.dead) + bench.corpus.broken
    assert summary["left"] == 0
    end = compare(bench)
    assert end.good, (end, summary)
    assert end.documents == len(bench.corpus.wanted)


def test_killed_node_loses_and_duplicates_nothing(cluster: RayCluster, bench: Bench) -> None:
    with bench.held(0.1) as (load, hold):
        cluster.kill_a_node()
        hold.release()
        check(bench, bench.ended(load))


@pytest.mark.long
def test_resumes_after_interrupt(bench: Bench) -> None:
    """And then the command that went on is killed, and the next one goes on again."""
    stopped = bench.terminate_in_the_middle().summary
    assert stopped["interrupted"]
    with bench.held(0.6) as (load, _):
        load.send(signal.SIGKILL)
        load.end(-signal.SIGKILL)
    summary = bench.finish()
    check(bench, summary)
    assert summary["resumed"]
    assert stopped["indexed"] > 0
    assert summary["unchanged"] >= 0.6 * len(bench.corpus.wanted)


def test_node_with_another_version_is_refused_before_writing(cluster: RayCluster, bench: Bench, tmp_path: Path) -> None:
    older = tmp_path / "packages/es_sbert/version.py"
    older.parent.mkdir(parents=True)
    older.with_name("__init__.py").touch()
    older.write_text('__version__ = "0.0.1"\n')
    with cluster.another_node(tmp_path / "packages"):
        said = bench.start().end(2)
    assert f": {platform.node()} has es-sbert 0.0.1" in said
    with open_engine(bench.url) as engine:
        engine.refresh(bench.index)
        assert engine.count(bench.index) == 0


@pytest.mark.long
def test_killed_node_leaves_no_document_of_an_alias_without_its_vector(
    cluster: RayCluster, bench: Bench, tiny: Encoder
) -> None:
    alias, wanted = f"{bench.index}-ours", bench.corpus.wanted
    with open_engine(bench.url) as engine:
        leaves_out = {"bool": {"must_not": {"ids": {"values": [STRANGER]}}}}
        engine.update_aliases([{"add": {"index": bench.index, "alias": alias, "filter": leaves_out}}])
        pairs = {**wanted, STRANGER: {"text": "Somebody else's."}}.items()
        lines = (orjson.dumps({"index": {"_id": key}}) + b"\n" + orjson.dumps(source) for key, source in pairs)
        assert all(result.ok for result in engine.bulk(bench.index, b"\n".join(lines) + b"\n"))

        def begun() -> bool:
            engine.refresh(bench.index)
            return engine.count(bench.index, {"exists": {"field": "embedding"}}) > 0

        with holding(bench.url, begun) as (url, hold):
            command = [sys.executable, "-m", "es_sbert", "ingest", "--index", alias, "--url", url, "--json", "--model"]
            options = [str(bench.model), "--precision", "fp32", "--threads", "1", "--ray", cluster.address]
            load = Load([*command, *options], bench.folder, None, None)
            try:
                load.wait_until(hold.reached.is_set)
                cluster.kill_a_node()
                hold.release()
                filled = bench.ended(load)
            finally:
                load.end_now()
        stored = read_sources(engine, bench.index, [*wanted, STRANGER], source_includes=["*"])
    assert (filled["read"], filled["indexed"] + filled["unchanged"]) == (len(wanted), len(wanted))
    assert list(stored.pop(STRANGER)) == ["text"]
    vectors = tiny.encode([source["text"] for source in wanted.values()], "document")
    for (key, source), vector in zip(wanted.items(), vectors, strict=True):
        assert stored[key].items() >= source.items()
        assert same_vectors(vector_of(stored[key]), vector)


@pytest.mark.long
def test_in_place_load_goes_around_default_search_pipeline(
    cluster: RayCluster, opensearch_url: str, cli: Cli, model: Path, tiny: Encoder, tmp_path: Path
) -> None:
    with (
        indices(opensearch_url, cli, model, tmp_path / "hostile", HOSTILE) as hostile,
        open_engine(opensearch_url) as engine,
    ):
        name = hostile.fill(engine, "place")
        for kind in ("indexed", "unchanged"):
            [report] = hostile.run("ingest", "--index", name, "--json", "--ray", cluster.address)
            assert (report["read"], report[kind]) == (HOSTILE_COUNT, HOSTILE_COUNT)
        wanted = {str(number): document(number) for number in range(HOSTILE_COUNT)}
        found = read_sources(engine, name, list(wanted), source_includes=["*"])
        vectors = tiny.encode([source["text"] for source in wanted.values()], "document")
        for (key, source), vector in zip(wanted.items(), vectors, strict=True):
            assert found[key].items() >= source.items()
            assert same_vectors(vector_of(found[key]), vector)


@pytest.mark.long
def test_worker_reports_altering_pipeline_and_rerun_repairs(
    cluster: RayCluster, es8_url: str, fresh_index: Callable[[str], str], model: Path, tiny: Encoder, tmp_path: Path
) -> None:
    bench = Bench("es8", es8_url, fresh_index(es8_url), model, tiny, tmp_path, corpus(300), outage=0)
    with closing(loaded_by(cluster, bench)):
        bench.create(shards=1)
        with altering_pipeline(bench):
            refused(bench, bench.start())
        check(bench, bench.finish())


def test_missing_ray_cluster_exits_2(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    docs = write_jsonl(tmp_path / "docs.jsonl", [{"text": "a man"}])
    arguments = ["ingest", "--index", fresh_index(es9_url), "--url", es9_url, "--model", model, "--ray"]
    done = cli(*arguments, "127.0.0.1:1", docs)
    assert done.code == 2
    assert "there is no Ray cluster at 127.0.0.1:1" in done.err
    assert "ray start --head" in done.err
    done = cli(*arguments, "ray://127.0.0.1:10001", docs)
    assert "Ray Client addresses (ray://) are not supported" in done.err
    done = cli(*arguments, "auto", "--watch")
    assert "--watch" in done.err
