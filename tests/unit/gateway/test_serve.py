"""The gateway's process."""

from __future__ import annotations

import gc
import sys

from es_sbert.gateway.serve import freeze_objects, tune_interpreter


def test_what_is_in_memory_is_left_out_of_later_collections() -> None:
    before = gc.get_freeze_count()
    try:
        freeze_objects()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_neither_threads_nor_collections_keep_the_event_loop_waiting() -> None:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        tune_interpreter()
        assert sys.getswitchinterval() < interval
        assert gc.get_threshold() > thresholds
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
