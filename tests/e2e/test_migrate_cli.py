"""`es-sbert index migrate` as a user types it, killed at several moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.loading import load_encoder
from es_sbert.migration.state import Phase, read_migration
from es_sbert.migration.target import target_name
from tests.engine.ingest_support import open_engine
from tests.engine.migration.support import Place, document, make_place, models

COUNT = 1200


@pytest.fixture(scope="module")
def two_models(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def place(engine_url: str, two_models: tuple[Path, Path], tmp_path: Path) -> Iterator[Place]:
    with (
        open_engine(engine_url) as engine,
        load_encoder(str(two_models[0]), precision="fp32", threads=1) as encoder,
    ):
        yield from make_place(engine, encoder, tmp_path / "first.jsonl", COUNT)


@pytest.fixture(scope="module")
def second(two_models: tuple[Path, Path]) -> Iterator[Encoder]:
    with load_encoder(str(two_models[1]), precision="fp32", threads=1) as encoder:
        yield encoder


def command(place: Place, *options: str | Path) -> list[str]:
    return [sys.executable, "-m", "es_sbert", "index", "migrate", place.alias, "--url", place.engine.info.url,
            *map(str, options)]  # fmt: skip


def run(place: Place, folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(place, *options), capture_output=True, text=True, cwd=folder, check=False, timeout=300
    )


def moments(engine: Engine, target: str) -> dict[str, Callable[[], bool]]:
    """What can be seen of the new index from outside, in the order in which it comes."""

    def phase(wanted: Phase) -> bool:
        state = engine.get_index(target)
        note = None if state is None else read_migration(state)
        return note is not None and note.phase is wanted

    def vectors() -> int:
        if engine.get_index(target) is None:
            return 0
        engine.refresh(target)
        return engine.count(target, {"exists": {"field": "embedding"}})

    return {
        "made": lambda: engine.get_index(target) is not None,
        "embedding": lambda: vectors() > 0,
        "embedded": lambda: vectors() == COUNT,
        "closing": lambda: phase(Phase.CLOSING),
    }


def test_killed_at_any_moment_it_goes_on(
    place: Place, two_models: tuple[Path, Path], second: Encoder, tmp_path: Path
) -> None:
    engine = place.engine
    target = target_name(place.alias, second.info.fingerprint, place.index)
    options = ("--model", two_models[1], "--precision", "fp32", "--threads", "1", "--json")
    expected = {str(number): document(number) for number in range(COUNT)}
    kills = 0
    for number, (moment, has_come) in enumerate(moments(engine, target).items()):
        child = subprocess.Popen(
            command(place, *options), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        while child.poll() is None and not has_come():
            time.sleep(0.005)
        killed = child.poll() is None
        if killed:
            os.kill(child.pid, signal.SIGKILL)
        output = child.communicate()[0]
        assert killed or child.returncode == 0, (moment, output)
        kills += killed
        # Other writers know nothing of it.
        expected[str(number)] = document(number, version=2)
        expected[f"new-{number}"] = document(5000 + number)
        place.write({key: expected[key] for key in (str(number), f"new-{number}")})
        place.delete(str(100 + number))
        del expected[str(100 + number)]
    assert kills >= 2
    done = run(place, tmp_path, *options)
    if done.returncode == 2:
        assert "already" in done.stderr  # the last one was not killed in time
    else:
        assert done.returncode == 0, done.stderr
        summary = orjson.loads(done.stdout)
        assert (summary["finished"], summary["resumed"], summary["target"]) == (True, True, target)
    assert place.behind() == target
    place.embed(second, place.alias)
    place.assert_holds(expected, second)
    dropped = run(place, tmp_path, "--drop", "--yes")
    assert (dropped.returncode, dropped.stdout) == (0, "")
    assert dropped.stderr == f"deleted {place.index}\n"


def test_what_it_says_and_refuses(place: Place, two_models: tuple[Path, Path], second: Encoder, tmp_path: Path) -> None:
    first, other = two_models
    for options, code, said in (
        (["--drop"], 2, "nobody is there to be asked"),
        (["--drop", "--yes"], 2, "no migration has made"),
        (["--drop", "--rollback"], 2, "exclude each other"),
        (["--rollback"], 0, "no migration of"),
        (["--model", str(first)], 2, "There is nothing to do"),
    ):
        done = run(place, tmp_path, *options)
        assert (done.returncode, done.stdout) == (code, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    done = run(place, tmp_path, "--model", other, "--precision", "fp32")
    target = target_name(place.alias, second.info.fingerprint, place.index)
    assert done.returncode == 0, done.stderr
    assert f"{place.alias} stands for {target} now" in done.stderr
    assert "--drop" in done.stderr.splitlines()[-1]
