"""`es-sbert index migrate` as a user types it, killed at several moments."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.migration.alias_swap import WRITE_BLOCK_SETTING
from es_sbert.migration.migration_state import MigrationPhase, read_migration_state
from es_sbert.migration.prepare_migration import new_index_name
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import open_engine
from tests.engine.migration.support import Place, document, make_place, models
from tests.faulty_proxy import holding

pytestmark = pytest.mark.one_engine

COUNT = 500


@pytest.fixture(scope="module")
def two_models(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def place(engine_url: str, two_models: tuple[Path, Path], tmp_path: Path) -> Iterator[Place]:
    with open_engine(engine_url) as engine, Encoder(str(two_models[0]), precision="fp32", threads=1) as encoder:
        yield from make_place(engine, encoder, tmp_path / "first.jsonl", COUNT)


@pytest.fixture(scope="module")
def second(two_models: tuple[Path, Path]) -> Iterator[Encoder]:
    with Encoder(str(two_models[1]), precision="fp32", threads=1) as encoder:
        yield encoder


Run = Callable[..., Done]


@pytest.fixture
def run(cli: Cli, place: Place) -> Run:
    """`es-sbert index migrate ALIAS OPTIONS…` in this process."""
    return lambda *options: cli("index", "migrate", place.alias, "--url", place.engine.info.url, *options)


def moments(engine: Engine, source: str, target: str) -> dict[str, Callable[[], bool]]:
    """What can be seen of both indices from outside, in the order in which it comes."""

    def phase(wanted: MigrationPhase) -> bool:
        state = engine.get_index(target)
        note = None if state is None else read_migration_state(state)
        return note is not None and note.phase is wanted

    def vectors() -> int:
        if engine.get_index(target) is None:
            return 0
        engine.refresh(target)
        return engine.count(target, {"exists": {"field": "embedding"}})

    def held() -> bool:
        state = engine.get_index(source)
        return state is not None and state.settings.get(WRITE_BLOCK_SETTING) == "true"

    return {
        "made": lambda: engine.get_index(target) is not None,
        "embedding": lambda: vectors() > 0,
        "embedded": lambda: vectors() >= COUNT,
        "closing": lambda: phase(MigrationPhase.CLOSING),
        "held": held,
    }


def is_es9(engine: Engine) -> bool:
    """Where every moment is tried. Engines differ in how a copy goes on, and in how a block is lifted."""
    return engine.info.engine_type is EngineType.ELASTICSEARCH and engine.info.version >= (9, 0, 0)


def kill_at(has_come: Callable[[], bool], place: Place, *options: str | Path) -> None:
    """Start the command, and SIGKILL it at a moment that it cannot get beyond."""
    with holding(place.engine.info.url, has_come, paths="") as (url, hold):
        command = [sys.executable, "-m", "es_sbert", "index", "migrate", place.alias, "--url", url, *map(str, options)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            while child.poll() is None and not hold.reached.wait(0.05):
                pass
        finally:
            child.kill()
            output = child.communicate()[0]
    assert child.returncode == -signal.SIGKILL, output


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True)
def test_closed_terminal_does_not_leave_writes_refused(
    place: Place, run: Run, two_models: tuple[Path, Path], second: Encoder
) -> None:
    """Closing it sends SIGHUP twice, and messages can no longer be printed."""
    engine = place.engine
    target = new_index_name(place.alias, second.info.fingerprint, place.index)
    held = moments(engine, place.index, target)["held"]
    with holding(engine.info.url, held, paths="") as (url, hold):
        command = [sys.executable, "-m", "es_sbert", "index", "migrate", place.alias, "--url", url, "--model"]
        process, terminal = pty.fork()
        if process == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup`
            os.execv(sys.executable, [*command, str(two_models[1]), "--precision", "fp32", "--max-write-block", "600"])
        while not hold.reached.is_set():
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 1 << 16)  # an error if the command has ended
        os.close(terminal)
        os.kill(process, signal.SIGHUP)
        hold.release()
        _, status = os.waitpid(process, 0)
    assert (os.waitstatus_to_exitcode(status), held()) == (130, False)
    place.write({"1": document(1, version=2)})
    done = run("--cancel", "--json")
    assert (done.code, done.summary) == (0, {"deleted": [target]})
    assert [state.name for state in engine.resolve_indices(f"{place.alias}-*")] == [place.index]


def test_migration_resumes_after_kill(place: Place, run: Run, two_models: tuple[Path, Path], second: Encoder) -> None:
    engine = place.engine
    target = new_index_name(place.alias, second.info.fingerprint, place.index)
    options = ("--model", two_models[1], "--precision", "fp32", "--threads", "1", "--json")
    expected = {str(number): document(number) for number in range(COUNT)}
    every = moments(engine, place.index, target)
    for number, moment in enumerate(every if is_es9(engine) else ("embedding", "held")):
        has_come = every[moment]
        kill_at(has_come, place, *options)
        if moment == "held":
            [refused] = engine.bulk(place.alias, b'{"index":{"_id":"x"}}\n{"text":"man"}\n')
            assert refused.status == 403
            continue
        # Other writers know nothing of it.
        expected[str(number)] = document(number, version=2)
        expected[f"new-{number}"] = document(5000 + number)
        place.write({key: expected[key] for key in (str(number), f"new-{number}")})
        place.delete(str(100 + number))
        del expected[str(100 + number)]
    done = run(*options)
    assert done.code == 0, done.err
    assert f"{place.index} accepts writes again; an earlier run had blocked them" in done.err
    summary = done.summary
    assert summary["writes_refused_seconds"] > 0
    assert (summary["finished"], summary["resumed"], summary["target"]) == (True, True, target)
    assert place.alias_target() == target
    place.embed(second, place.alias)
    place.assert_holds(expected, second)
