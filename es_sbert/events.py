"""What happens during a long command, as records of the standard library's logging.

One call serves people and machines: the record carries the event's name and fields for `--log-format json`, and the
text that a terminal shows. Whoever uses es-sbert as a library finds the same records under the logger `es_sbert`.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("es_sbert")
# A library is silent until the program that uses it says where its records go.
logger.addHandler(logging.NullHandler())


def record(event: str, message: str, level: int = logging.INFO, *, text: str | None = None, **fields: object) -> None:
    """Log that something happened.

    Args:
        event: Its name: `load_started`, `progress`, `waiting_began`, ….
        message: One line in words.
        level: Of `logging`.
        text: What a terminal shows; empty for nothing. Without it, the message is shown where it is a warning or worse.
        fields: Facts that can be turned into JSON; none is called time, level, event, message or logger.
    """
    logger.log(level, message, extra={"event": event, "text": text, "fields": fields})


def say(message: str) -> None:
    """Log a message that a terminal shows as well."""
    record("message", message, text=message)
