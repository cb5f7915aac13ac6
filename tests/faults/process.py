"""What happens to the process of a load, its clock and its source."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import orjson

from tests.engine.ingest_support import letters
from tests.faults.bench import Bench, WrongEnd
from tests.faults.corpus import corpus

_CLOCK = Path(__file__).parent / "clock"


def undisturbed(bench: Bench) -> dict[str, Any]:
    """Nothing happens; one document in a hundred is refused by the mapping."""
    return bench.finish()


def killed_ten_times(bench: Bench) -> dict[str, Any]:
    """SIGKILL at ten random moments, the first before anything is in, the last when most of it is."""
    chance = random.Random(0)
    for number in range(bench.kills):
        part = 0.8 / bench.kills * (number and number + chance.random())
        bench.kill_in_the_middle(chance.uniform(0, 0.02), part=part)
    return bench.finish()


def two_at_once(bench: Bench) -> dict[str, Any]:
    """The same command twice: the second is refused while the first runs."""
    with bench.held() as (first, hold):
        said = bench.start().end(2)
        if "another load is running with the state file" not in said:
            raise WrongEnd(f"it does not say why: {said}")
        hold.release()
        return bench.ended(first)


def two_with_own_states(bench: Bench) -> dict[str, Any]:
    """Two loads of one source at once that know nothing of each other."""
    other = bench.folder / "other"
    first = bench.start("--state", f"{other}.state", "--dead-letters", f"{other}.letters")
    second = bench.start()
    first.end(1)
    summary = bench.ended(second)
    if sorted(map(_about, letters(Path(f"{other}.letters")))) != sorted(map(_about, letters(bench.letters))):
        raise WrongEnd("the two loads have other dead letters")
    return summary


def _about(letter: dict[str, Any]) -> tuple[int, str]:
    return letter["line"], letter["id"] or ""


def source_changed(bench: Bench) -> dict[str, Any]:
    """Between SIGKILL and the next command, a third of the texts and the order of the source change."""
    bench.kill_in_the_middle()
    bench.corpus = corpus(bench.corpus.size, changed=True)
    bench.corpus.write(bench.source)
    summary = bench.finish()
    # Letters of the documents as they were stand beside those of now: a whole pass writes the latter alone.
    bench.letters.unlink()
    again = bench.finish()
    if again["indexed"] or again["updated"]:
        raise WrongEnd(f"the load before was not whole: {again}")
    return summary


def clock_set_back(bench: Bench) -> dict[str, Any]:
    """The wall clock falls back by an hour, twice a second, all the time; the load is killed and goes on.

    Then a dead document comes with a later version, by a clock that was set back again, and its letter is retried:
    the later version must stay.
    """
    environment = {"PYTHONPATH": str(_CLOCK)}
    with bench.held(environment=environment) as (load, _):
        load.send(signal.SIGKILL)
        load.end(-signal.SIGKILL)
    summary = bench.ended(bench.start(environment=environment | {"TEST_CLOCK_START": "-86400"}))
    victim = sorted(bench.corpus.dead)[0]
    later = {"id": victim, "text": "A later word.", "price": 2.0}
    source = bench.folder / "later.jsonl"
    source.write_bytes(orjson.dumps(later) + b"\n")
    whole, bench.arguments = bench.arguments, [str(source)]
    bench.ended(bench.start(environment=environment | {"TEST_CLOCK_START": "-864000"}))
    bench.arguments = whole
    written = letters(bench.letters)
    for letter in written:
        if letter["id"] == victim:
            letter["document"]["price"] = 1.0  # mended by hand, but too late
    bench.letters.write_bytes(b"".join(orjson.dumps(letter) + b"\n" for letter in written))
    retried = bench.finish("--retry", str(bench.letters))
    if retried["skipped"]["superseded"] != 1:
        raise WrongEnd(f"an earlier version took the place of a later one: {retried}")
    bench.corpus.wanted[victim] = later
    bench.corpus.dead.remove(victim)
    return summary
