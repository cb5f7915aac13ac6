"""A load resumes a load of an earlier version."""

from __future__ import annotations

from typing import Any, cast

from es_sbert.engines.index_state import IndexState
from es_sbert.index.document_vectors import EmbeddingTarget
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.checkpoint import _packed
from es_sbert.ingest.load import _identity
from es_sbert.ingest.load_plan import IngestSettings, LoadPlan
from es_sbert.io.file_formats import FileFormat

INDEX = IndexState("docs", {}, {"index.uuid": "uuid"})
META = VectorFieldMeta(fingerprint="model", model="", dimensions=1, index_type="")
TARGETS = (EmbeddingTarget("embedding", TextTemplate.parse("{text}"), META),)
# As earlier versions wrote them, whose files had a sheet and a decimal mark too.
EARLIER = (
    b'{"fields":[["embedding","{text}",null]],"file_options":[null,null,null,null,[],null],'
    b'"fingerprint":"model","id_field":"id","index_uuid":"uuid","routing_field":null}'
)
EARLIER_OPTIONS = (
    b'{"fields":[["embedding","{text}",null]],"file_options":["csv",";",null,null,[],null],'
    b'"fingerprint":"model","id_field":"id","index_uuid":"uuid","routing_field":null}'
)


class Plan:
    """The part of a plan that tells which load it is."""

    def __init__(self, **settings: Any) -> None:
        self.settings = IngestSettings(index="docs", files=("a.csv",), id_field="id", **settings)


def packed(**settings: Any) -> bytes:
    return _packed(_identity(cast(LoadPlan, Plan(**settings)), INDEX, TARGETS))


def test_identity_is_that_of_an_earlier_version() -> None:
    assert packed() == EARLIER


def test_other_options_are_another_load() -> None:
    assert packed(format=FileFormat.CSV, delimiter=";") == EARLIER_OPTIONS
