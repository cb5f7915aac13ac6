"""Logging of the command line to stderr: plain text, or JSON lines (`--log-format json`)."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import click

from es_sbert.errors import EsSbertError
from es_sbert.messages import escape_unprintable, escape_unprintable_lines, log_event, logger

_TRACEBACK_FORMATTER = logging.Formatter()
_WITH_TRACEBACKS = frozenset({logger.name, "asyncio", "uvicorn"})


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to the current `sys.stderr`, which a progress bar replaces."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


class _TextHandler(_StderrHandler):
    """Prints the texts of events, warnings of es-sbert, and errors of other libraries.

    Warnings of the engines' clients are omitted: they are about failed requests, which es-sbert retries or reports.

    Records without a separate text are one line each, because callers of the gateway choose the names in their
    requests, which must not look like log lines of es-sbert. Tracebacks are indented. Those of other libraries are
    omitted, except those of the servers that run es-sbert's code.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ours = record.name.partition(".")[0] == logger.name
        text = getattr(record, "text", None)
        if ours and text is not None:
            return bool(text)
        return record.levelno >= (logging.WARNING if ours else logging.ERROR)

    def format(self, record: logging.LogRecord) -> str:
        text: str | None = getattr(record, "text", None)
        line = escape_unprintable(record.getMessage().rstrip("\n")) if text is None else escape_unprintable_lines(text)
        if not record.exc_info or record.name.partition(".")[0] not in _WITH_TRACEBACKS:
            return line
        trace = escape_unprintable_lines(_TRACEBACK_FORMATTER.formatException(record.exc_info))
        return "\n".join([line, *(f"    {part}" for part in trace.split("\n"))])


class _JsonHandler(_StderrHandler):
    """Prints records as `{"time": …, "level": …, "event": …, "message": …, …}`.

    Records of other libraries have the event `log`.
    """

    def format(self, record: logging.LogRecord) -> str:
        entries = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
        }
        if record.name != logger.name:
            entries["logger"] = record.name
        if record.exc_info:
            entries["traceback"] = _TRACEBACK_FORMATTER.formatException(record.exc_info)
        return json.dumps(_escape_surrogates(entries | getattr(record, "fields", {})), default=str)


def _escape_surrogates(value: Any) -> Any:
    """Escape lone surrogates in strings: JSON cannot represent them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_surrogates(inner) for inner in value]
    return value


def configure_logging(form: str = "text") -> None:
    """Send records to stderr, replacing the handler of an earlier call.

    Args:
        form: `text` or `json`.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _StderrHandler):
            root.removeHandler(handler)
    root.addHandler(_JsonHandler() if form == "json" else _TextHandler())
    logger.setLevel(logging.INFO)
    logging.captureWarnings(form == "json")
    sys.excepthook = _log_crash if form == "json" else sys.__excepthook__


def is_json_logging() -> bool:
    """Whether messages on stderr are JSON."""
    return any(isinstance(handler, _JsonHandler) for handler in logging.getLogger().handlers)


def log_errors_only() -> None:
    """Log errors only (`--quiet`)."""
    logger.setLevel(logging.ERROR)


def log_error(error: EsSbertError) -> None:
    """Log an error that ends the command."""
    said = error.with_notes()
    text = f"Error: {said}\n  {error.remedy}"
    named = {} if error.setting is None else {"setting": error.setting, "value": error.value}
    answered = {name: getattr(error, name) for name in ("status", "type", "request") if getattr(error, name, None)}
    fields = {"error": type(error).__name__, "code": error.code, **named, **answered, "remedy": error.remedy}
    log_event("failed", said, logging.ERROR, text=text, **fields)


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logger.critical("internal error: a bug in es-sbert", exc_info=(kind, error, trace), extra={"event": "crashed"})


# Its callback configures the log; commands do not get the value.
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="ES_SBERT_LOG_FORMAT",
    default="text",
    show_envvar=True,
    expose_value=False,
    is_eager=True,
    callback=lambda context, parameter, form: configure_logging(form),
    help="Format of the messages on stderr: text, or one JSON object per line.",
)
