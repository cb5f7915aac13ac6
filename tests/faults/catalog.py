"""All faults, in the order of the table in docs/reliability.md.

Deleted and changed documents are in tests/engine/test_change_detection.py, blocks in
tests/engine/test_ingest_faults.py, broken checkpoints in tests/unit/ingest/test_checkpoint.py, SIGTERM in
tests/e2e/test_ingest_resume_sources.py.
"""

from __future__ import annotations

from tests.faults import disk, engine, process, wire, writers
from tests.faults.fault import EVERY_ENGINE, Fault

FAULTS = (
    Fault("a document in a hundred rejected by the mapping", process.undisturbed, EVERY_ENGINE),
    Fault("kill -9 at ten random moments", process.killed_ten_times),
    Fault("two loads of one source at once", process.two_at_once),
    Fault("two loads at once with separate state files", process.two_with_own_states),
    Fault("source changed between kill and resume", process.source_changed),
    Fault("texts and vectors changed by a pipeline", writers.altered_by_pipeline, ("es8", "opensearch")),
    Fault("clock set back", process.clock_set_back),
    Fault(
        "engine killed before it has synced its translog", engine.killed_before_sync, EVERY_ENGINE, server=True,
        index={"index.translog.durability": "async", "index.translog.sync_interval": "600s"},
    ),
    Fault("engine stopped for two minutes", engine.stopped, EVERY_ENGINE, server=True),
    Fault("engine frozen", engine.frozen, EVERY_ENGINE, server=True),
    Fault(
        "write queue of size 1", engine.write_queue_of_one, EVERY_ENGINE, server=True, shards=6,
        settings={"thread_pool.write.size": "1", "thread_pool.write.queue_size": "1"},
    ),
    Fault(
        "http.max_content_length of 1 MB", engine.small_requests_only, EVERY_ENGINE, server=True,
        settings={"http.max_content_length": "1mb"},
    ),
    Fault("flood stage: no room on the engine's disk", engine.flood_stage, EVERY_ENGINE, server=True),
    Fault("connections cut at random bytes", wire.cut_at_random_bytes),
    Fault("connections cut after 100,000 bytes", wire.never_more_than),
    Fault("disk full for the dead letters", disk.full_for_letters),
    Fault("quota on the size of files", disk.quota),
    Fault("state file overwritten with noise", disk.state_of_noise),
)  # fmt: skip
