"""Values of Parquet columns and of Python programs as JSON: valid, equal, or refused by themselves."""

from __future__ import annotations

import math
from base64 import b64decode
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.ingest.sources.document_source import Origin, ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.table_rows import (
    PARQUET_ROWS,
    SerializationError,
    UnserializableValue,
    column_to_json,
    object_to_json,
    row_record,
    row_to_json,
    value_to_json,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)


def through_arrow(value: Any, kind: pa.DataType) -> Any:
    """A value, stored in Arrow, as it comes out of its JSON."""
    [made] = column_to_json(pa.array([value], kind))
    return orjson.loads(row_to_json({"column": made}))["column"]


def written(value: Any) -> str:
    """A value of Python as JSON text."""
    return row_to_json({"c": value_to_json(value)})[len(b'{"c":') : -1].decode()


def refusal(made: Any) -> str:
    with pytest.raises(SerializationError) as caught:
        row_to_json({"fine": 1, "column": made}, PARQUET_ROWS)
    return str(caught.value)


# An Arrow type, and values that JSON has as they are.
_leaves = st.sampled_from(
    [(pa.string(), texts), (pa.large_string(), texts), (pa.string_view(), texts), (pa.int64(), integers),
     (pa.uint64(), st.integers(0, 2**64 - 1)), (pa.int8(), st.integers(-128, 127)), (pa.bool_(), st.booleans()),
     (pa.float64(), floats), (pa.dictionary(pa.int32(), pa.string()), texts)]
)  # fmt: skip


def _wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def lists(pair: Any) -> list[Any]:
        kind, values = pair
        some = st.lists(st.none() | values, max_size=3)
        return [
            (pa.list_(kind), some),
            (pa.large_list(kind), some),
            (pa.list_view(kind), some),
            (pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2)),
            (
                pa.struct([("a", kind), ("b", pa.int64())]),
                st.fixed_dictionaries({"a": st.none() | values, "b": st.none() | integers}),
            ),
            (pa.map_(pa.string(), kind), st.dictionaries(texts, st.none() | values, max_size=3)),
        ]

    return inner.flatmap(lambda pair: st.sampled_from(lists(pair)))


@given(st.recursive(_leaves, _wrapped, max_leaves=4), st.data())
def test_arrow_values_round_trip_through_json(pair: Any, data: st.DataObject) -> None:
    kind, values = pair
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    entries = [list(row.items()) if pa.types.is_map(kind) and row is not None else row for row in rows]
    try:
        array = pa.array(entries, kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return  # maps inside other types cannot be built from Python's dictionaries
    made = [orjson.loads(row_to_json({"c": value}))["c"] for value in column_to_json(array)]
    assert made == rows
    # Slices share their values with the whole.
    part = [orjson.loads(row_to_json({"c": value}))["c"] for value in column_to_json(array.slice(1, 2))]
    assert part == rows[1:3]


@given(st.binary(max_size=20))
def test_binary_is_base64(value: bytes) -> None:
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(len(value))):
        assert b64decode(through_arrow(value, kind), validate=True) == value
    assert b64decode(orjson.loads(written(value)), validate=True) == value


def test_arrow_extension_types_are_read_as_uuids_or_as_what_they_store() -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID(int=1).bytes, None], pa.binary(16)))
    assert column_to_json(uuids) == [str(UUID(int=1)), None]
    assert through_arrow('{"a": 1}', pa.json_()) == '{"a": 1}'


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**30), max_value=10**30))
def test_decimals_keep_every_digit(value: Decimal) -> None:
    [made] = column_to_json(pa.array([value], pa.decimal128(38, 4)))
    text = row_to_json({"c": made})[len(b'{"c":') : -1].decode().strip('"')
    assert Decimal(text) == Decimal(written(value).strip('"')) == value


def test_decimal_out_of_range_is_a_string() -> None:
    assert written(Decimal("1.10")) == "1.10"
    assert written(Decimal("1E+3")) == "1000"
    assert written(Decimal("0.30000000000000000000000001")) == "0.30000000000000000000000001"
    assert written(Decimal(2**64)) == '"18446744073709551616"'
    assert written(Decimal("NaN")) == "null"
    assert "Infinity" in refusal(value_to_json(Decimal("Infinity")))
    assert written(2**64 - 1) == "18446744073709551615"
    assert written(2**64) == '"18446744073709551616"'
    assert written(-(2**63) - 1) == '"-9223372036854775809"'


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))


