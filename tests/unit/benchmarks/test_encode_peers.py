"""The comparison of encoders: its parts that need no peer, and a run with contenders that only pretend."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.encode_peers import __main__ as command
from benchmarks.encode_peers import results, worker
from benchmarks.encode_peers.contenders import AUTO, REFERENCE, Contender, own_contenders, peer_contenders
from benchmarks.encode_peers.environments import Environment, Environments, site_packages, without_addresses
from benchmarks.encode_peers.measure import Comparison, ContenderFailed, ContenderProcess, sts_correlation
from benchmarks.encode_peers.plot import bar_plot
from benchmarks.encode_peers.processor import KINDS, describe, onnx_instructions, others_share, parse_busy
from benchmarks.encode_peers.results import ContenderResult, Run, goals, keep, kept, merged, ratio, run_table, section
from benchmarks.encode_peers.texts import (
    OWN,
    PARAGRAPHS,
    SHORT,
    STSB,
    TextSet,
    calibration_texts,
    distinct,
    short_documents,
    spaced,
    text_sets,
)
from es_sbert.config import DEFAULT_MODEL

_FAKE = f"""
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("worker", {worker.__file__!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

class Fake:
    def __init__(self, model, threads, options):
        print("a library that prints")
        if options.get("broken"):
            raise ValueError("no file at /home/someone/models/model.onnx")
        self.options = options
        self.details = f"{{model}} {{threads}}"

    def encode(self, texts):
        if self.options.get("ends"):
            os._exit(3)
        time.sleep(self.options.get("seconds", 0))
        return [[len(text), text.count("a"), 1.0] for text in texts]

worker.serve({{"fake": Fake}})
"""


@pytest.fixture
def fake_worker(tmp_path: Path) -> Path:
    file = tmp_path / "fake.py"
    file.write_text(_FAKE)
    return file


@pytest.mark.parametrize(
    ("flags", "machine", "kind", "instructions"),
    [
        ("avx2 avx512f avx512_vnni amx_tile amx_int8 amx_bf16 avx_vnni", "x86_64", "amx", "avx512_vnni"),
        ("avx2 avx512f avx512_vnni avx512_bf16 avx_vnni", "x86_64", "avx512-bf16", "avx512_vnni"),
        ("avx2 avx512f avx512_vnni", "x86_64", "avx512-vnni", "avx512_vnni"),
        ("avx2 avx512f", "x86_64", "avx512", "avx512"),
        ("avx2 avx_vnni", "AMD64", "avx2-vnni", "avx2"),
        ("sse4_2 avx2 fma", "x86_64", "avx2", "avx2"),
        ("sse4_2", "x86_64", "other", "avx2"),
    ],
)
def test_kind_of_an_x86_processor(flags: str, machine: str, kind: str, instructions: str) -> None:
    cpuinfo = f"processor\t: 0\nmodel name\t: Some  CPU\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n"
    processor = describe(cpuinfo, machine, 2)
    assert (processor.kind, processor.name, processor.cores) == (kind, "Some CPU", 2)
    assert kind in KINDS
    assert "fpu" not in processor.features
    assert onnx_instructions(processor) == instructions


@pytest.mark.parametrize(
    ("features", "kind"), [("asimd asimddp i8mm", "arm-i8mm"), ("asimd asimddp", "arm-dotprod"), ("", "arm")]
)
def test_kind_of_an_arm_processor(features: str, kind: str) -> None:
    processor = describe(f"Features\t: fp {features}\n", "aarch64", 4)
    assert processor.kind == kind
    assert onnx_instructions(processor) == "arm64"


def test_time_of_other_programs() -> None:
    assert parse_busy(["cpu  100 20 30 999 999 5 5 40 7 7", "cpu0 1 1 1 1 1 1 1 1"], 100) == 2.0
    assert parse_busy([], 100) is None
    assert others_share(None, 1.0, 0.0, 1.0) is None
    assert others_share(1.0, 1.5, 2.0, 1.0) == 0.0
    assert others_share(1.0, 9.0, 2.0, 3.0) > 0


def test_environment_folder_changes_with_the_pins() -> None:
    one = Environment("a", ("x==1",))
    assert one.key == Environment("a", ("x==1",)).key
    keys = {one.key, Environment("a", ("x==2",)).key, Environment("a", ("x==1",), one).key}
    assert len(keys) == 3


def test_complete_environment_is_not_installed_again(tmp_path: Path) -> None:
    environment = Environment("a", ("x==1",))
    (tmp_path / environment.key).mkdir()
    (tmp_path / environment.key / "complete").touch()
    environments = Environments(tmp_path, pytest.fail)
    assert environments.python(environment).is_relative_to(tmp_path)
    assert environments.variables(environment, 2)["HOME"] == str(tmp_path / environment.key)
    assert site_packages(tmp_path).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("message", "public"),
    [
        ("no file at /home/someone/x/model.onnx (1/2)", "no file at … (1/2)"),
        ("fetching https://host.example/simple/x failed", "fetching … failed"),
        (r"C:\Users\someone\x is missing", "… is missing"),
        ("No matching distribution found for onnx/runtime==9", "No matching distribution found for onnx/runtime==9"),
    ],
)
def test_reasons_are_without_addresses(message: str, public: str) -> None:
    assert without_addresses(message) == public


def test_contenders_are_auto_and_each_runtime_and_precision() -> None:
    both = own_contenders(budgets=[512])
    assert [contender.label for contender in both] == [
        AUTO,
        "es-sbert onnxruntime fp32",
        "es-sbert onnxruntime int8",
        "es-sbert openvino fp32",
        "es-sbert openvino bf16",
        "es-sbert openvino int8",
        f"{AUTO}, 512 tokens a batch",
    ]
    assert both[0].options == {}
    assert {"runtime": "openvino", "precision": "bf16"} in [contender.options for contender in both]
    assert both[-1].options == {"budget": 512}
    peers = peer_contenders("avx2", "folder")
    labels = [contender.label for contender in [*both, *peers]]
    assert len(set(labels)) == len(labels)
    assert REFERENCE in labels
    assert not any(peer.ours for peer in peers)
    prepared = {peer.prepared.key for peer in peers if peer.prepared is not None}
    assert len(prepared) == 4


def _words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"A sentence {number}.\tA sentence {number // 2}!\t{number % 6}" for number in range(20)]
    documents = [{"text": f"document {number} " + "word " * (number % 30)} for number in range(1_000)]
    for name, lines in {
        "sts/stsb-en-test.tsv.gz": ["sentence1\tsentence2\tscore", *rows],
        "ingest/short-docs.jsonl.gz": [json.dumps(document) for document in documents],
    }.items():
        file = tmp_path / name
        file.parent.mkdir()
        file.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return tmp_path


def test_sets_are_distinct_and_paragraphs_are_put_together_where_there_is_no_corpus(data: Path) -> None:
    own = data / "own.txt"
    own.write_text("One line\n\nOne line.\nAnother\n")
    short = short_documents(data)
    sets = {texts.name: texts for texts in text_sets(data, short, _words, own=own)}
    assert list(sets) == [STSB, SHORT, PARAGRAPHS, OWN]
    assert len(sets[STSB].texts) == 20
    assert sets[OWN].texts == ("One line.", "Another")
    assert 15 <= sets[SHORT].tokens <= 25
    assert 128 <= sets[PARAGRAPHS].tokens <= 256
    limited = text_sets(data, short, _words, limit=5)
    assert all(len(texts.texts) == 5 for texts in limited)
    assert set(calibration_texts([str(number) for number in range(5_000)])).isdisjoint(
        spaced([str(number) for number in range(5_000)], 2_000)
    )


def test_corpus_gives_paragraphs(data: Path) -> None:
    corpus = data / "retrieval/cisi/corpus.jsonl.gz"
    corpus.parent.mkdir(parents=True)
    rows = [{"title": f"Title {number}", "text": "word " * number} for number in range(300)]
    corpus.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    sets = {texts.name: texts for texts in text_sets(data, short_documents(data), _words)}
    assert sum(text.startswith("Title") for text in sets[PARAGRAPHS].texts) == 128


def test_no_text_of_a_round_was_seen_before() -> None:
    texts = TextSet(STSB, tuple(distinct(f"Text {number}." for number in range(50))), 3.0)
    rounds = [texts.for_round(number) for number in range(6)]
    assert all(len(set(part)) == 50 for part in rounds)
    assert len({text for part in rounds for text in part}) == 300
    orders = {tuple(text[:-1] for text in part) for part in rounds}
    assert len(orders) == 6
    assert rounds[1] == texts.for_round(1)
    assert distinct(["a.", "a!", "", "b"]) == ["a!", "b"]


def _result(label: str, speeds: dict[str, list[float]], **fields: object) -> ContenderResult:
    values = {"rho": 82.0, "start_seconds": [1.0, 2.0], "megabytes": [100.0, 200.0], "others": [0.0], **fields}
    return ContenderResult(label, label.startswith("es-sbert"), speeds=speeds, **values)  # type: ignore[arg-type]


def _run(auto: float = 200.0, rho: float = 81.6, kind: str = "amx", model: str = DEFAULT_MODEL) -> Run:
    names = (STSB, SHORT, PARAGRAPHS)
    contenders = [
        _result(AUTO, {name: [auto, auto + 10] for name in names}, rho=rho, details="int8"),
        _result(REFERENCE, {name: [50.0, 60.0] for name in names}, environment="torch", versions={"torch": "1"}),
        _result("fast & small", {name: [100.0, 100.0] for name in names}, environment="fast"),
        ContenderResult("broken", False, reason="pip: a | b"),
    ]
    processor = {"kind": kind, "name": "Some CPU", "features": ["avx2"], "cores": 2}
    sets = {name: {"texts": 10, "tokens": 14.2} for name in names}
    return Run(model, "2026-01-01", "abc", 2, 2, processor, "3.11", 0.1, sets, contenders)


def test_ratio_is_that_of_the_rounds() -> None:
    one, other = _result("a", {STSB: [10, 30, 20]}), _result("b", {STSB: [10, 10, 10]})
    assert ratio(one, other, STSB) == 2


def test_goals_are_met_missed_or_not_measured() -> None:
    assert [goal.met for goal in goals(_run())] == [True] * 4
    assert [goal.met for goal in goals(_run(auto=120.0, rho=81.0))] == [False, False, True, False]
    alone = replace(_run(), contenders=[_run().contenders[0]])
    assert [goal.met for goal in goals(alone)] == [None] * 4
    assert "not measured" in str(next(goals(alone)))
    assert "2.05 × fast & small, goal ≥ 1.5: met" in str(next(goals(_run())))


def test_loss_is_to_our_fp32_where_the_reference_is_missing() -> None:
    run = _run()
    own = _result("es-sbert onnxruntime fp32", {name: [1.0, 1.0] for name in run.sets}, details="fp32", rho=83.0)
    assert results.loss(replace(run, contenders=[run.contenders[0], own]), run.contenders[0]) == pytest.approx(1.4)


def test_table_has_every_contender_the_fastest_first() -> None:
    lines = run_table(_run()).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| {AUTO} (int8)",
        "| fast & small",
        f"| {REFERENCE}",
        "| broken",
    ]
    assert "not measured: pip: a \\| b" in lines[-1]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_run_replaces_only_its_own_kind_and_model(tmp_path: Path) -> None:
    keep(_run(kind="avx2"), tmp_path)
    keep(_run(kind="amx", model="other"), tmp_path)
    keep(_run(kind="amx"), tmp_path)
    before = (tmp_path / "avx2.json").read_bytes()
    keep(_run(kind="amx", auto=1234.56789), tmp_path)
    assert (tmp_path / "avx2.json").read_bytes() == before
    runs = kept(tmp_path)
    assert list(runs) == ["amx", "avx2"]
    assert [run.model for run in runs["amx"]] == [DEFAULT_MODEL, "other"]
    assert runs["amx"][0].contenders[0].speeds[STSB] == [1234.5679, 1244.5679]
    assert runs["avx2"] == [_run(kind="avx2")]
    assert merged([], _run()) == [_run()]
    text = section(runs)
    assert text.index("### x86 with AMX: all-MiniLM-L6-v2") < text.index("### x86 with AMX: other")
    assert "### x86 with AVX2: all-MiniLM-L6-v2" in text
    assert "images/encode-amx-other.svg" in text
    assert kept(tmp_path / "missing") == {}


def test_page_tells_of_a_busy_machine_and_of_other_vectors() -> None:
    run = _run()
    run.contenders[0].others = [0.2, 0.3, 0.4]
    run.contenders[2].cosines = {PARAGRAPHS: 0.9}
    text = results.run_text(run)
    assert "the machine was busy" in text
    assert "fast & small on paragraphs (0.900)" in text
    assert "the machine was quiet" in results.run_text(_run())


@pytest.mark.parametrize("contenders", [4, 0])
def test_plot_is_well_formed(contenders: int) -> None:
    run = _run()
    root = ElementTree.fromstring(bar_plot(replace(run, contenders=run.contenders[:contenders])))
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    bars = [element for element in root.iter("{http://www.w3.org/2000/svg}rect") if element.get("class") != "page"]
    assert names.count("fast & small") == (3 if contenders else 0)
    assert len(bars) == (9 if contenders else 0)
    assert all(0 < float(bar.get("width", 0)) < 900 for bar in bars)


def test_correlation_of_vectors() -> None:
    first = np.array([[1, 0], [1, 0], [1, 0]], np.float32)
    second = np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    assert sts_correlation(np.concatenate([first, second]), [5, 3, 1]) == pytest.approx(100)
    assert sts_correlation(np.concatenate([first, second]), [1, 3, 5]) == pytest.approx(-100)


@pytest.fixture
def process(fake_worker: Path, tmp_path: Path) -> Iterator[ContenderProcess]:
    with ContenderProcess([sys.executable, fake_worker], {}, tmp_path / "log", limit=20) as process:
        yield process


def _load(process: ContenderProcess, **options: object) -> dict[str, object]:
    return process.ask(do="load", library="fake", model="m", threads=2, options=options)


def test_contender_answers_and_its_prints_go_to_the_log(process: ContenderProcess, tmp_path: Path) -> None:
    assert _load(process)["details"] == "m 2"
    texts, vectors = tmp_path / "texts.json", tmp_path / "vectors.npy"
    texts.write_text(json.dumps(["banana", "ö"]))
    answer = process.ask(do="encode", texts=str(texts), vectors=str(vectors))
    assert answer["texts"] == 2
    assert answer["seconds"] >= 0
    assert np.load(vectors).tolist() == [[6, 3, 1], [1, 0, 1]]
    assert process.ask(do="memory")["megabytes"] > 1
    assert "a library that prints" in (tmp_path / "log").read_text()


def test_contender_that_fails_gives_the_reason_and_goes_on(process: ContenderProcess) -> None:
    with pytest.raises(ContenderFailed, match="^load: ValueError: no file at …$"):
        _load(process, broken=True)
    assert _load(process)["versions"] == {}


def test_contender_that_ends_is_noticed(process: ContenderProcess, tmp_path: Path) -> None:
    _load(process, ends=True)
    (tmp_path / "texts.json").write_text('["a"]')
    with pytest.raises(ContenderFailed, match="the process ended with 3"):
        process.ask(do="encode", texts=str(tmp_path / "texts.json"))
    with pytest.raises(ContenderFailed, match="the process ended"):
        process.ask(do="memory")


def test_contender_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        ContenderProcess(command, {}, tmp_path / "log", limit=0.5) as process,
        pytest.raises(ContenderFailed, match="^load: no answer within"),
    ):
        _load(process)


def test_turns_of_all_contenders(fake_worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "__file__", str(fake_worker))
    lines: list[str] = []
    comparison = Comparison(
        model="m",
        folder=tmp_path,
        prepared=tmp_path,
        environments=Environments(tmp_path, pytest.fail),
        threads=2,
        sets=[TextSet(STSB, tuple(f"Text {number}" for number in range(40)), 3.0), TextSet(OWN, ("One", "Two"), 2.0)],
        sts=[{"sentence1": f"{'a' * number}", "sentence2": "b" * 5, "score": str(number)} for number in range(1, 6)],
        work=tmp_path,
        report=lines.append,
    )
    contenders = [
        Contender(AUTO, "fake"),
        Contender(REFERENCE, "fake", {"seconds": 0.05}),
        Contender("broken", "fake", {"broken": True}),
    ]
    auto, reference, broken = comparison.run(contenders, 2)
    assert [result.label for result in (auto, reference, broken)] == [contender.label for contender in contenders]
    assert {name: len(speeds) for name, speeds in auto.speeds.items()} == {STSB: 2, OWN: 2}
    assert len(auto.start_seconds) == len(auto.megabytes) == 2
    assert auto.cosines == pytest.approx({STSB: 1, OWN: 1})
    assert auto.rho == reference.rho != 0
    assert max(reference.speeds[STSB]) < 40 / 0.05
    assert broken.reason.startswith("load: ValueError")
    assert not broken.speeds
    assert sum(line.startswith("round") for line in lines) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "--data is needed"), (["--data", ".", "--write", "--limit", "5"], "--write is for whole runs")],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_command_shows_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, images = tmp_path / "results.md", tmp_path / "images"
    page.write_text(f"before\n<!-- encode: made by {results.MAKER} -->\n<!-- end of encode -->\nafter\n")
    images.mkdir()
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "IMAGES", images)
    monkeypatch.setattr(results, "kept", lambda: {"amx": [_run()]})
    result = CliRunner().invoke(command.main, ["--kept", "--write"])
    assert result.exit_code == 0, result.output
    assert results.run_text(_run()) in page.read_text()
    assert page.read_text().endswith("<!-- end of encode -->\nafter\n")
    assert ElementTree.parse(images / "encode-amx.svg")
