"""The encoder on a card: which sessions batches go to, and how many, on stand-ins for the CUDA libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_bundle
from tests.cuda.stand_in import StandIns
from tests.unit.checkpoints import write_checkpoint

LAYERS = 2
FLASH, EFFICIENT = "flash_fwd_kernel", "attention_kernel_batched_impl"

ENCODE = """
from pathlib import Path
from es_sbert.encoder.encoder import Encoder
from tests.cuda.marks import mark

with Encoder({folder!r}, device="cuda") as encoder:
    steps = encoder.pipeline
    print(encoder.info.provider, encoder.info.variant, steps.window, steps.batch_tokens, steps.parallel_batches)
    for name, texts in {{"short": ["a cat"] * 3 + ["one", "two"], "long": ["cat " * 200, "a"]}}.items():
        encoder.encode(texts)
        mark(name)
        vectors = encoder.encode(texts)
        mark("end")
        print(vectors.shape)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = read_sentence_model(write_checkpoint(folder / "model", hidden=128, heads=4, layers=LAYERS, max_tokens=256))
    export_bundle(model, folder / "bundle", [Variant.FP16])
    return folder / "bundle"


def test_fp16_runs_on_cuda_with_the_attention_of_its_length(cuda_stand_ins: StandIns, bundle: Path) -> None:
    run = cuda_stand_ins.run(ENCODE.format(folder=str(bundle)))
    assert run.returncode == 0, run.stderr
    # In large windows and batches.
    assert run.stdout.splitlines() == ["CUDAExecutionProvider fp16 32768 65536 2", "(5, 128)", "(2, 128)"]
    short, long = run.trace.marked("short"), run.trace.marked("long")
    for trace, expected in ((short, (0, LAYERS)), (long, (LAYERS, 0))):
        names = [kernel.name for kernel in trace.kernels]
        assert (names.count(FLASH), names.count(EFFICIENT)) == expected
        assert {gemm.math_mode for gemm in trace.gemms} == {"DEFAULT"}  # no TF32
    # Copied back once, and identical texts run once.
    assert [copy.bytes for copy in short.copies("D2H")] == [3 * 128 * 4]


OVERFULL = """
import sys
from es_sbert.errors import DeviceError
from es_sbert.encoder.encoder import Encoder

with Encoder({folder!r}, device="cuda") as encoder:
    encoder.encode(["a cat"])
    try:
        encoder.encode([f"cat {{number}} " * 100 for number in range(500)])
    except DeviceError as error:
        print(error.message)
        print(error.remedy)
"""


def test_batch_out_of_memory_raises_device_error(cuda_stand_ins: StandIns, bundle: Path) -> None:
    run = cuda_stand_ins.run(OVERFULL.format(folder=str(bundle)), memory=40 << 20)
    assert run.returncode == 0, run.stderr
    message, remedy = run.stdout.splitlines()
    assert message.startswith("cuda:0 has too little free memory for this model: ")
    assert "smaller `budget`" in remedy


def test_parity_check_reports_why_it_was_skipped(cuda_stand_ins: StandIns, bundle: Path, tmp_path: Path) -> None:
    model, output = str(bundle.parent / "model"), str(tmp_path / "bundle")
    command = ["-m", "es_sbert.cli.main", "export", model, "-o", output, "--precision", "fp16"]
    run = cuda_stand_ins.run(command, without=("curand",))
    assert run.returncode == 0, run.stderr
    assert "fp16: not compared with the reference: no session on cuda:0" in run.stderr
    assert "libcurand.so.10" in run.stderr
    assert "NOT CHECKED on CUDA" in run.stdout
