"""`--strip-html`: the texts of HTML are embedded, the documents keep it, and later loads do the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import contents

BODY = "<h1>Cats &amp; dogs</h1><script>track()</script><p>A man is <b>play</b>ing a guitar.<p>The sun is hot."
TEXT = "Cats & dogs\n\nA man is playing a guitar.\n\nThe sun is hot."


def test_texts_are_embedded_without_tags_and_documents_keep_them(
    cli: Cli, model: Path, es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    index = fresh_index(es9_url)
    Path("a.jsonl").write_bytes(orjson.dumps({"id": "1", "body": BODY}))
    where = ("--index", index, "--url", es9_url, "--model", model, "--precision", "fp32")
    load = ("ingest", *where, "a.jsonl", "--id-field", "id", "--json")
    options = ("--text-field", "body", "--strip-html", "--passages", "16")
    done = cli(*load, *options, "--dry-run")
    [document] = done.summary["documents"]
    assert document["texts"][0]["text"].startswith("Cats & dogs")
    assert "<" not in "".join(text["text"] for text in document["texts"])
    done = cli(*load, *options)
    assert (done.code, done.summary["indexed"]) == (0, 1)
    assert contents(es9_url, index)["1"]["body"] == BODY

    done = cli("search", *where, "a man plays music", "--json")
    passage = orjson.loads(done.out.splitlines()[0])["passage"]
    assert passage["text"] == TEXT[passage["start"] : passage["end"]]

    # The mapping remembers the text.
    for again in ((), ("--strip-html",), ("--text-template", "{body|strip_html}")):
        done = cli(*load, *again)
        assert (done.code, done.summary["unchanged"]) == (0, 1)
    done = cli(*load, "--text-field", "body")
    assert done.code == 2
    assert "made from the text '{body|strip_html}', not from '{body}'" in done.err
