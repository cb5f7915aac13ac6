"""The help blocks of the command pages: read, printed, rewritten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from es_sbert.cli.main import COMMANDS, cli

PAGES = Path(__file__).parents[1] / "docs/commands"
# The page that shows the options that most commands share; the other pages refer to it.
_SHARED = "search"
_SHARED_GROUP = re.compile(r"^(?P<name>Connection|Model):\n(?P<options>(?:  .*\n)+)", re.MULTILINE)
# The option that every command has.
_HELP_OPTION = re.compile(r"(?:\n(?:Other options|Options):\n)?  -h, --help +Show this message and exit\.\n")
_BLOCK = re.compile(r"```text\n\$ es-sbert (?P<command>[a-z -]+) --help\n(?P<help>.*?)```", re.DOTALL)


def help_text(command: str) -> str:
    """What `es-sbert COMMAND --help` prints on a terminal of 100 columns."""
    result = CliRunner().invoke(cli, [*command.split(), "--help"], prog_name="es-sbert", terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output


def shown_help(command: str) -> str:
    """The help text of a command as its page shows it: without `--help` and the groups that `search` has too."""
    shared = {match["name"]: match["options"].split() for match in _SHARED_GROUP.finditer(help_text(_SHARED))}

    def shorten(group: re.Match[str]) -> str:
        if command == _SHARED or group["options"].split() != shared[group["name"]]:
            return group[0]
        return f"{group['name']}:\n  As for es-sbert {_SHARED}.\n"

    return _HELP_OPTION.sub("", _SHARED_GROUP.sub(shorten, help_text(command)))


def all_commands() -> Iterator[str]:
    """`ingest`, `engine up`, …: every command and subcommand."""
    with click.Context(cli) as context:
        for name in COMMANDS:
            command = cli.get_command(context, name)
            assert command is not None
            yield name
            if isinstance(command, click.Group):
                yield from (f"{name} {inner}" for inner in command.commands)


def blocks(page: str) -> dict[str, str]:
    """Command → help text as it stands in a page."""
    return {match["command"]: match["help"] for match in _BLOCK.finditer(page)}


def rewrite(page: str, text_of: Callable[[str], str]) -> str:
    """The page with every block as `text_of` gives it."""
    return _BLOCK.sub(
        lambda match: f"```text\n$ es-sbert {match['command']} --help\n{text_of(match['command'])}```", page
    )
