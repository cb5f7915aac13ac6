"""Smoke tests of the comparisons with other libraries: no peer is installed, and no engine runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import pairs
from benchmarks.encode_peers import __main__ as encode_command
from benchmarks.encode_peers import worker
from benchmarks.encode_peers.contenders import AUTO, REFERENCE, Contender
from benchmarks.encode_peers.environments import Environments
from benchmarks.encode_peers.measure import Comparison, ContenderFailed
from benchmarks.encode_peers.texts import OWN, STSB, TextSet
from benchmarks.ingest_peers import __main__ as ingest_command
from benchmarks.ingest_peers.measure import check_vectors
from benchmarks.search_peers import __main__ as search_command
from benchmarks.search_peers.measure import with_vector
from benchmarks.search_peers.worker import closed_loop, complete_hits

_FAKE = f"""
import importlib.util, time
spec = importlib.util.spec_from_file_location("worker", {worker.__file__!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

class Fake:
    def __init__(self, model, threads, options):
        print("a library that prints")
        if options.get("broken"):
            raise ValueError("no file at /home/someone/models/model.onnx")
        self.details = f"{{model}} {{threads}}"

    def encode(self, texts):
        return [[len(text), text.count("a"), 1.0] for text in texts]

worker.serve({{"fake": Fake}})
"""


def test_turns_of_all_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake.py").write_text(_FAKE)
    monkeypatch.setattr(worker, "__file__", str(tmp_path / "fake.py"))
    comparison = Comparison(
        model="m",
        folder=tmp_path,
        prepared=tmp_path,
        environments=Environments(tmp_path, pytest.fail),
        threads=2,
        sets=[TextSet(STSB, tuple(f"Text {number}" for number in range(40)), 3.0), TextSet(OWN, ("One", "Two"), 2.0)],
        sts=[{"sentence1": f"{'a' * number}", "sentence2": "b" * 5, "score": str(number)} for number in range(1, 6)],
        work=tmp_path,
        report=lambda line: None,
    )
    contenders = [Contender(AUTO, "fake"), Contender(REFERENCE, "fake"), Contender("broken", "fake", {"broken": True})]
    auto, reference, broken = comparison.run(contenders, 2)
    assert {name: len(speeds) for name, speeds in auto.speeds.items()} == {STSB: 2, OWN: 2}
    assert auto.cosines == pytest.approx({STSB: 1, OWN: 1})
    assert auto.rho == reference.rho != 0
    assert broken.reason.startswith("load: ValueError: no file at …")


def test_vectors_are_checked() -> None:
    reference = np.array([[1, 0], [0, 2]], np.float32)
    right = [np.array(numbers, np.float32) for numbers in ([2, 0], [5, 5], [0.1, 1])]
    check_vectors(right, [0, 2], reference)
    with pytest.raises(ContenderFailed, match=f"a cosine of 0.707 with that of {REFERENCE}"):
        check_vectors(right, [0, 1], reference)
    with pytest.raises(ContenderFailed, match="2 of 3 documents have a vector of 2 numbers"):
        check_vectors([*right[:2], None], [0, 1], reference)


def test_each_client_sends_every_query_once_and_partial_answers_are_refused() -> None:
    queries = [str(number) for number in range(200)]
    _, answers = closed_loop([str.upper] * 8, iter(queries), 20)
    assert sorted(answer for _, answer in answers) == sorted(queries)
    answer = {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": [{"_id": "a"}]}}
    assert complete_hits(answer) == ["a"]
    with pytest.raises(ValueError, match="lacks shards"):
        complete_hits(answer | {"_shards": {"failed": 1}})
    body = {"knn": {"query_vector": [0.1, 0.2], "k": 10}, "size": 10}
    assert with_vector(body, [3.0, 4.0]) == body | {"knn": {"query_vector": [3.0, 4.0], "k": 10}}


@pytest.mark.parametrize("command", [encode_command, ingest_command, search_command, pairs])
def test_commands_refuse_incomplete_arguments_and_show_what_is_kept(command: object) -> None:
    refused = CliRunner().invoke(command.main, [])  # type: ignore[attr-defined]
    assert refused.exit_code == 2
    assert "--data" in refused.output
    shown = CliRunner().invoke(command.main, ["--kept"])  # type: ignore[attr-defined]
    assert shown.exit_code == 0
    assert "AMD EPYC" in shown.output
