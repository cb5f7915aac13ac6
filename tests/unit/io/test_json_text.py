"""Members and numbers of JSON keep the bytes that were written."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.rest import exact_numbers, parse_json
from es_sbert.io.json_text import (
    JsonNumber,
    dump_object,
    may_lose_numbers,
    member_value,
    object_members,
    parse_exact,
    remove_members,
    replace_values,
)

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
_OBJECTS = st.dictionaries(st.text(max_size=3), _VALUES, max_size=6)


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(_OBJECTS.filter(_encodable), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_members_are_removed_and_replaced(
    fields: dict[str, Any], ascii: bool, indent: int | None, data: st.DataObject
) -> None:
    source = json.dumps(fields, ensure_ascii=ascii, indent=indent).encode()
    assert [member.name for member in object_members(source.decode())] == list(fields)
    names = set(data.draw(st.lists(st.sampled_from(list(fields))))) if fields else set()
    assert json.loads(remove_members(source, names)) == {
        key: value for key, value in fields.items() if key not in names
    }
    new = dict.fromkeys(names, b'{"n": 0}')
    assert json.loads(replace_values(source, new)) == fields | {name: {"n": 0} for name in names}
    assert replace_values(source, {}) == source
    for name, value in fields.items():
        assert json.loads(member_value(source, name)) == value


def test_kept_members_keep_digits_and_spacing() -> None:
    source = b'{ "x" : 1.0000000000000000001 , "gone":[1,{"}":2}], "long":1' + b"0" * 5000 + b', "u": "\\u00e9"}'
    assert (
        remove_members(source, {"gone"}) == b'{"x" : 1.0000000000000000001,"long":1' + b"0" * 5000 + b',"u": "\\u00e9"}'
    )
    assert replace_values(b'{"a": 1 , "b":{"c":"\xc3\xa9"}}', {"a": b"[]"}) == b'{"a": [] , "b":{"c":"\xc3\xa9"}}'


LOST = (
    *("1.10", "7.00", "0.00", "1.0000", "-2.50", "1e3", "1E5", "1e-7", "1.5e+3", "1.0E7", "9E400", "-0", "-0.0001"),
    *("0.0000001", "0.00012", "10000000.0", "12345678.5", "3.14159265358979323846", "0.1000000000000000055511151231"),
)
PLAIN = ("0", "7.0", "-0.0", "1.1", "0.001", "0.3333333333333333", str(2**70))
FORMS = ('{{"a":{}}}', '{{"a": [1, {} ]}}', '{{"a": {{"b" : {}\n}}, "c": "\\ud800"}}', '{{"a":{},"b":[true,null]}}')


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", LOST)
def test_lost_text_is_detected_and_kept(number: str, form: str) -> None:
    data = form.format(number).encode()
    assert may_lose_numbers(data)
    parsed = parse_exact(data)
    assert parsed == json.loads(data)  # it computes as any other number
    assert number in dump_object(parsed).decode()
    assert dump_object(pickle.loads(pickle.dumps(parsed))) == dump_object(parsed)
    assert json.loads(dump_object(parsed)) == parsed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", PLAIN)
def test_other_numbers_are_plain(number: str, form: str) -> None:
    data = form.format(number).encode()
    assert "JsonNumber" not in repr([type(value) for value in _values(parse_exact(data))])
    assert number in dump_object(parse_exact(data)).decode()


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        return [each for inner in (value.values() if isinstance(value, dict) else value) for each in _values(inner)]
    return [value]


@pytest.mark.parametrize(
    "text",
    [
        '{"at": "2024-01-01T00:00:00.000Z", "id": "5a1e3d00-1111-22e3-9e40-000000000000", "version": "1.10"}',
        '{"sentence": "It costs 1.10 or 7.00. From 1e3 on, it is free.", "half": 0.5, "n": [1, 20, 300]}',
    ],
)
def test_text_is_not_taken_for_numbers(text: str) -> None:
    """Otherwise most responses would be parsed slowly."""
    assert not may_lose_numbers(text.encode())


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False).map(repr), st.decimals(allow_nan=False).map(str)))
def test_every_number_is_kept(text: str) -> None:
    number = text.replace("E+", "e").removeprefix("+")
    if "Infinity" in number:
        return
    data = f'{{"a":{number}}}'.encode()
    assert dump_object(parse_exact(data)) == data
    if isinstance(parse_exact(data)["a"], JsonNumber):
        assert may_lose_numbers(data)


def test_only_exact_requests_keep_text() -> None:
    """Programs that write what they have read as plain JSON do not know `JsonNumber`."""
    assert type(parse_json(b'{"a": 1.10}')["a"]) is float
    with exact_numbers():
        assert parse_json(b'{"a": 1.10}')["a"].text == "1.10"
        assert type(parse_json(b'{"a": 1.1}')["a"]) is float
    assert type(parse_json(b'{"a": 1.10}')["a"]) is float
