"""Spell settings in messages as options of the running command."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import click

from es_sbert.messages import as_keyword, escape_unprintable


class _Option(NamedTuple):
    """An option, or an argument with its metavar as name. Click's own objects cannot be pickled for workers."""

    name: str
    is_argument: bool
    is_flag: bool
    is_repeated: bool


class OptionSpelling:
    """Spells settings as options of a command: `output` as --output, `texts=["a", "b"]` as --texts a --texts b.

    A setting is the option whose parameter has its name, or else the option that is called like it: --data has the
    parameter `data_folder`. Settings that the command lacks are spelled as in Python.
    """

    def __init__(self, command: click.Command) -> None:
        self._options: dict[str, _Option] = {}
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                longest = max(parameter.opts, key=len)
                option = _Option(longest, False, parameter.is_flag, parameter.multiple)
                self._options.setdefault(longest.lstrip("-").replace("-", "_"), option)
            else:
                option = _Option(parameter.human_readable_name, True, False, True)
            if parameter.name is not None:
                self._options[parameter.name] = option

    def __call__(self, name: str, value: object) -> str:
        option = self._options.get(name)
        if option is None or value is False:
            return as_keyword(name, value)
        if value is ... or option.is_flag:
            return option.name
        values = [f"{key}={each}" for key, each in value.items()] if isinstance(value, dict) else value
        if not isinstance(values, list):
            values = [values]
        elif not option.is_repeated:
            values = [",".join(map(str, values))]
        prefix = "" if option.is_argument else f"{option.name} "
        return " ".join(prefix + shlex.quote(escape_unprintable(str(each))) for each in values)
