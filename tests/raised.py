"""Errors of es-sbert by what programs read: class, setting and value. Words are in tests/unit/golden/messages.txt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import ANY

import pytest

from es_sbert.errors import EsSbertError

E = TypeVar("E", bound=EsSbertError)


@contextmanager
def raises(kind: type[E], setting: str | None, value: object = ANY) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error about a setting, like `pytest.raises`."""
    with pytest.raises(kind) as raised:
        yield raised
    assert (setting, value) == (raised.value.setting, raised.value.value), str(raised.value)
