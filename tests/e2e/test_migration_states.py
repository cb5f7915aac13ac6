"""What is refused in every state of a migration: the message names commands that work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from es_sbert.bundle.local_registry import register_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.conftest import ENGINES
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import open_engine
from tests.engine.migration.support import Place, document, everything, interrupted, killed_after, make_place, models

pytestmark = pytest.mark.engine  # servers are requested while the tests run, which the fixtures do not show

Encoders = tuple[Encoder, Encoder]
_COUNT = 60


@pytest.fixture(scope="module")
def folders(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def encoders(folders: tuple[Path, Path]) -> Iterator[Encoders]:
    with (
        Encoder(str(folders[0]), precision="fp32", threads=1) as one,
        Encoder(str(folders[1]), precision="fp32", threads=1) as two,
    ):
        yield one, two


@dataclass
class Scene:
    """A migration in some state."""

    place: Place
    encoders: Encoders
    cli: Cli
    expected: dict[str, Json]
    names: dict[str, str]

    def run(self, *arguments: str | Path) -> Done:
        command = [*arguments, "--url", self.place.engine.info.url]
        return self.cli(*command)

    def used(self) -> str:
        """The index of the alias: `old`, `new` or `other`."""
        return next(key for key, name in self.names.items() if name == self.place.alias_target())

    def assert_complete(self) -> None:
        """No document of the alias is missing or outdated, and it accepts writes."""
        self.place.write({"last": document(9000)})
        expected = self.expected | {"last": document(9000)}
        found = self.place.contents()
        assert {key: source["version"] for key, source in found.items()} == {
            key: source["version"] for key, source in expected.items()
        }


def copying(scene: Scene) -> None:
    scene.place.migrate(scene.encoders[1], control=interrupted())


def held(scene: Scene) -> None:
    with killed_after(scene.place, "block_writes"):
        scene.place.migrate(scene.encoders[1])


def swapped(scene: Scene) -> None:
    with killed_after(scene.place, "update_aliases", times=2):  # the permit, and the swap
        scene.place.migrate(scene.encoders[1])


def finished(scene: Scene) -> None:
    assert scene.place.migrate(scene.encoders[1]).finished
    written = {"1": document(1, version=2), "new": document(5000)}
    scene.place.write(written)
    scene.place.delete("2")
    scene.expected |= written
    del scene.expected["2"]


def deleted(scene: Scene) -> None:
    finished(scene)
    scene.place.engine.delete_index(scene.place.index)


STATES: dict[str, tuple[Callable[[Scene], None], str]] = {
    "none": (lambda scene: None, "old"), "copying": (copying, "old"), "held": (held, "old"),
    "swapped": (swapped, "new"), "finished": (finished, "new"), "deleted": (deleted, "new"),
}  # fmt: skip
MIGRATE = ("index", "migrate", "ALIAS")
COMMANDS: dict[str, tuple[str, ...]] = {
    "--cancel": (*MIGRATE, "--cancel"),
    # They remove a block that a killed migration has left, before they are refused.
    "same options": (*MIGRATE, "--model", "second", "--precision", "fp32"),
    "other options": (*MIGRATE, "--model", "second", "--precision", "fp32", "--name", "OTHER"),
}
BEGUN = "a migration of ALIAS to NEW is not finished"
CANCEL = "cancel it: `es-sbert index migrate ALIAS --cancel`"
FINISH = "finish it: `es-sbert index migrate ALIAS`"
# State → command → text of its refusal.
CELLS: dict[str, dict[str, str]] = {
    "none": {"--cancel": "no migration of ALIAS is in progress"},
    "copying": {"other options": CANCEL},
    "swapped": {"--cancel": FINISH, "other options": FINISH},
    "finished": {
        "--cancel": "no migration of ALIAS is in progress",
        "same options": "`DELETE /OLD`",
        "other options": "There is nothing to do",
    },
    "deleted": {
        "--cancel": "no migration of ALIAS is in progress",
        "same options": "There is nothing to do",
        "other options": "There is nothing to do",
    },
}
CELLS["held"] = CELLS["copying"]
UNFINISHED = {"copying": BEGUN, "held": f"{BEGUN}, and writes to OLD are refused", "swapped": BEGUN}


@pytest.fixture
def make_scene(
    request: pytest.FixtureRequest, folders: tuple[Path, Path], encoders: Encoders, cli: Cli, tmp_path: Path
) -> Iterator[Callable[[str, str], Scene]]:
    """A migration of an index on an engine, in a state. Commands find the models by their names."""
    for folder, encoder in zip(folders, encoders, strict=True):
        register_model(folder, encoder.info.fingerprint, name=folder.name)
    with ExitStack() as stack:

        def make(engine: str, state: str) -> Scene:
            opened = stack.enter_context(open_engine(request.getfixturevalue(f"{engine}_url")))
            place = stack.enter_context(
                contextmanager(make_place)(opened, encoders[0], tmp_path / "dead.jsonl", _COUNT)
            )
            names = {
                "old": place.index,
                "new": f"{place.alias}-{encoders[1].info.fingerprint[:8]}",
                "other": f"{place.alias}-other",
            }
            expected = {key: source for key, source in everything().items() if int(key) < _COUNT}
            scene = Scene(place, encoders, cli, expected, names)
            begin, used = STATES[state]
            begin(scene)
            assert scene.used() == used
            return scene

        yield make


MakeScene = Callable[[str, str], Scene]


def filled(text: str, scene: Scene) -> str:
    names = {key.upper(): name for key, name in scene.names.items()} | {"ALIAS": scene.place.alias}
    return re.sub("|".join(names), lambda found: names[found[0]], text)


@pytest.mark.parametrize("state", CELLS)
def test_refusals_name_the_way_out_and_change_nothing(state: str, make_scene: MakeScene) -> None:
    scene, ways_out = make_scene("es9", state), set[str]()
    for command, text in CELLS[state].items():
        done = scene.run(*(filled(argument, scene) for argument in COMMANDS[command]))
        assert (done.code, filled(text, scene) in done.err) == (2, True), (command, done.err)
        ways_out |= set(re.findall(r"`(es-sbert index migrate [^`]*)`", done.err))
    assert scene.used() == STATES[state][1]
    if state in UNFINISHED:
        assert ways_out
    for number, way_out in enumerate(sorted(ways_out)):
        if number:  # each in the state as it was
            fresh = make_scene("es9", state)
            way_out = way_out.replace(scene.place.alias, fresh.place.alias)
        else:
            fresh = scene
        done = fresh.run(*shlex.split(way_out)[1:])
        assert done.code == 0, (way_out, done.err)
        fresh.assert_complete()


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "state"),
    [(engine, state) for state in STATES for engine in (ENGINES if "held" in state else ("es9",))],
)
def test_readers_and_writers_in_each_state(engine: str, state: str, make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(engine, state)
    alias, is_held = scene.place.alias, "held" in state
    found = scene.run("search", "--index", alias, "man", "--json")
    assert found.code == 0, found.err
    shown = scene.run("index", "show", alias)
    checked = scene.run("doctor", "--index", alias, "--precision", "fp32")
    assert shown.code == 0
    for said in (shown.err, checked.out):
        if state in UNFINISHED:
            assert filled(UNFINISHED[state], scene) in said
            assert ("--cancel" in said) == ("swapped" not in state)
        else:
            assert "is not finished" not in said
    assert "Set it to null" not in checked.out
    assert ("FAIL  migration" in checked.out) == is_held
    (tmp_path / "docs.jsonl").write_text(json.dumps({"id": "file"} | document(7000)) + "\n")
    options = ["--index", alias, "--retry-seconds", "1", "--precision", "fp32"]
    done = scene.run("ingest", *options, tmp_path / "docs.jsonl", "--id-field", "id")
    if is_held:
        assert done.code != 0
        assert f"`es-sbert index migrate {scene.place.alias_target()} --cancel`" in done.err, done.err
    else:
        assert done.code == 0, done.err
        scene.expected["file"] = document(7000)
    if is_held:  # by the name of the index, as the messages of the engine have it
        done = scene.run("index", "migrate", scene.place.alias_target(), "--cancel")
        assert done.code == 0, done.err
    in_place = scene.run("ingest", *options)
    assert in_place.code == 0, in_place.err
    scene.assert_complete()


def test_kept_index_is_explained(make_scene: MakeScene) -> None:
    """By doctor, which once advised to remove its block, and by commands that are used on its own name."""
    scene = make_scene("es9", "finished")
    text = filled("NEW has replaced OLD as the index of ALIAS", scene)
    checked = scene.run("doctor", "--index", scene.names["old"], "--precision", "fp32")
    assert text in checked.out
    assert "Set it to null" not in checked.out
    done = scene.run("index", "migrate", scene.names["old"], "--cancel")
    assert (done.code, text in done.err) == (2, True), done.err
