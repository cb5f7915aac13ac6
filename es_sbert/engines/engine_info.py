"""`EngineInfo`: the engine at an address, its version, and what this version supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from es_sbert.engines.rest import Json

# Names that no top-level field of a document may have.
_METADATA_FIELDS = frozenset({
    "_data_stream_timestamp", "_feature", "_field_names", "_id", "_ignored", "_index", "_nested_path", "_routing",
    "_seq_no", "_source", "_version",
})  # fmt: skip


class EngineType(StrEnum):
    ELASTICSEARCH = "elasticsearch"
    OPENSEARCH = "opensearch"


def without_search_pipeline(engine_type: EngineType, body: Json) -> Json:
    """Make a search return the documents as they are in the index.

    OpenSearch applies an index's default search pipeline (`index.search.default_pipeline`) to every search and count
    that does not say otherwise. It may drop, rename, collapse or replace hits. A search that names a pipeline keeps it.
    """
    return body if engine_type is EngineType.ELASTICSEARCH else {"search_pipeline": "_none"} | body


@dataclass(frozen=True)
class EngineInfo:
    """The engine at an address, and its version.

    Attributes:
        engine_type: Elasticsearch or OpenSearch.
        version: (major, minor, patch).
        url: Address without credentials.
        cluster: UUID of the cluster; None if it is not known.
    """

    engine_type: EngineType
    version: tuple[int, int, int]
    url: str
    cluster: str | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """`Elasticsearch 9.5.0` or `OpenSearch 3.6.0`."""
        name = "Elasticsearch" if self.engine_type is EngineType.ELASTICSEARCH else "OpenSearch"
        return f"{name} {'.'.join(map(str, self.version))}"

    @property
    def metadata_fields(self) -> frozenset[str]:
        """Names of fields that a document may not have at its top level, such as `_id`."""
        own = {"_ignored_source", "_tier"} if self.engine_type is EngineType.ELASTICSEARCH else set()
        return _METADATA_FIELDS | own

    @property
    def supports_base64_vectors(self) -> bool:
        """Whether a vector may be sent as base64 of big-endian float32 instead of a list of numbers.

        OpenSearch accepts base64 from 3.9 on, but of little-endian numbers. This is not tested yet, so it gets lists.
        """
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 3, 0)

    @property
    def derives_vectors_in_source(self) -> bool:
        """Whether an index with `index.knn` does not store vectors in `_source`, though it returns them there."""
        return self.engine_type is EngineType.OPENSEARCH and not self._is_opensearch_2

    @property
    def needs_index_knn(self) -> bool:
        """Whether an index with a vector field must have the setting `index.knn`, which gives the field a graph.

        OpenSearch 2 accepts such a field without the setting, but then fails all shards of the index whenever its
        mapping changes (https://github.com/opensearch-project/k-NN/issues/2540).
        """
        return self._is_opensearch_2

    @property
    def knn_matches_candidates(self) -> bool:
        """Whether a kNN query matches all its candidates (`ef_search`) in each shard instead of k documents."""
        return self._is_opensearch_2

    @property
    def _is_opensearch_2(self) -> bool:
        return self.engine_type is EngineType.OPENSEARCH and self.version < (3, 0, 0)

    @property
    def excludes_vectors_from_source(self) -> bool:
        """Whether `_source` leaves vectors out unless asked (`_source.exclude_vectors`)."""
        return self.engine_type is EngineType.ELASTICSEARCH and self.version >= (9, 2, 0)

    def source_with_vectors(self, includes: Sequence[str] = ()) -> Json | bool:
        """The `_source` parameter of a search that returns these fields, including vectors.

        Args:
            includes: Names or patterns; none for all fields. OpenSearch returns a placeholder for a vector inside
                passages unless the request names the vector itself.
        """
        source: Json = {"includes": list(includes)} if includes else {}
        if self.excludes_vectors_from_source:
            source["exclude_vectors"] = False
        return source or True
