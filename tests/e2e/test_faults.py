"""Faults of `tests/faults` once, with a small load: those that no other test has. `benchmarks.reliability` runs all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.faults import disk, engine, process, wire
from tests.faults.bench import Bench, FaultNotFelt
from tests.faults.catalog import FAULTS
from tests.faults.compare import compare
from tests.faults.corpus import corpus
from tests.faults.fault import Fault
from tests.faults.servers import OwnServer, own_server

# A load that is held until its fault has happened may be short; others must still run when it comes.
COUNT, LONG = 1000, 3000
# Seconds in addition to a stop and a start; longer than a request waits for a frozen engine.
OUTAGE = 4.0
KILLS = 3
# A load that was over before the fault could happen says nothing: on a busy machine one of the two may come late.
TRIES = 3

# What faults without settings of their own never come near to: they take the server of the fault that does.
SMALL_REQUESTS = {"http.max_content_length": "1mb"}

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[Mapping[str, str]], OwnServer]]:
    """A function settings → server with them; faults with the same settings share one."""
    running: dict[tuple[tuple[str, str], ...], OwnServer] = {}
    with ExitStack() as stack:

        def with_settings(settings: Mapping[str, str]) -> OwnServer:
            key = tuple(settings.items())
            if key not in running:
                running[key] = stack.enter_context(own_server("es9", settings))
            return running[key]

        yield with_settings


# One of each kind: of the process, of the engine, of the wire, of the disk. The others are in the long run.
SAMPLE = {
    process.killed_ten_times,
    process.source_changed,
    engine.killed_before_sync,
    wire.cut_at_random_bytes,
    disk.quota,
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault.happen in SAMPLE else pytest.mark.long, id=fault.name)
        for fault in FAULTS
        if fault.happen is not process.undisturbed  # its documents are those of every other fault
    ],
)
def test_no_document_is_lost_duplicated_or_stale(
    fault: Fault,
    request: pytest.FixtureRequest,
    server: Callable[[Mapping[str, str]], OwnServer],
    fresh_index: Callable[[str], str],
    model: Path,
    tiny: Encoder,
    tmp_path: Path,
) -> None:
    if fault.happen is disk.full_for_letters and not disk.can_mount():
        pytest.skip("this user may not mount a small disk")
    own = server(fault.settings or SMALL_REQUESTS) if fault.server else None
    name = fault.engines[0]
    count = LONG if fault.server or fault.happen is wire.never_more_than else COUNT
    url = own.url if own else request.getfixturevalue(f"{name}_url")
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        bench = Bench(name, url, fresh_index(url), model, tiny, folder, corpus(count), OUTAGE, own, kills=KILLS)
        with closing(bench):
            bench.create(fault.shards, fault.index)
            try:
                summary = fault.happen(bench)
                break
            except FaultNotFelt:
                if number == TRIES - 1:
                    raise
    end = compare(bench)
    assert end.good, (end, summary)
    assert counts_add_up(summary)
    assert end.documents == len(bench.corpus.wanted)


def counts_add_up(summary: dict[str, Any]) -> bool:
    ended = ("indexed", "updated", "unchanged", "dead", "left")
    return bool(summary["read"] == sum(summary[name] for name in ended) + sum(summary["skipped"].values()))
