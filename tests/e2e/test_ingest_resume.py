"""Loads that end in the middle, however they end: the same command completes them, document by document."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.loading import load_encoder
from tests.engine.ingest_support import contents, letters, open_engine, same_vectors, sentences, vector_of, write_jsonl

COMMAND = [sys.executable, "-m", "es_sbert", "ingest"]
COUNT = 8000
# The mapping takes `price` for a number from the first document on.
REJECTED = 100


def documents() -> list[dict[str, Any]]:
    """One in a hundred is refused by the mapping."""
    made = sentences(COUNT)
    for document in made[50::REJECTED]:
        document["price"] = "not a number"
    return made


class Loads:
    """Runs one and the same command, in small steps, so that there are many moments to end it at."""

    def __init__(self, url: str, index: str, model: Path, folder: Path) -> None:
        self.url, self.index, self.folder = url, index, folder
        self.docs = folder / "docs.jsonl"
        self.state = folder / f"docs.jsonl.{index}.load-state"
        self.dead = folder / f"{index}.dead-letters.jsonl"
        self._arguments = [
            *COMMAND, "--index", index, "--url", url, "--model", str(model), "--precision", "fp32", "--threads", "1",
            "--id-field", "id", "--batch-window", "32", "--bulk-bytes", "20000", "--json", str(self.docs),
        ]  # fmt: skip

    def take_from(self, *source: str) -> None:
        """Load from elsewhere than `docs`."""
        self._arguments[-1:] = source

    def start(self, *more: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._arguments, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder, **options
        )

    def to_the_end(self, *more: str) -> dict[str, Any]:
        """A whole run; its summary."""
        process = self.start(*more)
        out, err = process.communicate(timeout=300)
        assert process.returncode in (0, 1), err.decode()
        summary: dict[str, Any] = orjson.loads(out)
        assert summary["stopped"] is None
        assert not self.state.exists()
        return summary

    def end_in_the_middle(self, number: signal.Signals, seconds: float, *, written: bool = True) -> tuple[int, str]:
        """Start, wait until it loads, then so long, then for the first document; send a signal; exit code, messages."""
        before = self._stamp()
        process = self.start()
        while process.poll() is None and self._stamp() in (before, []):
            time.sleep(0.005)
        time.sleep(seconds)
        while written and process.poll() is None and not self._written():
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()

    def _written(self) -> int:
        """Documents in the index."""
        with open_engine(self.url) as engine:
            if engine.get_index(self.index) is None:
                return 0
            engine.refresh(self.index)
            return engine.count(self.index)

    def _stamp(self) -> list[tuple[str, int, int]]:
        """Changes with every write to the state."""
        found = []
        for path in (self.state, self.state.with_name(f"{self.state.name}-wal")):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.name, status.st_mtime_ns, status.st_size))
        return found

    def check(self, wanted: list[dict[str, Any]], encoder: Encoder) -> None:
        """The index holds what was wanted, each with its own text's vector, and each rejected one has one letter."""
        bad = {document["id"] for document in wanted if isinstance(document["price"], str)}
        good = {document["id"]: document for document in wanted if document["id"] not in bad}
        stored = contents(self.url, self.index)
        assert set(stored) == set(good)
        for key, document in good.items():
            assert {name: stored[key][name] for name in document} == document
        keys = sorted(good)
        vectors = encoder.encode([good[key]["text"] for key in keys]).vectors
        assert all(same_vectors(vector_of(stored[key]), vector) for key, vector in zip(keys, vectors, strict=True))
        assert sorted(letter["id"] for letter in letters(self.dead)) == sorted(bad)


@pytest.fixture(scope="module")
def tiny(model: Path) -> Any:
    with load_encoder(str(model), precision="fp32", threads=1) as encoder:
        yield encoder


@pytest.fixture
def loads(es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path) -> Loads:
    made = Loads(es9_url, fresh_index(es9_url), model, tmp_path)
    write_jsonl(made.docs, documents())
    return made


def test_killed_at_ten_random_moments_a_load_ends_as_if_nothing_had_happened(loads: Loads, tiny: Encoder) -> None:
    chance = random.Random(0)
    for _ in range(10):
        code, err = loads.end_in_the_middle(signal.SIGKILL, chance.uniform(0, 0.08), written=False)
        assert code == -signal.SIGKILL, err
        assert loads.state.exists()  # else the load had ended, and the next would be another one
    summary = loads.to_the_end()
    assert summary["read"] == COUNT
    loads.check(documents(), tiny)


def test_a_load_goes_on_where_it_was_terminated(loads: Loads, tiny: Encoder) -> None:
    code, err = loads.end_in_the_middle(signal.SIGTERM, 0.3)
    assert code == 130, err
    assert "the same command goes on where it was" in err
    already = len(contents(loads.url, loads.index))
    assert 0 < already < COUNT
    summary = loads.to_the_end()
    assert summary["resumed"]
    assert summary["unchanged"] == already
    assert summary["indexed"] == COUNT - already - COUNT // REJECTED
    loads.check(documents(), tiny)


