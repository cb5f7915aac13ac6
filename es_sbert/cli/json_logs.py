"""Log records as lines of JSON."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from es_sbert.cli.setting_names import as_options, with_options
from es_sbert.messages import logger


class JsonLinesFormatter(JsonFormatter):
    """Format records as `{"time": …, "level": …, "event": …, "message": …, …}`.

    Records of other libraries have the event `log`.
    """

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        log_data["time"] = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        log_data["level"] = record.levelname.lower()
        log_data["event"] = getattr(record, "event", "log")
        log_data["message"] = as_options(record.getMessage())
        if record.name != logger.name:
            log_data["logger"] = record.name
        if record.exc_info:
            log_data["traceback"] = self.formatException(record.exc_info)
        log_data |= with_options(getattr(record, "fields", {}))
        for name, value in log_data.items():
            log_data[name] = _escape_surrogates(value)


def _escape_surrogates(value: Any) -> Any:
    """Escape lone surrogates in strings: JSON cannot represent them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_surrogates(inner) for inner in value]
    return value
