"""What is said of a failure on the cluster."""

from __future__ import annotations

from es_sbert.ingest.ray_cluster import remote_error_summary

# As Ray writes it: the worker's traceback, and that of Ray's own error, which came of it.
REMOTE = """ray::MapWorker(MapBatches(PartLoader)).submit() (pid=1, ip=192.0.2.2)
    ^^^^^^^^^^^^^^^^^^
  File "/somewhere/worker.py", line 12, in __call__
    raise ValueError("the true reason")
ValueError: the true reason

The above exception was the direct cause of the following exception:

ray::MapWorker(MapBatches(PartLoader)).submit() (pid=1, ip=192.0.2.2)
  File "/somewhere/else.py", line 3, in _submit
    for block in blocks:
ray.exceptions.UserCodeException: UDF failed to process a data block.
To change retry attempts, configure it."""


def test_summary_is_the_root_cause() -> None:
    assert remote_error_summary(RuntimeError(REMOTE)) == "ValueError: the true reason"
    assert remote_error_summary(RuntimeError("The node was lost.\n  more about it")) == "The node was lost."
    assert remote_error_summary(RuntimeError()) == "RuntimeError"
