"""Calls of YAML tests become the requests that the official runner sends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.compat.api_spec import Api, InvalidCall, Request, build_request, read_apis

_COMMON = {"documentation": {"url": "…"}, "params": {"pretty": {"type": "boolean"}}}
_SEARCH = {
    "search": {
        "url": {
            "paths": [
                {"path": "/_search", "methods": ["GET", "POST"]},
                {"path": "/{index}/_search", "methods": ["GET", "POST"], "parts": {"index": {"type": "list"}}},
            ]
        },
        "params": {"size": {"type": "number"}},
        "body": {"description": "…"},
    }
}
_GET = {
    "get": {
        "url": {"paths": [{"path": "/{index}/_doc/{id}", "methods": ["GET"], "parts": {"index": {}, "id": {}}}]},
        "params": {},
    }
}
_BULK = {
    "bulk": {"url": {"paths": [{"path": "/_bulk", "methods": ["POST"]}]}, "params": {}, "body": {"serialize": "bulk"}}
}


def _apis() -> dict[str, Api]:
    return read_apis(
        {f"{number}.json": json.dumps(each).encode() for number, each in enumerate((_COMMON, _SEARCH, _GET, _BULK))}
    )


def _first(choices: Sequence[Any]) -> Any:
    return choices[0]


def _request(api: str, **arguments: Any) -> Request:
    return build_request(_apis()[api], arguments, _first)


def test_common_parameters_are_not_an_api() -> None:
    assert sorted(_apis()) == ["bulk", "get", "search"]


def test_path_using_most_arguments_is_chosen() -> None:
    assert _request("search").target == "/_search"
    assert _request("search", index="docs").target == "/docs/_search"


def test_lists_and_booleans_in_path_and_query() -> None:
    request = _request("search", index=["a", "b*"], size=3, pretty=True)
    assert request.target == "/a,b*/_search?size=3&pretty=true"


def test_empty_list_is_an_empty_path_part() -> None:
    assert _request("search", index=[]).path == "//_search"


def test_path_parts_are_escaped() -> None:
    assert _request("get", index="中文", id="a/b c").path == "/%E4%B8%AD%E6%96%87/_doc/a%2Fb%20c"


def test_chooser_selects_the_method() -> None:
    api = _apis()["search"]
    assert build_request(api, {}, lambda choices: choices[-1]).method == "POST"
    assert build_request(api, {}, _first).method == "GET"


@pytest.mark.parametrize(
    ("api", "arguments"),
    [("search", {"sise": 3}), ("get", {"index": "docs"}), ("get", {"index": "docs", "id": 1, "body": {}})],
    ids=["unknown parameter", "part missing", "no body allowed"],
)
def test_invalid_call_is_rejected(api: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall):
        _request(api, **arguments)


def test_ignore_is_not_sent() -> None:
    assert _request("search", ignore=404).target == "/_search"


def test_object_body_is_json() -> None:
    request = _request("search", body={"query": {"match": {"text": "Ä"}}})
    assert (request.content_type, json.loads(request.body or b"")) == (
        "application/json",
        {"query": {"match": {"text": "Ä"}}},
    )


def test_no_body_has_no_content_type() -> None:
    request = _request("search")
    assert (request.body, request.content_type) == (None, "")


@pytest.mark.parametrize(
    "body",
    [
        [{"index": {"_id": 1}}, {"a": 1}],
        ['{"index": {"_id": 1}}', '{"a": 1}'],
        ['{"index": {"_id": 1}}', {"a": 1}],
        '{"index": {"_id": 1}}\n{"a": 1}\n',
    ],
    ids=["objects", "texts", "both", "one text"],
)
def test_bulk_body_has_one_line_per_value(body: Any) -> None:
    request = _request("bulk", body=body)
    assert request.content_type == "application/x-ndjson"
    assert request.body == b'{"index": {"_id": 1}}\n{"a": 1}\n'


def test_non_json_text_is_sent_unchanged() -> None:
    assert _request("search", body="{broken").body == b"{broken"
    assert _request("bulk", body=["{broken\n", "also broken\n"]).body == b"{broken\nalso broken\n"


def test_yaml_body_has_yaml_content_type() -> None:
    request = build_request(_apis()["search"], {"body": {"size": 1}}, _first, yaml=True)
    assert request.content_type == "application/yaml"
