"""German texts and a model for English: what a load, `doctor` and `index show` say on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.e2e.cli_support import cli_in_process
from tests.engine.ingest_support import load, sentences, tiny_encoder, write_jsonl

pytestmark = pytest.mark.one_engine


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """The small model, with a model card that says English."""
    folder = tmp_path_factory.mktemp("english")
    with tiny_encoder(folder) as encoder:
        (folder / "model/README.md").write_text("---\nlanguage: en\n---\n")
        yield encoder


def test_german_texts_and_a_model_for_english(
    engine_url: str, index_name: str, english: Encoder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    documents = sentences(100)
    for number in range(60):
        documents[number]["text"] = f"<b>Der Drucker {number}</b> im zweiten Stock druckt seit dem Update nicht mehr."
    documents[99]["text"] = "4711"
    file = write_jsonl(tmp_path / "docs.jsonl", documents)
    report = load(engine_url, english, index_name, file, dead=tmp_path / "dead", id_field="id")
    assert (report.indexed, report.languages) == (100, {"de": 60, "en": 39, "unknown": 1})
    assert report.exit_code == 0
    [warning] = [line for line in report.lines() if line.startswith("Warning: ")]
    message = "about 61% of the 99 sampled texts with a recognizable language are in other languages, mostly German"
    assert message in warning
    command = f"`es-sbert index migrate {index_name} --model multilingual-e5-small`"
    assert command in warning

    run = cli_in_process(capfd)
    [field] = orjson.loads(run("index", "show", index_name, "--url", engine_url, "--json").out)["fields"]
    assert field["languages"] == {"de": 60, "en": 39, "unknown": 1}
    assert field["language_warning"].startswith(message)

    found = run("doctor", "--index", index_name, "--url", engine_url, "--json", "--device", "cpu")
    findings = [orjson.loads(line) for line in found.out.splitlines()]
    [finding] = [finding for finding in findings if finding["message"].startswith(message)]
    assert (finding["level"], finding["about"]) == ("warning", "field embedding")
    assert command in finding["remedy"]
