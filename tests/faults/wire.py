"""What happens between a load and its engine."""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.engine.relay import Relay
from tests.faults.bench import Bench, FaultNotFelt


def cut_at_random_bytes(bench: Bench) -> dict[str, Any]:
    """Every connection is cut after a random number of bytes, in either direction, with a reset or without."""
    chance, lock = random.Random(0), threading.Lock()
    cutting = threading.Event()

    def limit() -> tuple[int, bool] | None:
        if not cutting.is_set():
            return None
        with lock:
            return int(2 ** chance.uniform(6, 20)), chance.random() < 0.5

    with Relay(bench.url, limit) as relay:
        load = bench.start(url=relay.url)
        bench.wait_for_part(load, 0.05)
        cutting.set()
        relay.drop()
        summary = bench.ended(load)
        return _felt(relay, summary)


def never_more_than(bench: Bench) -> dict[str, Any]:
    """Every connection is cut after 100,000 bytes, as some proxies answer what is too large for them."""
    bench.options = ("--batch-window", "512")
    with Relay(bench.url, lambda: (100_000, True)) as relay:
        return _felt(relay, bench.ended(bench.start(url=relay.url)))


def _felt(relay: Relay, summary: dict[str, Any]) -> dict[str, Any]:
    if relay.cuts < 3 or not summary["retries"]:
        raise FaultNotFelt(f"{relay.cuts} connections were cut, {summary['retries']} sent again")
    return summary
