"""Options of a load and what the index says become vector fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import UsageError
from es_sbert.index.document_vectors import kept_targets, target_texts
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from es_sbert.index.text_template import TextFieldError
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load_plan import plan_fields, plan_load, resolve_sources
from tests.raised import raises, raises_as_recorded
from tests.unit.ingest.support import target

STORED = {
    name: VectorFieldMeta(fingerprint="f", model="m", dimensions=4, index_type="hnsw", text=text)
    for name, text in (("embedding", "{title}. {body}"), ("summary_vector", "{summary}"), ("unfilled", None))
}
RULES = ChunkRules(tokens=64, overlap=8)


def planned(**options: Any) -> list[tuple[str, str, ChunkRules | None]]:
    fields = plan_fields(IngestSettings(index="docs", **options), STORED)
    return [(field.field, field.template.template, field.chunk_rules) for field in fields]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, [("embedding", "{title}. {body}", None)]),
        ({"text_fields": ("a", "b")}, [("embedding", "{a}\n{b}", None)]),
        ({"text_template": "{a}!"}, [("embedding", "{a}!", None)]),
        ({"vector_field": "new"}, [("new", "{text}", None)]),
        ({"vector_field": "unfilled"}, [("unfilled", "{text}", None)]),
        ({"passages": 256}, [("embedding", "{title}. {body}", ChunkRules(tokens=256, overlap=32))]),
        ({"passages": 9, "passage_overlap": 0}, [("embedding", "{title}. {body}", ChunkRules(tokens=9, overlap=0))]),
        ({"vectors": ("t={title}", "summary_vector")}, [("t", "{title}", None), ("summary_vector", "{summary}", None)]),
        ({"vectors": ("t={a}", "u={b}"), "passages": 64}, [("t", "{a}", RULES), ("u", "{b}", RULES)]),
    ],
)
def test_planned_fields(options: dict[str, Any], fields: list[tuple[str, str, ChunkRules | None]]) -> None:
    assert planned(**options) == fields


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({"vectors": ("a={x}", "a={y}")}, "vectors", "a"),
        ({"vectors": ("a={x}",), "text_fields": ("a",)}, "vectors", None),
        ({"vectors": ("unfilled",)}, "vectors", "unfilled"),
        ({"vectors": ("_a={x}",)}, "vector_field", "_a"),
        ({"text_fields": ("a",), "text_template": "{a}"}, "text_template", "{a}"),
        ({"passage_overlap": 8}, "passage_overlap", 8),
        ({"vector_field": "text"}, "vector_field", "text"),
        ({"vector_field": "v", "text_fields": ("v_meta.x",)}, "vector_field", "v"),
        ({"vector_field": "key", "id_field": "key"}, "vector_field", "key"),
    ],
)
def test_conflicting_field_options_are_rejected(options: dict[str, Any], setting: str, value: object) -> None:
    with raises(UsageError, setting, value):
        planned(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"files": ("a",), "retry": Path("dead")}, {"prune": True},
        {"retry": Path("dead"), "encoding": "utf-16"}, {"id_field": "id"},
    ],
)  # fmt: skip
def test_options_of_other_loads_are_refused_before_an_engine_is_asked(options: dict[str, Any]) -> None:
    settings = IngestSettings(index="docs", **options)
    with raises_as_recorded(UsageError):
        plan_load(cast(Engine, None), settings, resolve_sources(settings))


def test_other_fields_with_known_text_are_kept() -> None:
    [kept] = kept_targets(STORED, ["embedding"])
    assert (kept.field, kept.template.template, kept.filled) == ("summary_vector", "{summary}", False)


def test_one_text_of_several_is_enough() -> None:
    targets = (target("t", "{title}"), target("b", "{body}"), target("k", "{kept}", filled=False))
    assert target_texts({"title": "x", "kept": "z"}, targets) == ("x", "", "z")
    assert target_texts({"body": "y", "title": " ", "kept": 5}, targets) == ("", "y", "")
    assert target_texts({"body": None, "kept": "z"}, targets) == ("", "", "z")
    with raises_as_recorded(TextFieldError):
        target_texts({"title": "x", "body": 5}, targets)