@given(moments)
def test_times_are_iso_8601(value: datetime) -> None:
    assert datetime.fromisoformat(through_arrow(value, pa.timestamp("us"))) == value
    assert datetime.fromisoformat(orjson.loads(written(value))) == value
    assert date.fromisoformat(through_arrow(value.date(), pa.date32())) == value.date()
    assert date.fromisoformat(through_arrow(value.date(), pa.date64())) == value.date()
    assert time.fromisoformat(through_arrow(value.time(), pa.time64("us"))) == value.time()
    there = pa.timestamp("us", "Europe/Berlin")
    in_utc = value.replace(tzinfo=UTC)
    assert datetime.fromisoformat(through_arrow(in_utc, there)) == in_utc
    assert through_arrow(in_utc, there).endswith("Z")


@pytest.mark.parametrize(
    ("count", "kind", "text"),
    [
        (1, pa.timestamp("ns"), "1970-01-01T00:00:00.000000001"),
        (-1, pa.timestamp("ns", "Asia/Tokyo"), "1969-12-31T23:59:59.999999999Z"),
        (1_500, pa.timestamp("ms"), "1970-01-01T00:00:01.500"),
        (60, pa.timestamp("s", "UTC"), "1970-01-01T00:01:00Z"),
        (3_661, pa.time32("s"), "01:01:01"), (1, pa.time32("ms"), "00:00:00.001"),
        (1, pa.time64("ns"), "00:00:00.000000001"), (-1, pa.date32(), "1969-12-31"),
        (-86_400_000, pa.date64(), "1969-12-31"),
    ],
)  # fmt: skip
def test_timestamp_units(count: int, kind: pa.DataType, text: str) -> None:
    storage = pa.int32() if kind.bit_width == 32 else pa.int64()
    assert column_to_json(pa.array([count, None], storage).cast(kind)) == [text, None]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([1.0, math.inf]), "column: Infinity cannot be written"),
        (pa.array([[1.0], [-math.inf]]), "-Infinity cannot be written"),
        (pa.array([b"fine", b"caf\xe9"]).view(pa.string()), "invalid UTF-8: byte 0xe9 at position 3"),
        (pa.array([1, 2**62], pa.timestamp("ms")), "outside the years 1 to 9999"),
        (pa.array([1, 2**30], pa.int32()).cast(pa.date32()), "outside the years 1 to 9999"),
        (pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "holds the key a twice"),
        (pa.array([None, 5], pa.duration("s")), "a duration cannot be written as JSON: cast the column"),
        (pa.array([[(1.5, 1)]] * 2, pa.map_(pa.float64(), pa.int64())), "neither text nor an integer"),
        (pa.StructArray.from_arrays([pa.array([1, 1]), pa.array([2, 2])], ["x", "x"]), "have the same name"),
    ],
)  # fmt: skip
def test_unserializable_value_rejects_only_itself(array: pa.Array, reason: str) -> None:
    first, second = column_to_json(array)
    assert reason in refusal(second)
    if not isinstance(first, UnserializableValue):
        row_to_json({"c": first})


def test_python_values_are_serialized() -> None:
    assert written(UUID(int=1)) == '"00000000-0000-0000-0000-000000000001"'
    assert written(ip_address("::1")) == '"::1"'
    assert written({"a": [1, Decimal("1.5"), b"x"], 2: None}) == '{"a":[1,1.5,"eA=="],"2":null}'
    assert written(memoryview(b"x")) == '"eA=="'
    assert written(time(1, 2)) == '"01:02:00"'
    assert written(True) == "true"
    assert written([HTTPStatus.OK, {HTTPStatus.OK: 1}]) == '[200,{"200":1}]'
    for name, text in (("ObjectId", '"65a0"'), ("Decimal128", "1.10")):
        of_bson = type(name, (), {"__module__": "bson.types", "__str__": lambda self, text=text: text.strip('"')})
        assert written(of_bson()) == text
    # In one order, or equal documents would differ.
    assert written({3, None, "a"}) == '["a",3,null]'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1j], "a complex cannot be written as JSON: cast the column to a string"),
        ([timedelta(5)], "a timedelta cannot be written as JSON"), ("\ud800", "surrogates"),
        ({b"\xff": 1}, "a key is bytes that are not"), ({1: 0, "1": 0}, "two keys of an object are 1 as text"),
        ([1 << 20_000], "an integer of thousands of digits"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "outside the years 1 to 9999"),
    ],
)  # fmt: skip
def test_python_values_without_a_json_form_are_refused(value: Any, reason: str) -> None:
    assert reason in refusal(value_to_json(value))


