"""Columns of Arrow as JSON values, by their types rather than by what Python makes of them.

pyarrow's own `to_pylist` raises on whole columns for one nanosecond, one year beyond 9999 or one byte that is no
UTF-8. Here such a value is `Unfit` by itself, and its neighbours are not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from es_sbert.ingest.sources import json_values
from es_sbert.ingest.sources.json_values import Unfit

_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MILLISECONDS_OF_A_DAY = 86_400_000


def json_column(array: Any) -> list[Any]:
    """The values of an array, each as JSON has it.

    Args:
        array: A `pyarrow.Array` of any type.

    Returns:
        As many values as the array has; null is None, and what JSON cannot say is `Unfit`.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if hasattr(kind, "storage_type"):  # an extension: what it is to mean is known to its makers alone
        return json_column(array.storage)
    if types.is_dictionary(kind):
        values = json_column(array.dictionary)
        return [None if index is None else values[index] for index in array.indices.to_pylist()]
    if types.is_run_end_encoded(kind):
        return json_column(pc.run_end_decode(array))
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if _is_list(kind):
        return _lists(array)
    return _leaves(array)


def _leaves(array: Any) -> list[Any]:
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return list(array.to_pylist())
    if types.is_floating(kind):
        return _each(json_values.floating, array)
    if types.is_decimal(kind):
        return _each(json_values.decimal, array)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _texts(array)
    if _is_binary(kind):
        return _each(json_values.base64, array)
    if types.is_timestamp(kind):
        unit, utc = _UNITS[kind.unit], kind.tz is not None
        return _each(lambda count: json_values.instant(count, unit, utc=utc), array.cast(pa.int64()))
    if types.is_date32(kind):
        return _each(json_values.day, array.cast(pa.int32()))
    if types.is_date64(kind):
        return _each(lambda count: json_values.day(count // _MILLISECONDS_OF_A_DAY), array.cast(pa.int64()))
    if types.is_time(kind):
        unit = _UNITS[kind.unit]
        counts = array.cast(pa.int32() if types.is_time32(kind) else pa.int64())
        return _each(lambda count: json_values.clock(count, unit), counts)
    if types.is_duration(kind):
        unit = _UNITS[kind.unit]
        return _each(lambda count: json_values.duration(count, unit), array.cast(pa.int64()))
    if types.is_interval(kind):
        return _each(_interval, array)
    # Unions, which no Parquet file holds.
    return [json_values.json_value(value.as_py()) for value in array]


def _each(convert: Callable[[Any], Any], array: Any) -> list[Any]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _interval(value: Any) -> dict[str, int]:
    return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}


def _texts(array: Any) -> list[Any]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in array]


def _text(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return Unfit(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}")


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    valid = array.is_valid().to_pylist()
    if len(set(names)) < len(names):
        unfit = Unfit("two fields of an object have the same name")
        return [unfit if there else None for there in valid]
    if not names:
        return [{} if there else None for there in valid]
    columns = [json_column(child) for child in array.flatten()]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(valid, rows, strict=True)]


def _lists(array: Any) -> list[Any]:
    lengths = array.value_lengths().to_pylist()
    values = iter(json_column(array.flatten()))  # those of lists that are not null
    valid = array.is_valid().to_pylist()
    return [list(islice(values, length)) if there else None for there, length in zip(valid, lengths, strict=True)]


def _maps(array: Any) -> list[Any]:
    """Maps as objects; keys become text."""
    import pyarrow as pa

    kind = array.type
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    return [None if entries is None else _object(entries) for entries in _lists(array.cast(pa.list_(entry)))]


def _object(entries: list[Any]) -> dict[str, Any] | Unfit:
    made: dict[str, Any] = {}
    for entry in entries:
        key = entry["key"]
        if not isinstance(key, str | int) or isinstance(key, bool):
            return Unfit("a key of a map is neither text nor an integer")
        if str(key) in made:
            return Unfit(f"a map holds the key {key} twice")
        made[str(key)] = entry["value"]
    return made


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(test(kind) for test in tests)
