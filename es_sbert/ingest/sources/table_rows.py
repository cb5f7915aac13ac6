"""Rows of SQL results, columnar files and Python programs as records; see `json_values` for their values.

pyarrow's own `to_pylist` fails for a whole column on one nanosecond timestamp, one year beyond 9999 or one byte of
invalid UTF-8. Here only that value is an `UnserializableValue`; the other values are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

import orjson

from es_sbert.index.text_template import change_values
from es_sbert.ingest.sources.document_source import Origin, ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.json_values import (
    BinaryValue,
    SerializationError,
    UnknownTypeError,
    UnserializableValue,
    duration_to_json,
    float_to_json,
    json_default,
    temporal_to_json,
    value_to_json,
)
from es_sbert.messages import pluralize


@dataclass(frozen=True)
class RowTerms:
    """The words and advice of messages about the rows of one kind of source.

    Attributes:
        row, column: The words for a row and a column.
        convert: Advice on how to convert a value of a type that JSON lacks.
        decode: Advice on how to turn bytes in another encoding into text; `{column}` is replaced by the name.
        encode: Advice on how to turn bytes that are not text into an id.
        limit: The limit of the size of a row, as words after "more than".
    """

    row: str
    column: str
    convert: str
    decode: str
    encode: str
    limit: str = "`max_document_bytes` allows"


ARROW_ROWS = RowTerms(
    row="row",
    column="column",
    convert="write it as text into the file",
    decode="cast the column to a string when you write the file, such as decode({column}, 'ISO-8859-1') in Spark",
    encode="cast the column to a string when you write the file, such as hex({column}) in Spark",
)
SQL_ROWS = RowTerms(
    row="row",
    column="column",
    convert="turn it into text in the query",
    decode="cast it in the query, such as convert_from({column}, 'LATIN1') in PostgreSQL or "
    "CAST({column} AS CHAR CHARACTER SET latin1) in MySQL",
    encode="cast it in the query, such as encode({column}, 'hex') in PostgreSQL or hex({column}) in MySQL and SQLite",
)
PYTHON_ROWS = RowTerms(
    row="document",
    column="field",
    convert="convert it first, for example with str()",
    decode="decode it first, such as value.decode('latin-1')",
    encode="convert it first, such as value.hex()",
    limit="a document may have",
)


def row_to_json(row: Mapping[str, Any], terms: RowTerms = SQL_ROWS) -> bytes:
    """Write a row of converted values as one line of JSON.

    Raises:
        SerializationError: a value is `UnserializableValue`, or a text is not Unicode; the message names the column.
    """
    try:
        return orjson.dumps(row, default=json_default)
    except orjson.JSONEncodeError:  # the loop finds the column to blame
        pass
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=json_default)
        except orjson.JSONEncodeError as error:
            reason = f"the {terms.column} {name}: {error.__cause__ or error}"
            advice = f": {terms.convert}" if isinstance(error.__cause__, UnknownTypeError) else ""
            raise SerializationError(reason + advice) from error
    raise AssertionError("each column of the row can be written, the row cannot")


def decode_row(row: dict[str, Any], settings: ReadSettings, terms: RowTerms) -> None:
    """Turn bytes in the fields of the text, the id and the routing into text.

    Raises:
        SerializationError: the bytes are not valid UTF-8; the message names the column.
    """
    for names, advice in ((settings.text_fields, terms.decode), (settings.key_fields, terms.encode)):
        for name in names:
            if type(row.get(name)) is str:
                continue  # nearly all values
            try:
                change_values(row, name, _decoded)
            except SerializationError as error:
                reason = f"the {terms.column} {name} holds {error}: {advice.format(column=name)}"
                raise SerializationError(reason) from None


def _decoded(value: Any) -> Any:
    return value.text() if isinstance(value, BinaryValue) else value


def preview_row(row: Mapping[str, Any]) -> bytes:
    """Format a row for display if it cannot be serialized: reasons replace the values concerned."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=str)
            shown[name] = value
        except orjson.JSONEncodeError:
            shown[repr(name)] = repr(value)
    return orjson.dumps(shown, default=str)


