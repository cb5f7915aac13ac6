"""What a user may do with an index, and whether the user sees all of it.

With security enabled, Elasticsearch tells the index privileges. OpenSearch's security plugin has no API that tells a
user its permissions; there, the error of a rejected request names the missing permission. Document-level security can
hide documents from every read: a copy would then lack them, a load in place would not embed them, and counting by
searches would not show it. They are noticed by counting documents in two independent ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.error_mapping import LIMITED_VIEW, root_cause
from es_sbert.engines.rest import Json, encode_json, quote_index_name
from es_sbert.engines.retry import Retrier
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.vector_field import require_index
from es_sbert.messages import pluralize

_READ_PRIVILEGES = ("read", "view_index_metadata")
_LOAD_PRIVILEGES = (*_READ_PRIVILEGES, "index", "maintenance")


@dataclass(frozen=True)
class IndexTask:
    """A task that a user performs on an index.

    Attributes:
        action: The task as a message names it after "may".
        privileges: The least index privileges that it needs.
    """

    action: str
    privileges: tuple[str, ...]


SEARCH = IndexTask("search and show", _READ_PRIVILEGES)
LOAD = IndexTask("load documents into", _LOAD_PRIVILEGES)
CREATE = IndexTask("create and load", (*_LOAD_PRIVILEGES, "create_index"))
PRUNE = IndexTask("prune", (*_LOAD_PRIVILEGES, "delete"))
# `manage` includes view_index_metadata, maintenance and create_index.
# On the old index and its aliases: to block writes, to record the progress, and to move the aliases.
MIGRATE_FROM = IndexTask("migrate", ("read", "manage"))
MIGRATE_TO = IndexTask("create, fill and swap in", ("read", "index", "delete", "manage"))
ADOPT = IndexTask("adopt the vectors of", ("read", "index", "manage"))
SAVE_MIN_COSINE = IndexTask("store a minimum cosine in the mapping of", ("read", "manage"))
ADVISE = IndexTask("create, fill and delete temporary indices named", ("read", "index", "manage"))
INDEX_TASKS = (SEARCH, LOAD, CREATE, PRUNE)
# An id that no document has, for a question about privileges.
NO_DOCUMENT = "es-sbert-no-such-document"
# Tasks on an index that exists, which write what they have read or take a document that is not found for a missing one.
_TASKS_ON_WHOLE_DOCUMENTS = (LOAD, PRUNE, ADOPT, MIGRATE_FROM)


def granted_privileges(engine: Engine, index: str, privileges: Iterable[str]) -> Mapping[str, bool] | None:
    """Request the index privileges of the user or API key; None if security is disabled or the engine cannot tell.

    Raises:
        EngineError: the engine failed.
    """
    if engine.info.engine_type is EngineType.OPENSEARCH:
        return None
    names = sorted(set(privileges))
    body: Json = {"index": [{"names": [index], "privileges": names}]}
    answer = engine.request_api("/_security/user/_has_privileges", body=body, method="POST")
    if answer is None:
        return None
    found: Json = answer.get("index", {}).get(index, {})
    return {name: bool(found.get(name, False)) for name in names}


def require_privileges(engine: Engine, index: str, task: IndexTask) -> None:
    """Check that the user may perform a task and sees whole documents, all of them, before anything is changed.

    Raises:
        AccessDenied: a privilege is missing, or security hides documents or fields from the user. The remedy says what
            to change.
        EngineError: the engine failed.
    """
    has = granted_privileges(engine, index, task.privileges)
    lacking = missing_privileges(task, has) if has is not None else []
    if lacking:
        raise AccessDenied(
            f"this user or API key may not {task.action} {index}: it lacks the "
            f"{_name_privileges(lacking)} ({engine.info.label} at {engine.info.url})",
            privileges_remedy(lacking, index),
        )
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    if task in _TASKS_ON_WHOLE_DOCUMENTS and (is_opensearch or has is not None) and _is_view_limited(engine, index):
        settings = "`dls` nor `fls` nor `masked_fields`" if is_opensearch else "`query` nor `field_security`"
        raise AccessDenied(
            f"this user or API key may not {task.action} {index}: document- or field-level security hides documents or "
            f"fields of it, which would not be seen or would be lost ({engine.info.label} at {engine.info.url})",
            f"Use a user or API key whose roles have neither {settings} for {index}.",
        )


def _is_view_limited(engine: Engine, index: str) -> bool:
    """Whether document- or field-level security, or OpenSearch's field masking, limits what the user reads of an index.

    No API says so to every user, but the engines refuse all updates of such users. This one changes nothing, because
    no document has the id. False if there is no index, which the engines would create for the update.

    Elasticsearch refuses only users who may write to the index; False for others. OpenSearch refuses a bulk request
    with such an update before it checks the index permissions, so users need only the permission for bulk requests.
    """
    if not engine.get_indices(index):
        return False
    path = f"/{quote_index_name(index)}"
    if engine.info.engine_type is EngineType.OPENSEARCH:
        lines = encode_json({"update": {"_id": NO_DOCUMENT}}) + b"\n" + encode_json({"doc": {}}) + b"\n"
        answer = engine.send("POST", f"{path}/_bulk", body=lines, ndjson=True)
    else:
        answer = engine.send("POST", f"{path}/_update/{NO_DOCUMENT}", body=encode_json({"doc": {}}))
    return LIMITED_VIEW.search(root_cause(answer.body)[1]) is not None


def missing_privileges(task: IndexTask, has: Mapping[str, bool]) -> list[str]:
    """Privileges of a task that a user lacks."""
    return [name for name in task.privileges if not has[name]]


def privileges_remedy(lacking: list[str], index: str) -> str:
    """The remedy for missing privileges."""
    return (
        f"Give the user or API key the {_name_privileges(lacking)} on {index}, or use one that has them: "
        "docs/operations.md lists what each task needs."
    )


def _name_privileges(names: list[str]) -> str:
    return f"index privilege{'s' if len(names) > 1 else ''} {', '.join(names)}"


# Attempts to count while nobody writes to the index.
_ATTEMPTS = 3


def count_all_documents(engine: Engine, index: str, retrying: Retrier) -> int:
    """Refresh an index, count its documents by a search, and compare that with the documents on disk.

    While documents are written, the counts may differ by the number of writes.

    Args:
        retrying: Retries each request.

    Returns:
        The number of documents, without nested objects.

    Raises:
        IndexMismatch: searches of this user do not show all documents.
        IndexMissing, EngineError: see `Engine`.
    """
    mappings = retrying(lambda: require_index(engine, index)).mappings
    chunks = {"nested": "", "semantic_text": ".inference.chunks"}  # the nested objects of a field, by its type
    fields = dict(mapped_fields(mappings.get("properties", {})))
    nested = [f"{path}{chunks[kind]}" for path, field in fields.items() if (kind := field.get("type")) in chunks]
    body = {"size": 0, "aggs": {str(number): {"nested": {"path": path}} for number, path in enumerate(nested)}}
    for _ in range(_ATTEMPTS):
        before = retrying(lambda: engine.shard_states(index))
        retrying(lambda: engine.refresh(index))
        documents = retrying(lambda: engine.count(index))
        found = retrying(lambda: engine.search(index, body))["aggregations"] if nested else {}
        objects = sum(int(bucket["doc_count"]) for bucket in found.values())
        after = retrying(lambda: engine.shard_states(index))
        stored = sum(shard.documents for shard in after.values())
        writes = sum(shard.max_seq_no - before[number].max_seq_no for number, shard in after.items())
        if writes and nested:
            continue  # a write changes any number of nested objects
        if abs(stored - documents - objects) <= writes:
            return documents
        objects_found = f" with {pluralize(objects, 'nested object')}" if nested else ""
        raise IndexMismatch(
            f"{index} holds {pluralize(stored, 'document')}{' and nested objects' if nested else ''}, but searches of "
            f"this user find only {documents:,}{objects_found}",
            "Use a user or API key whose role shows all documents of the index (no document-level security), and take "
            f"out a search pipeline that hides documents (`GET {index}/_settings?include_defaults=true`).",
        )
    return documents


def require_all_visible(engine: Engine, index: str, retrying: Retrier) -> None:
    """Check that searches of this user show all documents, if the user has the index privilege `monitor`.

    Raises:
        IndexMismatch, EngineError: see `count_all_documents`.
    """
    with suppress(AccessDenied):  # only the privilege monitor shows what is hidden
        count_all_documents(engine, index, retrying)
