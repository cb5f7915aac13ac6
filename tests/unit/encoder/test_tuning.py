"""The fastest variant is measured once on a machine, and remembered."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from es_sbert.bundle.bundle import EncoderBundle, EncoderManifest, open_encoder_bundle
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.cli.main import cli
from es_sbert.encoder import model_loading, tuning
from es_sbert.encoder.encode_file import EncodeSummary
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.model_loading import find_encoder, select_encoder_variant
from es_sbert.encoder.tuning import Measurement, Tuning, fastest_variant, measure_variants, read_tuning, tuning_path
from es_sbert.errors import ParityFailed
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import machine
from es_sbert.runtime.device import Device
from es_sbert.runtime.variant_candidates import TUNING_VARIABLE
from tests.tiny import write_tiny_bert

CPU = Device("cpu")
BOTH = (Variant.INT8, Variant.FP32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> EncoderBundle:
    folder = tmp_path_factory.mktemp("tuning")
    export_bundle(read_sentence_model(write_tiny_bert(folder / "tiny")), folder / "bundle", BOTH)
    return open_encoder_bundle(folder / "bundle")


@pytest.fixture(autouse=True)
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn tuning on, with a separate cache and as few rounds as possible."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(TUNING_VARIABLE, raising=False)
    monkeypatch.setattr(tuning, "_SECONDS", 0.0)


def speeds(monkeypatch: pytest.MonkeyPatch, **texts_per_second: float) -> list[int]:
    """Make measurements give these speeds; the list grows with each measuring."""
    measured: list[int] = []

    def measure(bundle: EncoderBundle, variants: object) -> list[Measurement]:
        measured.append(1)
        return [
            Measurement(variant=name, threads=3, batch_tokens=tokens, texts_per_second=speed / (1 + (tokens != 768)))
            for name, speed in texts_per_second.items()
            for tokens in (256, 768)
        ]

    monkeypatch.setattr(tuning, "measure_variants", measure)
    return measured


def test_every_variant_is_measured_with_several_batch_sizes(
    bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_SECONDS", 60.0)
    clock = iter(range(10_000))  # seconds, one for each look at it
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: float(next(clock)))
    measured = measure_variants(bundle, BOTH)
    assert {(one.variant, one.batch_tokens) for one in measured} == {
        (variant.value, tokens) for variant in BOTH for tokens in (256, 512, 1024)
    }
    assert all(one.texts_per_second > 0 for one in measured)
    assert [one.variant for one in measured] == ["int8"] * 3 + ["fp32"] * 3
    assert [one.batch_tokens for one in measured[:3]] == [512, 256, 1024]


def test_hyperthreads_are_measured_beside_physical_cores(
    bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "thread_counts", lambda: (1, 2))
    measured = measure_variants(bundle, BOTH)
    assert [(one.variant, one.threads) for one in measured] == [("int8", 1), ("int8", 2), ("fp32", 1), ("fp32", 2)]


@pytest.mark.parametrize(("speed", "threads"), [(103, 4), (106, 8)])
def test_physical_cores_are_preferred_unless_hyperthreads_are_clearly_faster(speed: float, threads: int) -> None:
    measured = (
        Measurement(variant="int8", threads=4, batch_tokens=512, texts_per_second=100),
        Measurement(variant="int8", threads=8, batch_tokens=512, texts_per_second=speed),
    )
    fastest = Tuning(machine={}, measured=measured).fastest([Variant.INT8])
    assert fastest is not None
    assert fastest.threads == threads


def test_a_slow_model_is_measured_with_its_usual_batches_only(bundle: EncoderBundle) -> None:
    assert [(one.variant, one.batch_tokens) for one in measure_variants(bundle, BOTH)] == [("int8", 512), ("fp32", 512)]


@pytest.mark.parametrize(("int8", "fp32", "fastest"), [(200, 100, "int8"), (100, 200, "fp32"), (100, 103, "int8")])
def test_fastest_is_chosen_and_preference_decides_near_ties(
    bundle: EncoderBundle, int8: float, fp32: float, fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds(monkeypatch, int8=int8, fp32=fp32)
    found = fastest_variant(bundle, BOTH, lambda message: None)
    assert found is not None
    assert (found.variant, found.batch_tokens) == (fastest, 768)


def test_result_is_kept_until_the_machine_changes(bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, messages = speeds(monkeypatch, int8=1, fp32=2), []
    for _ in range(3):
        fastest_variant(bundle, BOTH, messages.append)
    assert len(measured) == 1
    assert len(messages) == 2  # before and after
    kept = json.loads(tuning_path(bundle.manifest.fingerprint).read_text())
    assert kept["machine"] == machine.describe_machine()
    monkeypatch.setattr(machine, "processor_name", lambda: "another processor")
    assert read_tuning(bundle.manifest.fingerprint).measured == ()
    fastest_variant(bundle, BOTH, messages.append)
    assert len(measured) == 2


@pytest.mark.parametrize("content", ["", "{", '{"machine": 3}', "null"])
def test_broken_file_is_measured_again(bundle: EncoderBundle, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = speeds(monkeypatch, int8=1, fp32=2)
    path = tuning_path(bundle.manifest.fingerprint)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert fastest_variant(bundle, BOTH, lambda message: None) is not None
    assert len(measured) == 1


def test_processes_that_tune_at_once_measure_once(bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, found = speeds(monkeypatch, int8=1, fp32=2), []
    slow, measure = threading.Event(), tuning.measure_variants

    def slowly(bundle: EncoderBundle, variants: object) -> list[Measurement]:
        slow.wait(10)
        return measure(bundle, variants)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "measure_variants", slowly)
    threads = [
        threading.Thread(target=lambda: found.append(fastest_variant(bundle, BOTH, lambda message: None)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    slow.set()
    for thread in threads:
        thread.join()
    assert len(measured) == 1
    assert len({one.variant for one in found if one is not None}) == 1


def test_cache_that_cannot_be_written_is_one_line(bundle: EncoderBundle, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    messages: list[str] = []
    assert fastest_variant(bundle, BOTH, messages.append) is None
    assert len(messages) == 1
    assert "int8 runs" in messages[0]


def test_another_process_that_measures_for_long_is_not_waited_for(
    bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from es_sbert.filesystem import file_lock

    monkeypatch.setattr(tuning, "_LOCK_SECONDS", 0.01)
    path, messages = tuning_path(bundle.manifest.fingerprint).with_suffix(".lock"), []
    path.parent.mkdir(parents=True)
    with file_lock(path, lambda: None):
        assert fastest_variant(bundle, BOTH, messages.append) is None
    assert len(messages) == 1
    assert "Another process" in messages[0]


def test_encoder_runs_the_fastest_with_its_batches_and_threads(
    bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds(monkeypatch, int8=1, fp32=2)
    monkeypatch.setattr(model_loading, "contenders", lambda device, architecture: BOTH)
    with Encoder(bundle.folder, device="cpu") as encoder:
        assert (encoder.info.variant, encoder.batch_tokens, encoder.info.threads) == ("fp32", 768, 3)
    with Encoder(bundle.folder, device="cpu", precision="int8") as encoder:
        assert (encoder.info.variant, encoder.batch_tokens) == ("int8", 512)
    with Encoder(bundle.folder, device="cpu", budget=64) as encoder:
        assert encoder.batch_tokens == 64
    with Encoder(bundle.folder, device="cpu", threads=1) as encoder:
        assert (encoder.info.variant, encoder.info.threads) == ("fp32", 1)


def test_nothing_is_known_unless_all_variants_were_measured() -> None:
    one = Measurement(variant="int8", threads=1, batch_tokens=512, texts_per_second=10)
    known = Tuning(machine={}, measured=(one,))
    assert known.fastest([Variant.INT8]) == one
    assert known.fastest(BOTH) is None
    assert known.fastest([]) is None


def test_model_tune_prints_figures_and_marks_what_runs(bundle: EncoderBundle) -> None:
    done = CliRunner().invoke(cli, ["model", "tune", str(bundle.folder)])
    assert done.exit_code == 0, done.output
    assert "tokens a batch" in done.stdout
    assert done.stdout.count(" runs") == 1
    done = CliRunner().invoke(cli, ["model", "tune", str(bundle.folder), "--json"])
    figures = json.loads(done.stdout)
    assert {"machine", "measured"} <= figures.keys()
    assert {one["variant"] for one in figures["measured"]} >= {"int8", "fp32"}


def test_variant_below_its_parity_bar_is_no_contender(bundle: EncoderBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = speeds(monkeypatch, int8=2, fp32=1)
    variants = dict(bundle.manifest.variants)
    variants["int8"] = variants["int8"].model_copy(update={"forced": True})
    manifest = bundle.manifest.model_copy(update={"variants": variants})
    monkeypatch.setattr(model_loading, "contenders", lambda device, architecture: BOTH)
    monkeypatch.setattr(model_loading, "open_encoder_bundle", lambda folder: replace(bundle, manifest=manifest))
    selected = select_encoder_variant(find_encoder(bundle.folder), CPU, report=lambda message: None)
    assert selected.variant == "fp32"
    assert not measured


def export_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "contenders", lambda device, architecture: BOTH)
    monkeypatch.setattr(model_loading, "first_exports", lambda device, variants: variants)


def test_first_use_reports_steps_with_times_and_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_both(monkeypatch)
    folder, steps = write_tiny_bert(tmp_path / "tiny"), list[str]()
    with Encoder(folder, device="cpu", report=steps.append) as encoder:
        assert encoder.info.prepared_seconds > 0
        summary = EncodeSummary(texts=1, seconds=1.0).describe(encoder.info)
    assert re.search(r"\) \(the model was prepared before, in [\d.]+ s\)", summary)
    patterns = (
        r"Exporting .*tiny to ONNX \(int8, fp32\), once",
        r"Built int8 in [\d.]+ s",
        r"int8: cosine mean .* sentences \([\d.]+ s\)",
        rf"Exported .*tiny in [\d.]+ s; kept in {re.escape(str(tmp_path / 'cache'))}.*",
        r"Measuring int8, fp32 on this machine, once",
        r"Measured in [\d.]+ s",
    )
    found = [next((number for number, step in enumerate(steps) if re.fullmatch(each, step)), -1) for each in patterns]
    assert -1 not in found
    assert found == sorted(found)
    del steps[:]
    with Encoder(folder, device="cpu", report=steps.append) as encoder:
        assert (encoder.info.prepared_seconds, steps) == (0, [])
        assert "prepared" not in EncodeSummary(texts=1, seconds=1.0).describe(encoder.info)


@pytest.mark.parametrize(
    ("one_first", "exports"), [(False, [["int8", "fp32"], ["int8"], ["fp32"]]), (True, [["int8"], ["fp32"]])]
)
def test_variant_that_cannot_be_exported_is_tried_once(
    one_first: bool, exports: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []

    def export(model: SentenceModel, output: Path, variants: Sequence[Variant], **options: Any) -> EncoderManifest:
        tried.append([str(variant) for variant in variants])
        if Variant.INT8 in variants:
            raise ParityFailed("int8 is too far off", "Leave it out.")
        return export_bundle(model, output, variants, **options)

    monkeypatch.setattr("es_sbert.exporters.export_bundle.export_bundle", export)
    export_both(monkeypatch)
    if one_first:
        monkeypatch.setattr(model_loading, "first_exports", lambda device, variants: variants[:1])
    folder = write_tiny_bert(tmp_path / "tiny")
    for _ in range(2):
        selected = select_encoder_variant(find_encoder(folder), CPU, report=lambda message: None)
        assert selected.variant == "fp32"
        assert "there is no int8 variant (int8 is too far off): fp32 runs instead" in selected.warnings
    assert tried == exports
    monkeypatch.setattr(machine, "processor_name", lambda: "another processor")
    select_encoder_variant(find_encoder(folder), CPU, report=lambda message: None)
    assert tried[len(exports) :] == [["int8"]]
