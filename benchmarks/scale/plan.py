"""What a load of many documents needs: machines, hours, disk and memory, from measured costs.

Every step costs a document some seconds of a processor. A load is as fast as the slowest of three:

    workers      machines · cores / (read + detect + tokenize + embed + pack + write)
    engine       nodes that index · cores / (indexing copies · (document + vector(n)))
    coordinator  1 / coordinator(N)

where N is the number of documents and n the number in a shard. The vector's cost depends on the index type: for a
graph it is a + b·ln n, fitted to measured loads, since each vector is searched for before it is linked, and merges
build graphs again. Each copy that exists during the load does the same work; a new index has one until the load ends
(`--load-settings auto`), and replicas then copy its files. No more nodes index than there are copies of shards; there
is a shard for each data node, unless the nodes only hold the copies of a small index. Disk and memory are those of
`es-sbert index advise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.scale.laws import LogCurve
from es_sbert.diagnostics.index_size import VectorIndexSize, estimate_size
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.index.mapping import IndexType

GIGABYTE = 10**9
_LARGEST_HEAP = 31 * GIGABYTE


@dataclass(frozen=True)
class Costs:
    """Seconds of one core for each document.

    Attributes:
        read, detect, tokenize, embed, pack, write: Of a worker.
        coordinator: Of the process that keeps the checkpoint of all workers; it has one thread.
        flat, hnsw: Of the engine, for a vector of a field of that type, by the number of vectors in the shard.
        document: Of the engine, for the rest of the document.
        document_bytes: On the engine's disk, without the vector.
        words: Of a document's text.
    """

    read: float
    detect: float
    tokenize: float
    embed: float
    pack: float
    write: float
    coordinator: LogCurve
    flat: LogCurve
    hnsw: LogCurve
    document: float
    document_bytes: float
    words: float

    @property
    def worker(self) -> float:
        """All that a worker does."""
        return self.read + self.detect + self.tokenize + self.embed + self.pack + self.write

    def engine(self, index_type: IndexType, shard_documents: float) -> float:
        """All that one copy of a shard does; quantized types are taken to cost what their float32 type does."""
        curve = self.hnsw if is_graph(index_type) else self.flat
        return self.document + curve.at(shard_documents)


def is_graph(index_type: IndexType) -> bool:
    """Whether a search follows a graph."""
    return index_type.endswith("hnsw")


@dataclass(frozen=True)
class Cluster:
    """What machines are assumed.

    Attributes:
        engine: Engines and versions store vectors differently.
        dimensions: Of a vector.
        worker_cores: Of a machine that embeds.
        node_cores: Of a data node.
        node_memory, node_disk: Bytes of a data node.
        shard_bytes: Most bytes of a shard's copy.
        replicas: Of each shard, after the load.
        indexing_copies: Copies of each shard during the load.
    """

    engine: EngineInfo
    dimensions: int = 384
    worker_cores: int = 16
    node_cores: int = 16
    node_memory: int = 64 * GIGABYTE
    node_disk: int = 4000 * GIGABYTE
    shard_bytes: int = 40 * GIGABYTE
    replicas: int = 1
    indexing_copies: int = 1

    @property
    def copies(self) -> int:
        """Of every document."""
        return 1 + self.replicas

    @property
    def cache(self) -> int:
        """Bytes of a data node for the file system's cache: what the heap, at most half of the memory, leaves."""
        return self.node_memory - min(_LARGEST_HEAP, self.node_memory // 2)


@dataclass(frozen=True)
class Plan:
    """A load, and the cluster that holds its documents.

    Attributes:
        documents, machines, index_type: As asked.
        shards: Primary shards.
        nodes: Data nodes.
        memory, disk: Bytes of all copies together: what should fit into the cache of all nodes, and the whole index.
        workers, engine, coordinator: Documents a second that each could take.
    """

    documents: int
    machines: int
    index_type: IndexType
    shards: int
    nodes: int
    memory: int
    disk: int
    workers: float
    engine: float
    coordinator: float

    @property
    def rate(self) -> float:
        """Documents a second."""
        return min(self.workers, self.engine, self.coordinator)

    @property
    def limit(self) -> str:
        """What the rate is limited by."""
        rates = {"workers": self.workers, "engine": self.engine, "coordinator": self.coordinator}
        return min(rates, key=lambda name: rates[name])

    @property
    def hours(self) -> float:
        return self.documents / self.rate / 3600


def plan(
    documents: int,
    machines: int,
    costs: Costs,
    cluster: Cluster,
    index_type: IndexType = IndexType.HNSW,
    nodes: int | None = None,
) -> Plan:
    """What a load takes.

    Args:
        documents: To load.
        machines: That embed.
        nodes: Data nodes; None for as many as memory, disk and copies need.

    Raises:
        ValueError: fewer than one document, machine or node.
    """
    if documents < 1 or machines < 1 or (nodes is not None and nodes < 1):
        raise ValueError(f"{documents} documents, {machines} machines, {nodes} nodes")
    size = estimate_size(cluster.engine, index_type, documents, cluster.dimensions)
    one_copy = size.disk + round(documents * costs.document_bytes)
    used = nodes or _nodes_needed(size, one_copy, cluster)
    shards = max(math.ceil(one_copy / cluster.shard_bytes), used if used > cluster.copies else 1)
    indexing = min(used, shards * cluster.indexing_copies)
    per_document = cluster.indexing_copies * costs.engine(index_type, documents / shards)
    return Plan(
        documents=documents,
        machines=machines,
        index_type=index_type,
        shards=shards,
        nodes=used,
        memory=cluster.copies * size.memory,
        disk=cluster.copies * one_copy,
        workers=machines * cluster.worker_cores / costs.worker,
        engine=indexing * cluster.node_cores / per_document,
        coordinator=1 / costs.coordinator.at(documents),
    )


def _nodes_needed(size: VectorIndexSize, one_copy: int, cluster: Cluster) -> int:
    """Data nodes whose cache holds what searches read and whose disk is at most half full, since merges need room."""
    by_memory = math.ceil(cluster.copies * size.memory / cluster.cache)
    by_disk = math.ceil(2 * cluster.copies * one_copy / cluster.node_disk)
    return max(by_memory, by_disk, cluster.copies)


def machines_for_node(costs: Costs, cluster: Cluster, index_type: IndexType, shard_documents: float) -> float:
    """Worker machines whose documents one data node without replicas can index: with more, the engine is the limit."""
    node = cluster.node_cores / costs.engine(index_type, shard_documents)
    return node * costs.worker / cluster.worker_cores
