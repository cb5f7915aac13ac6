"""Members found in an object's bytes: what is not meant stays as it was written."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.io.json_text import member_value, object_members, remove_members, replace_values

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
