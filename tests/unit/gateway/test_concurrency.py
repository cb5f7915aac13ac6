"""Work of several requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from es_sbert.gateway.concurrency import INLINE_BYTES, offload_steps

LARGE = INLINE_BYTES + 1


@pytest.mark.parametrize("size", [1, LARGE])
def test_offload_steps_returns_the_generator_result(size: int) -> None:
    def steps() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    assert asyncio.run(offload_steps(size, steps())) == "done"


@pytest.mark.parametrize("size", [1, LARGE])
def test_offload_steps_raises_step_errors(size: int) -> None:
    def steps() -> Generator[None, None, str]:
        yield
        raise ValueError("of the second step")

    with pytest.raises(ValueError, match="of the second step"):
        asyncio.run(offload_steps(size, steps()))


def test_short_work_interleaves_with_long_work() -> None:
    done: list[str] = []
    ended = False

    def endless() -> Generator[None, None, None]:
        while not ended:
            yield
        done.append("long")

    def short() -> Generator[None, None, None]:
        yield
        done.append("short")

    async def run() -> None:
        nonlocal ended
        # More of them than there are threads.
        long = [asyncio.create_task(offload_steps(LARGE, endless())) for _ in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await offload_steps(LARGE, short())
        ended = True
        await asyncio.gather(*long)

    asyncio.run(run())
    assert done == ["short"] + 8 * ["long"]
