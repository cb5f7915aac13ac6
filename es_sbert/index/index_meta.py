"""Change the mapping of an index, especially `_meta.es_sbert`, while other processes change it too.

Engines replace `_meta` as a whole and have no conditional mapping updates. A writer that read `_meta` before another
one wrote it therefore erases the other's change. Two measures prevent that:

- Processes of one user on one machine take a file lock to change the mapping of an index one after the other. The
  operating system releases the lock of a process that is killed.
- Every writer reads its change back a short time later and repeats it if another machine has erased it.

A change can still be lost if a writer on another machine erases it just before the process that made it is killed, or
after that process has read it back. Long commands therefore check again at their end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from es_sbert.config import cache_folder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.mapping import VECTOR_TYPES
from es_sbert.messages import log_event

# Returns the body of `PUT /index/_mapping` for the current mapping, or None if the change is already there. `_meta` in
# the body must keep everything that belongs to others. The function is called again until it returns None.
MappingPlan = Callable[[IndexState], Json | None]

# Longest wait for other processes. If one holds the lock for longer, it is suspended or the engine hardly responds.
_LOCK_SECONDS = 30.0
# Another writer can erase a change only between its read and the end of its write. That takes about as long as the same
# two requests took here, so the pause is several times that long, within these limits.
_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 5.0
_MAX_WRITES = 8


def update_mapping(engine: Engine, index: IndexState, plan: MappingPlan, *, recheck: bool = True) -> IndexState:
    """Change the mapping of an index so that concurrent changes are kept, and make sure that the change stays.

    Args:
        index: The index as it was read earlier.
        plan: The change. An exception that it raises ends the update.
        recheck: Whether to wait for other machines' writes before the change is read back. If not, the caller checks
            again later.

    Returns:
        The index with the change.

    Raises:
        IndexMissing, IndexMismatch: the index was deleted or replaced, another program keeps erasing the change, or the
            engine would fail the shards (`require_index_knn`).
        EngineError: the engine failed; the change may be there. The same call completes it.
    """
    for writes in range(_MAX_WRITES + 1):
        with _mapping_lock(index):
            began = time.monotonic()
            state = _read_again(engine, index)
            body = plan(state)
            if body is None:
                return state
            if writes == _MAX_WRITES:
                break
            properties = (state.mappings.get("properties", {}), body.get("properties", {}))
            kinds = {field.get("type") for each in properties for _, field in mapped_fields(each)}
            if VECTOR_TYPES[engine.info.engine_type] in kinds:
                # Otherwise the engine fails the shards of the index, at once or later.
                require_index_knn(engine.info, state)
            engine.put_mapping(index.name, body)
            seconds = time.monotonic() - began
        if recheck or writes:
            # A change that was erased is read back later, at random, so that writers do not stay in step.
            longest = max(_MIN_PAUSE_SECONDS, 2 * seconds) * 2.0**writes
            time.sleep(min(_MAX_PAUSE_SECONDS, longest) * random.uniform(1, 2))
    raise IndexMismatch(
        f"the mapping of {index.name} has lost a change {_MAX_WRITES} times: another program replaces `_meta`, or the "
        "same command runs elsewhere with other options",
        "Stop the other program, or make it keep the key `es_sbert` of `_meta`. Then run the command again.",
    )


def require_index_knn(info: EngineInfo, state: IndexState, remedy: str | None = None) -> None:
    """Refuse an index that cannot have a vector field, see `EngineInfo.needs_index_knn`.

    Args:
        remedy: The remedy of the error; None for one that suits documents without vectors.

    Raises:
        IndexMismatch: the engine is OpenSearch 2, and the index was created without `index.knn`.
    """
    if not info.needs_index_knn or state.has_setting("index.knn"):
        return
    raise IndexMismatch(
        f"the index {state.name} was created without index.knn, and {info.label} fails all shards of such an index "
        "whenever its mapping changes, once it has a vector field",
        remedy
        or "The setting cannot be added later. Create an index that has it (`es-sbert index create NEW --text-field "
        f"FIELD`), copy the documents (`POST _reindex` from {state.name} to NEW), and embed them there (`es-sbert "
        "ingest --index NEW`). Or upgrade to OpenSearch 3, which does not need it.",
    )


def _read_again(engine: Engine, index: IndexState) -> IndexState:
    state = engine.get_index(index.name)
    if state is None:
        problem = f"the index {index.name} was deleted since it was read"
        raise engine.index_missing(index.name, problem, "Run the command again.")
    if state.uuid != index.uuid:
        raise IndexMismatch(f"the index {index.name} was replaced since it was read", "Run the command again.")
    return state


@contextmanager
def _mapping_lock(index: IndexState) -> Iterator[None]:
    """Keep out other processes of this user on this machine while the block runs, if possible."""
    with ExitStack() as stack:
        try:
            path = cache_folder() / "locks" / f"mapping-{index.uuid}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, timeout=_LOCK_SECONDS))
        except (OSError, UsageError) as error:
            # Continue without the lock: the process relies on reading its change back, like one on another machine.
            reason = error.message if isinstance(error, UsageError) else str(error)
            log_event("mapping_unlocked", f"changing the mapping of {index.name} without a lock: {reason}")
        yield
