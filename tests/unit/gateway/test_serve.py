"""The gateway's process."""

from __future__ import annotations

import gc

from es_sbert.gateway.serve import freeze_objects


def test_what_is_in_memory_is_left_out_of_later_collections() -> None:
    before = gc.get_freeze_count()
    try:
        freeze_objects()
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