_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def column_to_json(array: Any) -> list[Any]:
    """Convert the values of an array to their JSON form.

    Args:
        array: A `pyarrow.Array` of any type.

    Returns:
        As many values as the array has. Null is None, and a value that JSON cannot represent is `UnserializableValue`.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if getattr(kind, "extension_name", None) == "arrow.uuid":
        return [None if value is None else str(UUID(bytes=value)) for value in array.storage.to_pylist()]
    if hasattr(kind, "storage_type"):  # an extension type, whose meaning is not known here
        return column_to_json(array.storage)
    if types.is_dictionary(kind):
        # Only the values that occur: a slice has the dictionary of the whole array.
        used = array.indices.unique()
        values = dict(zip(used.to_pylist(), column_to_json(array.dictionary.take(used)), strict=True))
        return [values[index] for index in array.indices.to_pylist()]
    if types.is_run_end_encoded(kind):
        return column_to_json(pc.run_end_decode(array))
    if types.is_struct(kind):
        return _structs_to_json(array)
    if types.is_map(kind):
        return _maps_to_json(array)
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(test(kind) for test in tests):
        return _lists_to_json(array)
    return _scalars_to_json(array)


def _scalars_to_json(array: Any) -> list[Any]:
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return list(array.to_pylist())
    if types.is_floating(kind):
        return _convert_each(float_to_json, array)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _strings_to_json(array)
    if types.is_timestamp(kind) and kind.tz is not None:
        in_utc = array.cast(pa.timestamp(kind.unit)).cast(pa.string())
        return _convert_each(lambda text: temporal_to_json(text, "Z"), in_utc)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return _convert_each(lambda text: temporal_to_json(text, ""), array.cast(pa.string()))
    if types.is_duration(kind):
        unit = _UNITS_PER_SECOND[kind.unit]
        return _convert_each(lambda count: duration_to_json(count, unit), array.cast(pa.int64()))
    if types.is_interval(kind):
        names = ("months", "days", "nanoseconds")
        return _convert_each(lambda interval: {name: getattr(interval, name) for name in names}, array)
    # Decimals, binary values, and unions (which Parquet files do not have).
    return [value_to_json(value) for value in array.to_pylist()]


def _convert_each(convert: Callable[[Any], Any], array: Any) -> list[Any]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _strings_to_json(array: Any) -> list[Any]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_string_to_json(value) for value in array]


def _string_to_json(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return UnserializableValue(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}")


def _structs_to_json(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    valid = array.is_valid().to_pylist()
    if len(set(names)) < len(names):
        invalid = UnserializableValue("two fields of an object have the same name")
        return [invalid if is_valid else None for is_valid in valid]
    if not names:
        return [{} if is_valid else None for is_valid in valid]
    columns = [column_to_json(child) for child in array.flatten()]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _lists_to_json(array: Any) -> list[Any]:
    lengths = array.value_lengths().to_pylist()
    values = iter(column_to_json(array.flatten()))  # those of lists that are not null
    valid = array.is_valid().to_pylist()
    return [list(islice(values, length)) if is_valid else None for is_valid, length in zip(valid, lengths, strict=True)]


def _maps_to_json(array: Any) -> list[Any]:
    """Convert maps to objects, and their keys to text."""
    import pyarrow as pa

    kind = array.type
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    maps = _lists_to_json(array.cast(pa.list_(entry)))
    return [None if entries is None else _entries_to_object(entries) for entries in maps]


def _entries_to_object(entries: list[Any]) -> dict[str, Any] | UnserializableValue:
    result: dict[str, Any] = {}
    for entry in entries:
        key = entry["key"]
        if not isinstance(key, str | int) or isinstance(key, bool):
            return UnserializableValue("a key of a map is neither text nor an integer")
        if str(key) in result:
            return UnserializableValue(f"a map holds the key {key} twice")
        result[str(key)] = entry["value"]
    return result


def row_record(row: dict[str, Any], origin: Origin, settings: ReadSettings, terms: RowTerms) -> Record | RejectedRecord:
    """Create the record of a row whose values are already converted.

    Args:
        row: The row, which is changed.
        settings: The longest document, and the fields whose bytes are text.
        terms: The words of messages.
    """
    try:
        decode_row(row, settings, terms)
        data = row_to_json(row, terms)
    except SerializationError as bad:
        return RejectedRecord.of_bytes(origin, str(bad), preview_row(row))
    if len(data) > settings.max_bytes:
        reason = f"the {terms.row} has {pluralize(len(data), 'byte')} as JSON, more than {terms.limit}"
        return RejectedRecord.of_bytes(origin, reason, data)
    return Record(origin, orjson.loads(data), data)
