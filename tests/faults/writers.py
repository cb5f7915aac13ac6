"""What other programs do to the index of a load: they set ingest pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engine.ingest_support import open_engine
from tests.faults.bench import Bench, Load, WrongEnd
from tests.faults.servers import call

_NEGATE = "def n = new ArrayList(); for (x in ctx.embedding) { n.add(-x); } ctx.embedding = n"
_PROCESSORS = [{"lowercase": {"field": "text"}}, {"script": {"if": "ctx.embedding != null", "source": _NEGATE}}]


def altered_by_pipeline(bench: Bench) -> dict[str, Any]:
    """A pipeline changes texts and vectors: first from the beginning of a load, then from the middle of one."""
    with altering_pipeline(bench):
        refused(bench, bench.start())
    with bench.held() as (load, hold), altering_pipeline(bench):
        hold.release()
        refused(bench, load)
    return bench.finish()


def refused(bench: Bench, load: Load) -> None:
    """Wait for the end of a load that finds out what the pipeline does."""
    said = load.end(2)
    if "index.default_pipeline" not in said or not bench.state.exists():
        raise WrongEnd(f"it does not name the pipeline: {said}")


@contextmanager
def altering_pipeline(bench: Bench) -> Iterator[None]:
    """The index has a default pipeline until the block ends."""
    call(bench.url, "PUT", f"/_ingest/pipeline/{bench.index}", {"processors": _PROCESSORS})
    with open_engine(bench.url) as engine:
        engine.put_settings(bench.index, {"index.default_pipeline": bench.index})
        try:
            yield
        finally:
            engine.put_settings(bench.index, {"index.default_pipeline": None})
            call(bench.url, "DELETE", f"/_ingest/pipeline/{bench.index}", None)
