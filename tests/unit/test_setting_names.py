"""The library names settings as Python programs write them, and while a command runs as its options."""

from __future__ import annotations

import ast
import functools
import pickle
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from es_sbert.cli.main import OptionSpelling, cli, main
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from es_sbert.io.file_formats import FileOptions
from es_sbert.messages import setting, spell_settings
from tests.raised import raises_as_recorded
from tests.unit.golden import golden_messages

_ROOT = Path(__file__).parents[2]


def _commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Path → each command that is not a group."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _commands(found, (*path, name))


_COMMANDS = dict(_commands())


@pytest.mark.parametrize(
    ("command", "name", "value", "in_python", "as_option"),
    [
        ("encode", "device", "cuda", '`device="cuda"`', "--device cuda"),
        ("encode", "kind", "query", '`kind="query"`', "--as query"),
        ("encode", "output", ..., "`output`", "--output"),
        ("search", "k", 3, "`k=3`", "--k 3"),
        ("search", "filter", ..., "`filter`", "--filter"),  # its parameter is `filter_text`
        ("search", "prune", True, "`prune=True`", "`prune=True`"),  # an option of ingest
        ("ingest", "prune", True, "`prune=True`", "--prune"),
        ("ingest", "prune", False, "`prune=False`", "`prune=False`"),  # there is no --no-prune
        ("ingest", "vectors", ["title={F}", "b"], '`vectors=["title={F}", "b"]`', "--vector 'title={F}' --vector b"),
        ("export", "variants", ["fp32", "int8"], '`variants=["fp32", "int8"]`', "--precision fp32,int8"),
        ("export", "model", ..., "`model`", "MODEL"),
        ("train", "overrides", {"stages.0.batch": 32}, '`overrides={"stages.0.batch": 32}`', "--set stages.0.batch=32"),
        ("serve", "url", Path("a"), "`url=PosixPath('a')`", "--upstream a"),
    ],
)
def test_a_setting_is_spelled_as_the_option_of_the_running_command(
    command: str, name: str, value: object, in_python: str, as_option: str
) -> None:
    spelling = OptionSpelling(_COMMANDS[tuple(command.split())])
    assert setting(name, value) == in_python.replace("PosixPath", type(Path()).__name__)
    with spell_settings(pickle.loads(pickle.dumps(spelling))):  # as for workers of Ray
        assert setting(name, value) == as_option
    assert setting(name, value) != as_option or in_python == as_option


@pytest.mark.parametrize("value", ["a b", "it's", 'say "x"', "a`b", "back\\slash", "", "a\n\x1b[31m\udcff"])
def test_any_value_of_a_setting_is_shown_as_an_argument(value: str) -> None:
    with spell_settings(OptionSpelling(_COMMANDS["encode",])):
        shown = setting("device", value)
    assert shown.isprintable()
    assert shlex.split(shown) == ["--device", value.replace("\n\x1b[31m\udcff", r"\n\x1b[31m\udcff")]


@pytest.mark.parametrize(
    "call",
    [
        lambda: Encoder("all-MiniLM-L6-v2", device="gpu"),
        lambda: FileOptions(delimiter="abc"),
        lambda: EngineSettings(username="me"),
    ],
)
def test_python_programs_see_keyword_arguments(call: Callable[[], object]) -> None:
    with raises_as_recorded(UsageError) as raised:
        call()
    assert "--" not in str(raised.value)


@pytest.mark.parametrize("command", golden_messages())
def test_an_error_names_only_options_of_its_command(command: str) -> None:
    words = command.split()
    path = next(path for path in _COMMANDS if list(path) == words[: len(path)])
    sentences = re.sub(r"`(es-sbert|pip) [^`]*`", "", golden_messages()[command])
    known = {option for parameter in _COMMANDS[path].params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", sentences)) <= known | {"--help"}
    assert not {name for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", sentences) if f"--{name}" in known}


def test_settings_are_spelled_as_in_python_again_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["encode", "--device", "gpu"])
    assert "--device gpu" in capsys.readouterr().err
    assert setting("device") == "`device`"


# Literals that are a part of a command, where that cannot be seen in the literal itself.
_PARTS_OF_COMMANDS = {
    "es_sbert/bundle/model_lookup.py": {"--no-deps"},
    "es_sbert/diagnostics/index_advice.py": {"--replace-index"},
    "es_sbert/runtime/cuda_session.py": {"--upgrade"},
    "es_sbert/runtime/openvino_session.py": {"--upgrade", "--force-reinstall"},
    "es_sbert/index/adopt.py": {" --vector-field OTHER"},
    "es_sbert/index/text_template.py": {"--text-field {}", "--text-template {}", " --vector-field {}"},
    "es_sbert/migration/migration_state.py": {" --replace-index"},
    "es_sbert/index/vector_field.py": {"--text-field"},  # how text options begin
    "es_sbert/ingest/load_plan.py": {"--vector {}"},
}
_COMMAND = re.compile(r"(?:\{|es-sbert |pip |python |uv |docker |ray |soffice |useradd )")


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings with `{}` for what an f-string fills in, apart from docstrings and options in a list of arguments."""
    documentation = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    arguments = {element for node in ast.walk(tree) if isinstance(node, ast.List) for element in node.elts}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_argument = node in arguments and re.fullmatch(r"--[a-z-]+", node.value)
            if not (node in documentation or node in inner or is_argument):
                yield node.lineno, node.value


@functools.cache
def _library(*, gateway: bool = False) -> dict[str, ast.AST]:
    """Path → code of all modules but those of the command line and, unless asked for, of the gateway.

    The gateway is started by options, and names them to its operators.
    """
    files = [*(_ROOT / "es_sbert").rglob("*.py"), *(_ROOT / "exporters").rglob("*.py")]
    places = {file.relative_to(_ROOT): file for file in sorted(files)}
    return {
        place.as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for place, file in places.items()
        if place.parts[1] != "cli" and (gateway or place.parts[1] != "gateway")
    }


def _names_an_option(text: str) -> bool:
    """Whether a literal names an option outside a command, which is in backticks or the whole literal."""
    if text.startswith("es-sbert "):
        return False
    without_commands = re.sub(r"`([^`]*)`", lambda span: "" if _COMMAND.match(span[1]) else span[0], text)
    return re.search(r"--[a-z{]", without_commands) is not None


def test_no_message_of_the_library_names_an_option() -> None:
    found = []
    for place, tree in _library().items():
        if place == "es_sbert/installation.py":  # makes commands of pip
            continue
        allowed = _PARTS_OF_COMMANDS.get(place, set())
        found += [
            f"{place}:{n}: {text}" for n, text in _literals(tree) if _names_an_option(text) and text not in allowed
        ]
    assert not found, "\n".join(found)


def test_messages_spell_settings_by_the_function_when_they_are_made() -> None:
    """A literal `device` would be shown on the command line, too; a constant is made before the command is known."""
    names = {parameter.name for command in _COMMANDS.values() for parameter in command.params}
    literal, early = [], []
    for place, tree in _library(gateway=True).items():
        for line, text in _literals(tree):
            if names & set(re.findall(r"`([a-z][a-z0-9_]*)(?:=[^`]*)?`", text)):
                literal.append(f"{place}:{line}: {text}")
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        inside = {inner for function in functions for inner in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setting" and node not in inside:
                early.append(f"{place}:{node.lineno}")
    assert not literal, "\n".join(literal)
    assert not early
