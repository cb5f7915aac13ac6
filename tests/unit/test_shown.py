"""What the pages tell people to type is there: commands, options, extras, targets, variables; code that can be read."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from es_sbert.cli.main import cli

ROOT = Path(__file__).parents[2]
_PAGES = [str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
_BLOCK = re.compile(r"^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_IN_PROSE = re.compile(r"(?<!`)`(es-sbert [^`]+)`(?!`)")
_OPERATORS = "|&;<>()"
# What stands for something, or for everything else.
_PLACEHOLDERS = frozenset({"…", "NAME"})


def _shown(page: str, *languages: str) -> list[str]:
    return [match["text"] for match in _BLOCK.finditer((ROOT / page).read_text()) if match["language"] in languages]


def _words(line: str) -> list[str]:
    """Of an `es-sbert …` in a line of a shell, without its name; a pipe or a comment ends it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words = list(lexer)
    words = words[words.index("es-sbert") + 1 :] if "es-sbert" in words else []
    end = next((place for place, word in enumerate(words) if not word.strip(_OPERATORS)), len(words))
    return words[:end]


def _commands_of_a_page(page: str) -> list[list[str]]:
    shell = "".join(_shown(page, "sh", "bash", "ini", "")).replace("\\\n", " ").splitlines()
    prose = _in_prose(_BLOCK.sub("", (ROOT / page).read_text()))
    lines = [line.removeprefix("ExecStart=") for line in [*shell, *prose] if "es-sbert " in line]
    return [words for line in lines if (words := _words(line))]


def _in_prose(text: str) -> list[str]:
    return [re.sub(r"\s*\n\s*", " ", command) for command in _IN_PROSE.findall(text)]


def _messages(source: str) -> Iterator[str]:
    """Texts of a module, also those with values in them."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _check(words: list[str]) -> None:
    """Let the command's own parser read the options, whatever the files they name."""
    command: click.Command = cli
    context = click.Context(cli, **cli.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith(("-", *_PLACEHOLDERS)):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
        context = click.Context(command, parent=context, **command.context_settings)
    # The last one may be an option that prose names without its value.
    command.make_parser(context).parse_args([*(word for word in words if word != "…"), "…"])


@pytest.mark.parametrize("page", _PAGES)
def test_documented_options_exist(page: str) -> None:
    for words in _commands_of_a_page(page):
        _check(words)


def test_messages_name_existing_commands_and_options() -> None:
    named = 0
    for folder in ("es_sbert", "exporters"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            for message in _messages(source) if "`es-sbert " in source else ():
                for command in _in_prose(message):
                    _check(_words(command))
                    named += 1
    assert named > 50


@pytest.mark.parametrize("page", [page for page in _PAGES if page != "docs/api.md"])  # whose blocks are signatures too
def test_code_blocks_parse(page: str) -> None:
    for text in _shown(page, "python"):
        compile(text, page, "exec")
    for text in _shown(page, "yaml"):
        assert isinstance(yaml.safe_load(text), dict | list)
    for text in _shown(page, "json"):
        # A block may begin with the line of its request.
        assert isinstance(json.loads(re.sub(r"^(?:POST|PUT) /\S+\n", "", text)), dict)


def test_documented_extras_and_make_targets_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    everything = "".join((ROOT / page).read_text() for page in _PAGES)
    assert set(re.findall(r"'(?:\.|es-sbert)\[(\w+)\]'", everything)) <= extras
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", everything, re.MULTILINE)) <= targets
