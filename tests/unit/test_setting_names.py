"""The library names settings as Python programs write them; the command line alone turns them into options."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from es_sbert.cli.logs import configure_logging, log_error
from es_sbert.cli.main import cli
from es_sbert.cli.setting_names import as_options, known_settings, option_of, with_options
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UsageError
from es_sbert.io.file_formats import FileOptions
from es_sbert.messages import setting_text

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('`device="cuda"` is given', "--device cuda is given"),
        ("`output=FOLDER`", "--output FOLDER"),
        ("`text_fields` or `watch_seconds`", "--text-field or --watch"),
        ('`vectors=["title={FIELD}", "body"]`', "--vector 'title={FIELD}' --vector body"),
        ('`overrides={"stages.0.batch": 32}`', "--set stages.0.batch=32"),
        ("`prune=True`", "--prune"),
        ("`prune=False`", "`prune=False`"),  # there is no --no-prune
        ("the field `_source` and `max_seq_length`", "the field `_source` and `max_seq_length`"),
        ("`es-sbert index show docs`: device, `GET INDEX`", "`es-sbert index show docs`: device, `GET INDEX`"),
    ],
)
def test_settings_become_options_and_nothing_else_does(text: str, shown: str) -> None:
    assert as_options(text) == shown


@pytest.mark.parametrize("value", ["a b", "it's", 'say "x"', "a`b", "back\\slash", ""])
def test_any_value_of_a_setting_is_shown_as_an_argument(value: str) -> None:
    assert shlex.split(as_options(setting_text("device", value))) == ["--device", value]
    assert as_options(setting_text("device", "a\n\x1b[31m\udcff")) == r"--device 'a\n\x1b[31m\udcff'"


def test_only_sentences_of_a_report_are_changed() -> None:
    """A text of the user that holds the same words is data."""
    report = {"`device`": ["`device`", 3, {"remedy": "Give `index`.", "text": "`index`"}], "notes": ["`prune`", None]}
    assert with_options(report) == {
        "`device`": ["`device`", 3, {"remedy": "Give --index.", "text": "`index`"}],
        "notes": ["--prune", None],
    }


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _options(found)


def test_every_setting_has_an_option_of_a_command() -> None:
    options = set(_options(cli))
    missing = {setting: option_of(setting) for setting in known_settings() if option_of(setting) not in options}
    assert not missing


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
def _library() -> dict[str, ast.AST]:
    """Path → code of all modules but those of the command line and of the gateway.

    The gateway is started by options, and names them to its operators.
    """
    files = [*(_ROOT / "es_sbert").rglob("*.py"), *(_ROOT / "exporters").rglob("*.py")]
    places = {file.relative_to(_ROOT): file for file in sorted(files)}
    return {
        place.as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for place, file in places.items()
        if place.parts[1] not in ("cli", "gateway")
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


@pytest.mark.parametrize(
    ("call", "in_python", "on_command_line"),
    [
        (lambda: Encoder("all-MiniLM-L6-v2", device="gpu"), '`device="gpu"`', "--device gpu"),
        (lambda: FileOptions(delimiter="abc"), "`delimiter=", "--delimiter "),
        (lambda: EngineSettings(username="me"), "Set `username`", "Set --username"),
    ],
)
def test_an_error_names_the_setting_in_python_and_the_option_on_the_command_line(
    call: Callable[[], object], in_python: str, on_command_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert in_python in str(raised.value)
    assert "--" not in str(raised.value)
    configure_logging()
    log_error(raised.value)
    shown = capsys.readouterr().err
    assert on_command_line in shown
    assert in_python not in shown


def test_every_setting_that_a_message_names_is_known() -> None:
    options, unknown = set(_options(cli)), set()
    for place, tree in _library().items():
        for _, text in _literals(tree):
            for name, value in re.findall(r"`([a-z][a-z0-9_]*)(=[^`]*)?`", text):
                is_meant = value or f"--{name.replace('_', '-')}" in options
                if is_meant and option_of(name) is None:
                    unknown.add((place, name))
    assert not unknown
