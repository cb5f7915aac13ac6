"""Write documents of an index again without changing the numbers in their other fields.

For an update with `doc` or by a script, an engine parses `_source` and writes it again: `1.10` becomes `1.1`, and a
keyword field that held the term `1.10` then holds `1.1`. Documents with such numbers are therefore indexed as a whole,
on the condition that they have not been written since they were read.

Elasticsearch from 9.2 and OpenSearch 3 do the same to `_source` at every write of an index with vectors that they leave
out of it. The terms of such a write are those of the original number, so they are read from the keyword fields.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from es_sbert.batched import batched
from es_sbert.engines.bulk_request import BulkOutcome
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_scan import multi_get
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json, exact_numbers
from es_sbert.engines.retry import Retrier
from es_sbert.errors import IndexMissing, RequestFailed
from es_sbert.index.derived_fields import mapped_fields, nested_objects
from es_sbert.index.document_vectors import action_metadata, append_members, if_unchanged, json_bytes
from es_sbert.index.mapping import VECTOR_TYPES, document_meta_field, vector_fields
from es_sbert.io.json_text import JsonNumber, dump_object, number_text

_PAGE = 200
_FINAL_PIPELINE = "index.final_pipeline"
# With these types, `1.10` and `1.1` are indexed alike.
_NUMERIC_TYPES = frozenset({
    "byte", "double", "float", "half_float", "integer", "long", "rank_feature", "rank_features", "scaled_float",
    "short", "token_count", "unsigned_long",
})  # fmt: skip
# With these types, `1.10` and `1.1` are indexed differently, and a phrase query finds the one that is indexed.
_TEXT_TYPES = frozenset({
    "annotated_text", "constant_keyword", "flat_object", "flattened", "keyword", "match_only_text", "pattern_text",
    "search_as_you_type", "text", "wildcard",
})  # fmt: skip
_MAX_CLAUSES = 500
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class WholeDocument(NamedTuple):
    """A document that has to be indexed as a whole.

    Attributes:
        source: Its `_source`.
        problem: The reason why it cannot be indexed without changing more than asked; empty if it can.
    """

    source: Json
    problem: str = ""


def read_inexact(
    engine: Engine, state: IndexState, hits: Sequence[Json], retrying: Retrier
) -> dict[DocumentKey, WholeDocument]:
    """Read the documents in which a partial update would change a number of another field.

    Args:
        state: The index.
        hits: Documents with `_seq_no`. Those that were written since are left out; an update of them fails anyway.

    Raises:
        AccessDenied: the user may not update documents.
        EngineError: the engine failed. If the index was deleted, nothing is found.
    """
    found: dict[DocumentKey, WholeDocument] = {}
    for page in batched(hits, _PAGE):
        read = partial(engine.mget, state.name, [document_key(hit) for hit in page], whole=True)
        try:
            with exact_numbers():
                documents = retrying(read)
        except IndexMissing:
            return {}  # a write to the index says what happened to it
        current = [
            document
            for hit, document in zip(page, documents, strict=True)
            if document is not None and document["_seq_no"] == hit["_seq_no"]
        ]
        lost = restore_numbers(engine, state, current, retrying)
        for document in current:
            key, source = document_key(document), document["_source"]
            problem = lost.get(key) or _pipeline_problem(state, _inexact_fields(source, state))
            if problem is not None:
                found[key] = WholeDocument(source, problem)
    writable = [hit for hit in hits if (whole := found.get(document_key(hit))) is not None and not whole.problem]
    if writable:
        _check_may_update(engine, state, writable[0], retrying)
    return found


def _check_may_update(engine: Engine, state: IndexState, hit: Json, retrying: Retrier) -> None:
    """Refuse users from whom the engine hides fields: a document that they index would lose these.

    The engines do not let such users update documents.

    Args:
        hit: A document, which is updated without a change.

    Raises:
        AccessDenied: the user may not update the document.
    """

    def update() -> None:
        [result] = engine.bulk(state.name, write_lines(hit, {}, None))
        if result.outcome is BulkOutcome.DENIED or result.outcome.is_retried:
            error = result.error(engine.info.label, f"updating documents of {state.name}")
            # Transient: the end of a block is waited for, as by all writes of documents.
            raise RequestFailed(error.message, error.remedy, 503) if result.outcome.is_retried else error

    retrying(update)


def _pipeline_problem(state: IndexState, inexact: Mapping[str, str]) -> str | None:
    """The reason why a document cannot be indexed as a whole; empty if it can, None if a partial update is harmless."""
    if not inexact:
        return None
    pipeline = state.settings.get(_FINAL_PIPELINE, "_none")
    if pipeline == "_none":
        return ""
    mapped = dict(mapped_fields(state.mappings.get("properties", {})))
    # In all other fields, a number is indexed by its value only, or not at all.
    harmed = [
        name
        for name in inexact
        if any(form.get("type") not in _NUMERIC_TYPES for form in _forms(mapped, name).values())
    ]
    if not harmed:
        return None
    return (
        f"{harmed[0]} is the number {inexact[harmed[0]]}, which a partial update would write in another form, and "
        f"indexing the document as a whole would run the ingest pipeline {pipeline!r} again ({_FINAL_PIPELINE}): write "
        f"{harmed[0]} as a string, or set {_FINAL_PIPELINE} to _none while this command runs"
    )


def write_lines(hit: Json, change: Json, whole: WholeDocument | None) -> bytes:
    """Build the bulk lines that change members of a document, if it is still the version that was read.

    Args:
        hit: The document, with `_id`, `_seq_no`, `_primary_term` and perhaps `_routing`.
        change: Members to set; objects are merged, as in a partial update.
        whole: The document if `read_inexact` has found it.
    """
    action = action_metadata(hit) | if_unchanged(hit)
    if whole is None:
        return b"%b\n%b\n" % (json_bytes({"update": action}), json_bytes({"doc": change}))
    kept = {name: value for name, value in whole.source.items() if name not in change}
    added = merge_partial_document({name: whole.source[name] for name in change if name in whole.source}, change)
    exact = {name: value for name, value in added.items() if isinstance(value, dict)}
    line = append_members(dump_object(kept | exact), {name: added[name] for name in added if name not in exact})
    # No ingest pipeline is used: it has processed the document already.
    return b"%b\n%b\n" % (json_bytes({"index": action | {"pipeline": "_none"}}), line)


def merge_partial_document(previous: Mapping[str, Any], doc: Mapping[str, Any]) -> Json:
    """Apply a partial update to a document, as engines do: merge objects and replace all other values."""
    result = dict(previous)
    for name, value in doc.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = merge_partial_document(before, value) if both else value  # type: ignore[arg-type]
    return result


def restore_numbers(
    engine: Engine, state: IndexState, hits: Sequence[Json], retrying: Retrier
) -> dict[DocumentKey, str]:
    """Give numbers in keyword fields the text that is in the index, where the engine's `_source` has lost it.

    Args:
        state: The index.
        hits: Whole documents, with `_source` and `_seq_no`, whose sources are changed.

    Returns:
        Documents with a number whose text is lost → the reason why they cannot be written again.

    Raises:
        EngineError: the engine failed.
    """
    fields = keyword_fields(state)
    numbers: dict[DocumentKey, dict[str, list[_Place]]] = {}
    for hit in hits if fields else ():
        places: defaultdict[str, list[_Place]] = defaultdict(list)
        for place in _leaves(hit["_source"]):
            if place.name in fields:
                places[place.name].append(place)
        doubtful = {name: found for name, found in places.items() if any(one.is_doubtful for one in found)}
        if doubtful:
            numbers[document_key(hit)] = doubtful
    versions = {document_key(hit): hit["_seq_no"] for hit in hits}
    for keys in batched(list(numbers), min(_PAGE, state.result_window)):
        ids, window = [document_id for document_id, _ in keys], state.result_window
        names = sorted({name for key in keys for name in numbers[key]})
        for some in batched(names, max_docvalue_fields(state)):
            terms = [fields[name] for name in some]
            read = partial(multi_get, engine, state.name, ids, extra={"docvalue_fields": terms}, result_window=window)
            for key, hit in retrying(read).items():
                if key in numbers and hit["_seq_no"] == versions[key]:
                    for name in numbers[key].keys() & set(some):
                        _restore(numbers[key][name], hit.get("fields", {}).get(fields[name], []))
    return _find_lost(engine, state, hits, retrying) if rewrites_numbers(engine.info, state) else {}


def _find_lost(engine: Engine, state: IndexState, hits: Sequence[Json], retrying: Retrier) -> dict[DocumentKey, str]:
    """Find documents with a number that a text field has indexed with other words than the number in `_source` has."""
    properties, restored = state.mappings.get("properties", {}), keyword_fields(state)
    nested = nested_objects(properties)
    text_forms = cache(partial(_text_forms, dict(mapped_fields(properties))))  # a vector has many values
    numbers: dict[DocumentKey, dict[str, Json]] = {}
    for hit in hits:
        for place in _leaves(hit["_source"]):
            if place.is_doubtful and place.name not in restored:
                text = number_text(place.value)
                for path in text_forms(place.name):
                    where = "" if path == place.name else f", indexed in {path}"
                    query = _phrase_query(path, text, nested)
                    numbers.setdefault(document_key(hit), {})[f"{place.name}: {text}{where}"] = query
    versions, window = {document_key(hit): hit["_seq_no"] for hit in hits}, state.result_window
    lost: dict[DocumentKey, str] = {}
    for keys in batched(list(numbers), min(_PAGE, window)):
        queries = {name: query for key in keys for name, query in numbers[key].items()}
        for names in batched(list(queries), _MAX_CLAUSES):
            named = [{"bool": {"filter": [queries[name]], "_name": name}} for name in names]
            query = {"bool": {"must": [{"match_all": {}}], "should": named}}
            ids = [document_id for document_id, _ in keys]
            read = partial(multi_get, engine, state.name, ids, query=query, result_window=window)
            for key, hit in retrying(read).items():
                if key in numbers and hit["_seq_no"] == versions[key]:
                    missing = (numbers[key].keys() & set(names)) - set(hit.get("matched_queries", ()))
                    if missing:
                        lost[key] = _lost_reason(engine.info, min(missing))
    return lost


def _lost_reason(info: EngineInfo, number: str) -> str:
    field = number.partition(": ")[0]
    return (
        f"{info.label} has changed a number in the `_source` of the document ({number}), but not in the index, where "
        f"its text would change if the document were written again: write it from its source, with {field} as a string"
    )


def _forms(mapped: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Mapping[str, Any]]:
    """The fields that index the values of a field: itself, the fields it is copied to, and the multi-fields of these.

    Args:
        mapped: All fields by dotted name.
        name: A field of `_source`, or a member of a `flattened` field.
    """
    owner = name
    while owner and owner not in mapped:
        owner = owner.rpartition(".")[0]
    field = mapped.get(owner, {})
    if field.get("type", "object") in {"nested", "object"}:
        return {}
    targets = field.get("copy_to", [])
    targets = [targets] if isinstance(targets, str) else targets
    forms = {name: field} | {target: mapped.get(target, {}) for target in targets}
    multi_fields = {f"{path}.{each}": form for path in forms for each, form in forms[path].get("fields", {}).items()}
    return forms | multi_fields


def _text_forms(mapped: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """Those of the `_forms` in which the text of a number can be searched for."""
    return [
        path
        for path, form in _forms(mapped, name).items()
        if form.get("type") in _TEXT_TYPES
        and (form.get("index", True) or (form["type"] == "keyword" and form.get("doc_values", True)))
    ]


def _phrase_query(path: str, text: str, nested: Iterable[str]) -> Json:
    """Build the query for the text in a field.

    Args:
        nested: The objects of type `nested`.
    """
    # An analyzer may leave numbers out.
    query = {"match_phrase": {path: {"query": text, "zero_terms_query": "all"}}}
    inside = max((each for each in nested if path.startswith(f"{each}.")), key=len, default="")
    return {"nested": {"path": inside, "query": query}} if inside else query


class _Place(NamedTuple):
    """A value in a document, the name of its field, and the object or the list that holds it."""

    name: str
    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    @property
    def is_doubtful(self) -> bool:
        """Whether an engine may write this for a number that was written differently."""
        return isinstance(self.value, float) or (type(self.value) is int and self.value == 0)  # a bool is an int too


def _leaves(value: Any, name: str = "") -> Iterator[_Place]:
    """Yield the values in a document that are neither objects nor lists."""
    entries: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        below: str = name if isinstance(value, list) else f"{name}.{key}" if name else key
        if isinstance(inner, dict | list):
            yield from _leaves(inner, below)
        else:
            yield _Place(below, value, key)


def _restore(places: Sequence[_Place], terms: Sequence[str]) -> None:
    """Replace numbers by terms of the same value that no value of the document accounts for.

    A term is listed once, so a number that is not a term has the text of another number of the same value.
    """
    texts = [one.value if isinstance(one.value, str) else number_text(one.value) for one in places]
    counts, indexed = Counter(texts), set(terms)
    numbers = [term for term in terms if _NUMBER.fullmatch(term)]
    for term in numbers:
        if counts[term]:
            continue
        for number, one in enumerate(places):
            is_free = texts[number] not in indexed or counts[texts[number]] > 1
            if is_free and one.is_doubtful and one.value == float(term):
                one.holder[one.key] = JsonNumber(term)
                counts[texts[number]] -= 1
                texts[number] = term
                break
    for one, text in zip(places, texts, strict=True):
        if one.is_doubtful and text not in indexed:
            same = next((term for term in numbers if one.value == float(term)), None)
            if same is not None:
                one.holder[one.key] = JsonNumber(same)


def _inexact_fields(source: Json, state: IndexState) -> dict[str, str]:
    """The fields that hold numbers which a partial update would change, outside of vectors → such a number."""
    own = vector_fields(state.mappings, state.name)
    mapped = state.mappings.get("properties", {})
    vectors = {name for name in mapped if mapped[name].get("type") in VECTOR_TYPES.values()} | {
        each for name in own for each in (name, document_meta_field(name))
    }
    others = {name: value for name, value in source.items() if name not in vectors}
    return {place.name: place.value.text for place in _leaves(others) if isinstance(place.value, JsonNumber)}


def rewrites_numbers(info: EngineInfo, state: IndexState) -> bool:
    """Whether the engine writes the numbers in `_source` anew at every write of an index, because it takes vectors out.

    The terms of a keyword field are still those of the number as it was sent.
    """
    if info.excludes_vectors_from_source:
        return state.settings.get("index.mapping.exclude_source_vectors") != "false"
    # False by default: OpenSearch 3 itself sets it to true in new indices with `index.knn`.
    return state.settings.get("index.knn.derived_source.enabled") == "true"


def max_docvalue_fields(state: IndexState) -> int:
    """Number of `docvalue_fields` that a search of an index may request."""
    return int(state.setting("index.max_docvalue_fields_search") or 100)


def keyword_fields(state: IndexState) -> dict[str, str]:
    """Field → the keyword field whose terms are its values: itself, or one of its multi-fields."""
    properties = state.mappings.get("properties", {})
    nested = tuple(f"{name}." for name in nested_objects(properties))
    found: dict[str, str] = {}
    for path, field in mapped_fields(properties):
        for inner, form in [("", field), *((f".{each}", form) for each, form in field.get("fields", {}).items())]:
            is_keyword = form.get("type") == "keyword" and form.get("doc_values", True) and "normalizer" not in form
            if is_keyword and not path.startswith(nested):
                found.setdefault(path, f"{path}{inner}")
    return found
