"""JSON of an engine is read as the standard library reads it."""

from __future__ import annotations

import json

import pytest

from es_sbert.engines.rest import parse_json


@pytest.mark.parametrize(
    "text",
    [
        '{"took": 3, "errors": false, "items": [{"index": {"_id": "é", "_seq_no": 7, "_score": null}}]}',
        '{"largest": 18446744073709551615, "larger": 18446744073709551616, "smaller": -9223372036854775809}',
        '{"digits": 123456789012345678901234567890, "fraction": 0.1234567890123456789012345}',
        "[123456789012345678901234567890,\t-123456789012345678901234567890,\n123456789012345678901234567890]",
        '{"lone": "\\ud83d", "pair": "\\ud83d\\ude00"}',
        '{"ratio": Infinity}',
        '{"float": 1e400, "small": 5e-324, "zero": -0.0}',
    ],
)
def test_same_as_standard_library(text: str) -> None:
    parsed, expected = parse_json(text.encode()), json.loads(text)
    assert parsed == expected
    assert repr(parsed) == repr(expected)  # 1 is not 1.0, nor 0.0 -0.0