def test_a_source_that_changes_before_the_load_goes_on(loads: Loads, tiny: Encoder) -> None:
    code, err = loads.end_in_the_middle(signal.SIGKILL, 0.3)
    assert code == -signal.SIGKILL, err
    changed = documents()
    for document in changed[::3]:
        document["text"] += " Since then it has changed."
    for document in changed[1::3]:
        if not isinstance(document["price"], str):
            document["price"] += 1
    changed.append({"id": "new", "text": "a new one", "price": 1.0})
    chance = random.Random(1)
    chance.shuffle(changed)
    # The mapping's number must be met before what it refuses.
    changed.sort(key=lambda document: isinstance(document["price"], str))
    write_jsonl(loads.docs, changed)
    loads.to_the_end()
    loads.dead.unlink()  # letters of documents as they were before, beside those of now
    assert loads.to_the_end()["indexed"] == 0
    loads.check(changed, tiny)


def test_a_broken_state_costs_time_alone(loads: Loads, tiny: Encoder) -> None:
    code, err = loads.end_in_the_middle(signal.SIGKILL, 0.3)
    assert code == -signal.SIGKILL, err
    for suffix in ("", "-wal"):
        path = Path(f"{loads.state}{suffix}")
        if path.exists():
            path.write_bytes(os.urandom(path.stat().st_size + 5000))
    summary = loads.to_the_end()
    assert "was broken" in summary["notes"][0]
    assert not summary["resumed"]
    assert len({letter["run"] for letter in letters(loads.dead)}) <= 2
    loads.dead.unlink()
    assert loads.to_the_end()["indexed"] == 0
    loads.check(documents(), tiny)


def test_a_disk_that_is_full_stops_the_load_with_the_way_on(loads: Loads, tiny: Encoder) -> None:
    def small_disk() -> None:
        # Stands in for a full disk: no file of this process may grow beyond.
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    process = loads.start(preexec_fn=small_disk)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err.decode()
    assert "cannot be written" in err.decode()
    assert "run the same command again" in err.decode()
    assert "Traceback" not in err.decode()
    loads.to_the_end()
    loads.check(documents(), tiny)


def test_two_loads_of_one_source_at_once(loads: Loads, tiny: Encoder) -> None:
    first = loads.start()
    while not loads.state.exists() and first.poll() is None:
        time.sleep(0.01)
    second = loads.start()
    _, err = second.communicate(timeout=120)
    _, first_err = first.communicate(timeout=120)
    assert first.returncode == 1, first_err.decode()
    if second.returncode == 2:
        assert "another load is running with the state file" in err.decode()
    else:
        assert second.returncode == 1, err.decode()  # the first had ended
        loads.dead.unlink()
        loads.to_the_end()
    loads.check(documents(), tiny)


def test_two_loads_with_states_of_their_own_double_nothing(loads: Loads, tiny: Encoder) -> None:
    both = [
        loads.start("--state", f"{name}.state", "--dead-letters", f"{name}.dead") for name in ("first", "second")
    ]  # fmt: skip
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1, err.decode()
    first, second = (loads.folder / f"{name}.dead" for name in ("first", "second"))
    assert sorted(x["id"] for x in letters(first)) == sorted(x["id"] for x in letters(second))
    first.rename(loads.dead)
    loads.check(documents(), tiny)


def test_dead_letters_are_tried_again(loads: Loads, tiny: Encoder) -> None:
    loads.to_the_end()
    mended = documents()
    for document in mended:
        if isinstance(document["price"], str):
            document["price"] = 1.0
    # Half of the letters are mended by hand; for one of them the index has got a later version meanwhile.
    written = letters(loads.dead)
    for letter in written[: len(written) // 2]:
        letter["document"]["price"] = 1.0
    loads.dead.write_bytes(b"".join(orjson.dumps(letter) + b"\n" for letter in written))
    later = {"id": written[0]["id"], "text": "a later word", "price": 2.0}
    write_jsonl(loads.folder / "later.jsonl", [later])
    command = loads._arguments[:-1]
    subprocess.run([*command, str(loads.folder / "later.jsonl")], check=True, cwd=loads.folder, capture_output=True)

    done = subprocess.run([*command, "--retry", str(loads.dead)], cwd=loads.folder, capture_output=True)
    assert done.returncode == 1, done.stderr.decode()
    summary = orjson.loads(done.stdout)
    half = len(written) // 2
    assert (summary["read"], summary["indexed"], summary["dead"]) == (len(written), half - 1, len(written) - half)
    assert summary["skipped"]["superseded"] == 1
    assert sorted(letter["id"] for letter in letters(loads.dead)) == sorted(x["id"] for x in written[half:])
    assert contents(loads.url, loads.index)[later["id"]]["price"] == 2.0
    assert [path.name for path in loads.folder.iterdir() if "retried" in path.name or "state" in path.name] == []
