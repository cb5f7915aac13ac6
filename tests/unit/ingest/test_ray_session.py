"""What is said of a failure on the cluster."""

from __future__ import annotations

import pytest
import ray

from es_sbert.ingest.ray_actors import remote_error_summary
from es_sbert.ingest.ray_runner import LOCAL_CLUSTER, ray_connection

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


def test_nothing_that_ray_prints_reaches_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread prints that a node was lost whenever it hears of it, also while Ray starts or shuts down."""
    monkeypatch.setattr(ray, "init", lambda **options: print("(raylet) a node was lost"))
    monkeypatch.setattr(ray, "shutdown", lambda: print("(raylet) another node was lost"))
    with ray_connection(LOCAL_CLUSTER):
        print("(raylet) a third node was lost")
    assert capsys.readouterr().out == ""
