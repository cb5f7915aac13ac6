"""The changes of `_meta.es_sbert`: each touches its own part, and is none once it is there."""

from __future__ import annotations

from hypothesis import assume, example, given
from hypothesis import strategies as st

from es_sbert.analysis.field_writer import plan_written_field
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)


@given(foreign=objects, others=objects)
@example(foreign={}, others={"load": None, "written_fields": 0})
def test_change_keeps_what_belongs_to_others(foreign: Json, others: Json) -> None:
    meta = foreign | {"es_sbert": others}
    state = IndexState("docs", {"_meta": meta}, {})
    body = plan_written_field(state, "group", [])
    assume(body is not None)  # the entry is there already
    assert body is not None
    changed = body["_meta"]
    assert changed.keys() == meta.keys()
    assert {**changed, "es_sbert": None} == {**meta, "es_sbert": None}
    # A damaged entry is replaced.
    assert {**changed["es_sbert"], "written_fields": None} == {**others, "written_fields": None}
    assert plan_written_field(IndexState("docs", {**state.mappings, **body}, {}), "group", []) is None


def test_fields_of_other_analyses_stay_in_the_list() -> None:
    """Read from the mapping as it is, not as it was when the analysis began."""
    properties = {"cluster": {"type": "keyword"}}
    mappings = {"_meta": {"es_sbert": {"written_fields": ["cluster"]}}, "properties": properties}
    assert plan_written_field(IndexState("docs", mappings, {}), "duplicate_of", []) == {
        "properties": {"duplicate_of": {"type": "keyword"}},
        "_meta": {"es_sbert": {"written_fields": ["cluster", "duplicate_of"]}},
    }
    assert plan_written_field(IndexState("docs", mappings, {}), "cluster", []) is None
    declared = plan_written_field(IndexState("docs", {"properties": properties}, {}), "cluster", [])
    assert declared == {"_meta": {"es_sbert": {"written_fields": ["cluster"]}}}