def test_numpy_values_are_those_of_python() -> None:
    assert written(np.int64(-5)) == "-5"
    assert written(np.uint64(2**64 - 1)) == "18446744073709551615"
    assert written(np.float32(0.5)) == "0.5"
    assert written(np.longdouble(0.5)) == "0.5"
    assert written(np.float64("nan")) == "null"
    assert written(np.bool_(True)) == "true"
    assert written(np.str_("x")) == '"x"'
    assert written(np.array([[1, 2], [3, 4]])) == "[[1,2],[3,4]]"
    assert written(np.array([0.5, math.nan])) == "[0.5,null]"
    assert written(np.array(7)) == "7"
    assert written(np.array(["a", "b"])) == '["a","b"]'
    assert written(np.array([{"a": np.int8(1)}, None], dtype=object)) == '[{"a":1},null]'
    assert written(np.ma.masked_array([1, 2], [False, True])) == "[1,null]"
    assert "Infinity" in refusal(value_to_json(np.float32("inf")))
    assert "a complex cannot be written as JSON" in refusal(value_to_json(np.complex128(1j)))
    assert "a clongdouble cannot be written as JSON" in refusal(value_to_json(np.clongdouble(1j)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.datetime64("2026-01-31T12:00:00.123456789"), "2026-01-31T12:00:00.123456789"),
        (np.datetime64("2026-01-31"), "2026-01-31"), (np.datetime64("2026"), "2026-01-01"),
        (np.datetime64("2026-01-31T12"), "2026-01-31T12:00:00"), (np.datetime64("NaT"), None),
        (np.array(["2026-01-31", "NaT"], "datetime64[ns]"), ["2026-01-31T00:00:00", None]),
        (np.timedelta64("NaT"), None),
    ],
)  # fmt: skip
def test_numpy_times_are_iso_8601(value: Any, text: Any) -> None:
    assert orjson.loads(written(value)) == text


def test_pandas_values_are_those_of_json() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "id": [1, None], "at": pd.to_datetime(["2026-01-31T12:00:00.5+01:00", None]),
            "count": pd.array([2**60, None], dtype="Int64"), "kind": pd.Categorical(["a", None]),
            "text": ["some text", None],
        }
    )  # fmt: skip
    first, second = (orjson.loads(row_to_json(object_to_json(row))) for row in frame.to_dict("records"))
    assert first == {
        "id": 1.0, "at": "2026-01-31T11:00:00.500000Z", "count": 2**60, "kind": "a", "text": "some text",
    }  # fmt: skip
    assert second == dict.fromkeys(first)
    assert written([pd.NA, pd.NaT, pd.Timestamp("2026-01-31")]) == '[null,null,"2026-01-31T00:00:00"]'
    assert written(pd.Series([1, None, 3], dtype="Int64")) == "[1,null,3]"
    assert written(pd.Categorical(["a", "b"])) == '["a","b"]'


# Rows of any text that is drawn are shorter.
TEXT_FIELDS = ReadSettings(100_000, "text", text_fields=("text", "inner.text"), key_fields=("id",))


def decoded(row: dict[str, Any]) -> Record | RejectedRecord:
    made = {name: value_to_json(value) for name, value in row.items()}
    return row_record(made, Origin("f", 1), TEXT_FIELDS, PARQUET_ROWS)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_in_text_and_id_fields_are_text(text: str) -> None:
    for data in (text.encode(), bytearray(text.encode()), memoryview(text.encode()), np.bytes_(text.encode())):
        if bytes(data) != text.encode():
            continue  # numpy strips NUL at the end
        record = decoded({"id": data, "text": [data, text, None], "inner": [{"text": data}], "other": data})
        assert isinstance(record, Record)
        other = record.fields.pop("other")
        assert b64decode(other, validate=True) == text.encode()
        assert record.fields == {"id": text, "text": [text, text, None], "inner": [{"text": text}]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"text": b"caf\xe9"},
            "the column text holds bytes that are not valid UTF-8 (byte 0xe9 at position 3): cast the column",
        ),
        ({"inner": {"text": b"\xff"}}, "the column inner.text holds bytes"),
        ({"text": "\ud800"}, "the column text: str is not valid UTF-8: surrogates not allowed"),
        (
            {"id": UUID(int=2**127).bytes},
            "(byte 0x80 at position 0): cast the column to a string when you write the file: decode(COLUMN",
        ),
    ],
)
def test_bytes_that_are_not_text_are_refused_with_the_column_and_the_cast(row: dict[str, Any], reason: str) -> None:
    rejected = decoded(row)
    assert isinstance(rejected, RejectedRecord)
    assert reason in rejected.reason
    assert next(iter(row)).encode() in (rejected.raw or b"")
