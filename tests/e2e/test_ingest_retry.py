"""`--retry`: dead letters, some of them mended by hand, are tried again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import contents, letters
from tests.faults.bench import Bench
from tests.faults.compare import compare
from tests.faults.corpus import corpus


def test_dead_letters_are_retried(es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path) -> None:
    with (
        Encoder(str(model), precision="fp32", threads=1) as tiny,
        closing(Bench("es9", es9_url, fresh_index(es9_url), model, tiny, tmp_path, corpus(2000), outage=0)) as bench,
    ):
        bench.create(shards=1)
        bench.finish()
        # Half of the documents are mended by hand; for one of them the index has got a later version meanwhile.
        written = [letter for letter in letters(bench.letters) if letter["id"] is not None]
        half = len(written) // 2
        for letter in written[:half]:
            letter["document"]["price"] = 1.0
        bench.letters.write_bytes(b"".join(orjson.dumps(letter) + b"\n" for letter in written))
        later = {"id": written[0]["id"], "text": "a later word", "price": 2.0}
        source = tmp_path / "later.jsonl"
        source.write_bytes(orjson.dumps(later) + b"\n")
        whole, bench.arguments = bench.arguments, [str(source)]
        bench.finish()
        bench.arguments = whole

        summary = bench.finish("--retry", str(bench.letters))
        assert (summary["read"], summary["indexed"], summary["dead"]) == (len(written), half - 1, len(written) - half)
        assert summary["skipped"]["superseded"] == 1
        left = letters(bench.letters)
        assert sorted(letter["id"] for letter in left) == sorted(letter["id"] for letter in written[half:])
        assert contents(es9_url, bench.index)[later["id"]]["price"] == 2.0
        assert not list(tmp_path.glob("*retried*"))

        # Everything else is as it was: what was mended is in, the letters without a document were taken out above.
        for letter in written[:half]:
            bench.corpus.dead.remove(letter["id"])
            bench.corpus.wanted[letter["id"]] = letter["document"]
        bench.corpus.wanted[later["id"]] = later
        end = compare(bench)
        assert (end.doubled, end.lost) == (0, bench.corpus.broken)
