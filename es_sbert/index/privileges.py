"""Which privileges each task needs of an Elasticsearch with security, found by trial and kept true by tests.

OpenSearch's security plugin has no API by which a user may ask what it may do: there, an action that is refused names
the permission itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from es_sbert.engines.protocol import Engine, Flavour, Json
from es_sbert.errors import AccessDenied

# Of the cluster: the version is asked for first of all.
CLUSTER_PRIVILEGE = "monitor"

_LOOK = ("read", "view_index_metadata")
_LOAD = (*_LOOK, "index", "maintenance")


@dataclass(frozen=True)
class Task:
    """Something that a user does with an index.

    Attributes:
        words: What, after "may".
        privileges: The least index privileges that it takes.
    """

    words: str
    privileges: tuple[str, ...]


SEARCH = Task("search and show", _LOOK)
LOAD = Task("load documents into", _LOAD)
CREATE = Task("create and load", (*_LOAD, "create_index"))
PRUNE = Task("prune", (*_LOAD, "delete"))
# `manage` includes view_index_metadata, maintenance and create_index.
LOAD_SETTINGS = Task("switch off refreshes and replicas of", ("read", "index", "manage"))
# Of the old index and its aliases: to block writes, to note how far it is, and to move the aliases.
MIGRATE_FROM = Task("migrate", ("read", "manage"))
MIGRATE_TO = Task("create, fill and swap in", ("read", "index", "delete", "manage"))
ADOPT = Task("adopt the vectors of", ("read", "index", "manage"))
TASKS = (SEARCH, LOAD, CREATE, PRUNE, LOAD_SETTINGS)


def granted(engine: Engine, index: str, privileges: Iterable[str]) -> Mapping[str, bool] | None:
    """Which index privileges the user or API key has; None where security is off or the engine does not tell.

    Raises:
        EngineError: the engine failed.
    """
    if engine.info.flavour is Flavour.OPENSEARCH:
        return None
    names = sorted(set(privileges))
    body: Json = {"index": [{"names": [index], "privileges": names}]}
    answer = engine.ask("/_security/user/_has_privileges", body=body)
    if answer is None:
        return None
    found: Json = answer.get("index", {}).get(index, {})
    return {name: bool(found.get(name, False)) for name in names}


def require(engine: Engine, index: str, task: Task) -> None:
    """Make sure that the user may do it, before anything is done.

    Raises:
        AccessDenied: a privilege is missing; the remedy names it.
        EngineError: the engine failed.
    """
    has = granted(engine, index, task.privileges)
    lacking = missing(task, has) if has is not None else []
    if lacking:
        raise AccessDenied(
            f"this user or API key may not {task.words} {index}: it lacks the index privilege "
            f"{' and '.join(lacking)} ({engine.info.label} at {engine.info.url})",
            remedy(lacking, index),
        )


def missing(task: Task, has: Mapping[str, bool]) -> list[str]:
    """Privileges of a task that a user lacks."""
    return [name for name in task.privileges if not has[name]]


def remedy(lacking: list[str], index: str) -> str:
    """What to do about missing privileges."""
    many = "privileges" if len(lacking) > 1 else "privilege"
    return (
        f"Give the user or API key the index {many} {', '.join(lacking)} on {index}, or use one that has them: "
        "docs/operations.md lists what each task needs."
    )
