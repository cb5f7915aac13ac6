"""Work of several requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from es_sbert.gateway.tasks import SMALL_BYTES, run_in_steps

LARGE = SMALL_BYTES + 1


@pytest.mark.parametrize("size", [1, LARGE])
def test_steps_give_what_the_generator_returns(size: int) -> None:
    def steps() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    assert asyncio.run(run_in_steps(size, steps())) == "done"


@pytest.mark.parametrize("size", [1, LARGE])
def test_an_error_in_a_step_comes_back(size: int) -> None:
    def steps() -> Generator[None, None, str]:
        yield
        raise ValueError("of the second step")

    with pytest.raises(ValueError, match="of the second step"):
        asyncio.run(run_in_steps(size, steps()))


def test_long_work_lets_short_work_that_comes_later_have_its_turn() -> None:
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
        long = [asyncio.create_task(run_in_steps(LARGE, endless())) for _ in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await run_in_steps(LARGE, short())
        ended = True
        await asyncio.gather(*long)

    asyncio.run(run())
    assert done == ["short"] + 8 * ["long"]
