"""`es-sbert index adopt` as a user types it, and the commands that follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.vectors import Vectors
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import open_engine
from tests.engine.vectors import vector_value
from tests.tiny import WORDS

COUNT = 104
TITLES = [f"the {WORDS[row % 8]} {WORDS[row // 8]} plays" for row in range(COUNT)]

Run = Callable[..., Done]


@pytest.fixture
def run(cli: Cli, model: Path, es9_url: str) -> Run:
    """`es-sbert COMMAND … --url URL`, with the model where the command takes one."""

    def call(*arguments: str | Path, with_model: bool = True) -> Done:
        chosen = ["--model", model, "--precision", "fp32", "--threads", "1"] if with_model else []
        return cli(*arguments, *chosen, "--url", es9_url)

    return call


@pytest.fixture
def plain(es9_url: str, fresh_index: Callable[[str], str], model: Path) -> Callable[..., str]:
    """A function that fills an index by plain requests; rows of `wrong` get vectors of something else."""

    def fill(*, wrong: tuple[int, ...] = ()) -> str:
        index = fresh_index(es9_url)
        with Encoder(str(model), precision="fp32", threads=1) as encoder:
            vectors: Vectors = encoder.encode(TITLES, "document")
        vectors[list(wrong)] = np.random.default_rng(0).normal(size=(len(wrong), 16)).astype(np.float32)
        with open_engine(es9_url) as engine:
            mapped = {"embedding": {"type": "dense_vector", "dims": 16}, "title": {"type": "text"}}
            engine.create_index(index, {"mappings": {"properties": mapped}})
            lines: list[dict[str, Any]] = []
            for row, title in enumerate(TITLES):
                lines += [
                    {"index": {"_id": f"d{row}"}},
                    {"title": title, "embedding": vector_value(engine.info, vectors[row])},
                ]
            assert all(r.ok for r in engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines)))
            engine.refresh(index)
        return index

    return fill


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
def test_adopt_workflow_from_doctor_to_search_and_backfill(run: Run, plain: Callable[..., str]) -> None:
    index = plain(wrong=(4,))
    command = f"es-sbert index adopt {index} --vector-field embedding --model MODEL --text-field FIELD"
    shown = run("index", "show", index, with_model=False)
    assert "embedding holds vectors of another program; adopt them: `es-sbert index adopt`" in shown.out
    assert command in run("doctor", "--index", index).out
    searched = run("search", "--index", index, "a cat")
    assert searched.code == 2
    assert command in searched.err

    tried = run("index", "adopt", index, "--text-field", "title", "--dry-run")
    assert tried.code == 0, tried.err
    assert tried.out.splitlines()[-1] == "The vectors are the model's. Nothing was written (--dry-run)."
    assert command in run("search", "--index", index, "a cat").err

    done = run("index", "adopt", index, "--text-field", "title")
    assert done.code == 0, done.err
    assert f"Adopted: {COUNT - 1} vectors of {index}.embedding." in done.out
    assert f"model's: marked; `es-sbert ingest --index {index}` embeds them again." in done.out
    assert re.search(r"^  +-?0\.\d{4}  d4$", done.out, re.MULTILINE)

    found = run("search", "--index", index, TITLES[7], "--json")
    assert found.code == 0, found.err
    assert "d7" in found.out.splitlines()[0]
    doctor = run("doctor", "--index", index)
    assert "1 of 104 vectors may not come from the field's model" in doctor.out
    assert run("ingest", "--index", index, "--json").summary["indexed"] == 1
    assert run("doctor", "--index", index).code == 0
    assert f"vectors      {COUNT} documents, {COUNT} of this model" in run("index", "show", index, with_model=False).out
    again = run("index", "adopt", index)
    assert (again.code, again.out) == (2, "")
    assert "es-sbert already fills" in again.err
    refused = run("index", "adopt", plain(wrong=tuple(range(60))), "--text-field", "title", "--json")
    assert (refused.code, refused.summary["accepted"], refused.summary["written"]) == (1, False, None)
