"""The text of numbers is found among the terms of a field, and where a number may be written differently."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from es_sbert.index.whole_documents import WholeDocument, _leaves, _restore, write_lines
from es_sbert.io.json_text import dump_object, parse_exact

HIT = {"_id": "1", "_routing": "r", "_seq_no": 3, "_primary_term": 1}


@pytest.mark.parametrize(
    ("source", "terms", "restored"),
    [
        ("[1.1]", ["1.10"], "[1.10]"),
        ("[1.1,1.1,1.1]", ["1.1", "1.10", "1.100"], "[1.10,1.100,1.1]"),
        ("[1.1,1.1,7.0]", ["1.10", "7.0"], "[1.10,1.10,7.0]"),  # a term is listed once
        ("[1.1,[2.0]]", ["1.1", "2"], "[1.1,[2]]"),
        ("[1.0E7,0,0]", ["10000000.0", "-0", "0"], "[10000000.0,-0,0]"),
        ("[1.1]", ["1.1"], "[1.1]"),
        ("[1.1]", [], "[1.1]"),  # the keyword has an `ignore_above`
        ("[1.1]", ["2.20", "abc", "0x1", "nan", ""], "[1.1]"),
        ('[1.1,"1.10"]', ["1.1", "1.10"], '[1.1,"1.10"]'),
        ('["1.1",false,null,5]', ["1.10", "5.0", "-0"], '["1.1",false,null,5]'),
    ],
)
def test_text_is_restored_from_terms(source: str, terms: Sequence[str], restored: str) -> None:
    value = parse_exact(f'{{"a":{source}}}'.encode())
    _restore(list(_leaves(value)), terms)
    assert dump_object(value).decode() == f'{{"a":{restored}}}'


def test_whole_document_is_changed_as_by_an_update() -> None:
    source = parse_exact(b'{"a":1.10,"v":[1.5],"v_meta":{"old":1.20,"kept":1.30},"s":"\\ud800"}')
    change = {"v": np.array([0.25], dtype=np.float32), "v_meta": {"old": "new"}, "w": None}
    head, body, end = write_lines(HIT, change, WholeDocument(source)).split(b"\n")
    assert json.loads(head) == {
        "index": {"_id": "1", "routing": "r", "if_seq_no": 3, "if_primary_term": 1, "pipeline": "_none"}
    }
    assert dump_object(parse_exact(body), sort_keys=True) == dump_object(
        parse_exact(b'{"a":1.10,"v":[0.25],"v_meta":{"old":"new","kept":1.30},"s":"\\ud800","w":null}'), sort_keys=True
    )
    assert end == b""


def test_other_documents_are_updated() -> None:
    head, body, _ = write_lines(HIT, {"v": None}, None).split(b"\n")
    assert json.loads(head) == {"update": {"_id": "1", "routing": "r", "if_seq_no": 3, "if_primary_term": 1}}
    assert json.loads(body) == {"doc": {"v": None}}
