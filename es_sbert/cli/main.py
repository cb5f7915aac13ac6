"""`es-sbert`: the root command. It imports a command's module only when the command is called."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import itertools
import logging
import os
import shlex
import sys
from typing import Any, NamedTuple

import click
import cloup

from es_sbert.cli.logs import configure_logging, is_json_logging, log_error
from es_sbert.errors import EsSbertError, OutputError, SourceError, UsageError
from es_sbert.messages import as_keyword, escape_unprintable, log_event, spell_settings
from es_sbert.version import __version__


def prepare_streams() -> None:
    """Open standard streams that the caller has closed, and let stdout escape characters that its encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Open them in this order, before any other file: each gets the lowest free descriptor, which is its own.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the program
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def skip_last_collections() -> None:
    """Leave reference cycles to the end of the process, which saves a tenth of a search."""
    if "torch" not in sys.modules:  # its bindings report what is left
        gc.freeze()


def discard_stdout() -> None:
    """Discard the rest of the output. Otherwise, Python would try to write it at exit and report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse_configuration_file() -> None:
    """Refuse the configuration file of earlier versions and its profiles: a command would use another engine or model.

    A profile held credentials for one cluster alone, and its paths were relative to the file.

    Raises:
        UsageError: the file exists, or a variable names a file or a profile.
    """
    found = [f"{name} is set" for name in ("ES_SBERT_CONFIG", "ES_SBERT_PROFILE") if os.environ.get(name)]
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    file = os.path.join(folder, "es-sbert", "config.toml")
    if os.path.isfile(file):
        found.append(f"{file} exists")
    if found:
        raise UsageError(
            f"there are no configuration file and no profiles any more, but {' and '.join(found)}",
            "Set ES_SBERT_URL, ES_SBERT_USERNAME, ES_SBERT_PASSWORD_FILE, ES_SBERT_API_KEY_FILE, ES_SBERT_TOKEN_FILE, "
            "ES_SBERT_CA_CERTS, ES_SBERT_TIMEOUT and ES_SBERT_MODEL instead, in a file for each "
            "cluster (`set -a; . ./production.env`). Load it for commands on that cluster alone: credentials of the "
            "environment are sent to any address in `--url`. Write paths in full: those of the old file were relative "
            "to it. Then remove the file and unset the variables that are named here.",
        )


# Command and module below `es_sbert.cli` → one line for `es-sbert --help`.
COMMANDS = {
    "adapt": "Tune a model on the documents of an index, without labels.",
    "cluster": "Find clusters of texts, in files or in an index, and name them.",
    "dashboards": "Write or import dashboards for Kibana and OpenSearch Dashboards.",
    "distill": "Distill a sentence encoder into a smaller or static one.",
    "doctor": "Check everything that a load or a search needs.",
    "duplicates": "Find groups of near-duplicates, in files or in an index.",
    "encode": "Embed texts.",
    "engine": "Run a search engine on this machine without Docker.",
    "evaluate": "Measure a model by the protocols of the Sentence-BERT paper.",
    "export": "Export a model to a checked ONNX bundle.",
    "index": "Create, inspect and change indices with a vector field.",
    "ingest": "Embed documents and load them into an index.",
    "model": "Fetch, list, add and remove models.",
    "pairs": "Find the most similar pairs of texts, in files or in an index.",
    "search": "Semantic search over an index.",
    "serve": "Run a proxy that adds semantic search to an engine.",
    "train": "Fine-tune a sentence encoder with a recipe.",
}

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


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


class _LazyGroup(cloup.Group):
    """A group whose subcommands are imported on use: `es-sbert --help` must not load onnxruntime."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"es_sbert.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # Suggest similar names from all commands: click knows only those that are imported already.
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None
        running = command.get_command(ctx, rest[0]) if isinstance(command, click.Group) and rest else command
        if running is not None:
            # Until the end of the command: its options are read with messages, too.
            ctx.with_resource(spell_settings(OptionSpelling(running)))
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        options = itertools.takewhile(lambda argument: argument != "--", ctx.args)
        if not any(argument in ctx.help_option_names for argument in options):
            refuse_configuration_file()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of the output (`| head`) has closed the pipe, which is not an error. click would exit with 1,
            # and Python would report an error when it flushes the rest.
            discard_stdout()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@cloup.group(
    cls=_LazyGroup,
    context_settings=cloup.Context.settings(
        help_option_names=["-h", "--help"], max_content_width=100, show_default=True
    ),
)
@click.version_option(__version__, prog_name="es-sbert")
def cli() -> None:
    """Semantic search over an Elasticsearch or OpenSearch index."""


def main(args: list[str] | None = None) -> None:
    """Run the command line. An expected error is printed as two lines on stderr, with exit code 2."""
    # Collect reference cycles after every 50,000 new objects, not 700. By default, Python does so hundreds of times
    # during the imports, and again after every few dozen documents of a load, which takes a tenth of the load's time.
    gc.set_threshold(50_000)
    atexit.register(skip_last_collections)
    sys.modules["openvino.tools.ovc"] = None  # type: ignore[assignment]  # OpenVINO's converter, which no command uses
    prepare_streams()
    configure_logging()
    try:
        result = cli.main(args, standalone_mode=False)
    except EsSbertError as error:
        log_error(error)
        sys.exit(2)
    except PermissionError as error:
        if error.filename is None:
            raise
        log_error(
            SourceError(f"{error.filename} is not accessible to this user: {error.strerror}", "Check its permissions.")
        )
        sys.exit(2)
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        discard_stdout()
        remedy = "Free space on the disk of the output."
        log_error(OutputError(f"the output cannot be written: {error.strerror}", remedy))
        sys.exit(2)
    except click.exceptions.Abort:
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has written "^C"
        log_event("interrupted", "interrupted by the user", logging.WARNING, text="Interrupted.")
        sys.exit(130)
    except click.ClickException as error:
        if is_json_logging():
            parameter = getattr(error, "param", None)
            named = {"setting": parameter.name} if parameter else {}
            fields = {"error": type(error).__name__, "code": "usage_error", **named, "remedy": "See --help."}
            log_event("failed", error.format_message(), logging.ERROR, **fields)
        else:
            error.show()
        sys.exit(error.exit_code)
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
