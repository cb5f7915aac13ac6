"""What the fp16 graph does on a card: its kernels, products, copies and waits, on stand-ins for the CUDA libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.sentence_graph import build_sentence_graph
from es_sbert.runtime.batching import pack
from tests.cuda.events import Copy, Gemm, Kernel, Sync
from tests.cuda.stand_in import GraphRun, StandIns
from tests.unit.checkpoints import write_checkpoint

# Heads of 32, as in MiniLM: attention's kernels are chosen by their size.
HIDDEN, HEADS, LAYERS = 128, 4, 2
FLASH, EFFICIENT = "flash_fwd_kernel", "attention_kernel_batched_impl"
# onnxruntime's AttentionBackend::EFFICIENT_ATTENTION, as a bit of the option sdpa_kernel.
EFFICIENT_ONLY = {"sdpa_kernel": "2"}
LENGTHS = (60, 41, 17, 17, 5, 4, 3)


def run_packed(
    stand_ins: StandIns, folder: Path, architecture: str = "bert", pooling: str = "mean", **options: object
) -> GraphRun:
    """Run the fp16 graph of a small model twice on texts of `LENGTHS` tokens; the second run is warm."""
    checkpoint = write_checkpoint(folder / "model", architecture, hidden=HIDDEN, heads=HEADS, layers=LAYERS)
    model = read_sentence_model(checkpoint).model_copy(update={"pooling": (Pooling(pooling),)})
    transformer = read_transformer_weights(model)
    path = folder / "model.onnx"
    save_graph(build_sentence_graph(model, transformer, Precision.FP16), path)
    batch = pack([np.full(length, 7) for length in LENGTHS], transformer.embeddings.padding_id)
    run = stand_ins.run_graph(path, vars(batch), runs=2, **options)  # type: ignore[arg-type]
    assert run.error is None
    assert run.outputs[1] == [((len(LENGTHS), HIDDEN), "float32")]
    return run


def kernels(run: GraphRun) -> list[str]:
    return [kernel.name for kernel in run.runs[1].kernels]


def test_graph_computes_on_cuda_with_fused_kernels_and_waits_for_vectors_only(
    cuda_stand_ins: StandIns, tmp_path: Path
) -> None:
    bert = run_packed(cuda_stand_ins, tmp_path)
    assert set(bert.nodes_of("CPUExecutionProvider")) <= {"Shape", "Concat", "Gather", "Unsqueeze", "Squeeze"}
    trace, tokens, names = bert.runs[1], sum(LENGTHS), kernels(bert)
    # Inputs are copied first, vectors last.
    order = [event for event in trace.events if isinstance(event, (Copy, Kernel, Gemm))]
    copies = [(place, event.direction) for place, event in enumerate(order) if isinstance(event, Copy)]
    assert copies == [*((place, "H2D") for place in range(5)), (len(order) - 1, "D2H")]
    assert [copy.bytes for copy in trace.copies("D2H")] == [len(LENGTHS) * HIDDEN * 4]
    last = max(place for place, event in enumerate(trace.events) if isinstance(event, (Kernel, Gemm)))
    assert not [event for event in trace.events[:last] if isinstance(event, Sync)]
    assert min(kernel.threads for kernel in trace.kernels) >= 32
    assert not [name for name in names if any(word in name for word in ("Padding", "Offset", "Transpose"))]
    shapes = [gemm.shape for gemm in trace.gemms if gemm.types == ("16F", "16F", "16F")]
    square, up, down = (tokens, HIDDEN, HIDDEN), (tokens, HIDDEN, 4 * HIDDEN), (tokens, 4 * HIDDEN, HIDDEN)
    assert shapes == [square, square, square, square, up, down] * LAYERS, trace.summary()
    assert {gemm.compute_type for gemm in trace.gemms} == {"32F"}
    assert names.count(FLASH) == LAYERS
    assert sum("BiasGelu" in name for name in names) == LAYERS
    assert sum("SkipLayerNorm" in name for name in names) == 2 * LAYERS + 1
    # Of attention's three biases only the query's is left; the others are folded into the product behind it.
    assert sum("BroadcastBias" in name for name in names) == LAYERS


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", "weightedmean"])
def test_packed_graph_does_not_call_cudnn(cuda_stand_ins: StandIns, tmp_path: Path, pooling: str) -> None:
    run = run_packed(cuda_stand_ins, tmp_path, pooling=pooling, without=("cudnn",))
    assert not run.runs[1].cudnn


def test_memory_efficient_kernel_reads_qkv_without_transpose(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    run = run_packed(cuda_stand_ins, tmp_path, provider_options=EFFICIENT_ONLY)
    assert kernels(run).count(EFFICIENT) == LAYERS
    assert FLASH not in kernels(run)
    assert not [name for name in kernels(run) if "Transpose" in name]


@pytest.mark.parametrize("options", [{}, EFFICIENT_ONLY], ids=["default", "efficient"])
def test_relative_position_bias_uses_fused_kernel(
    cuda_stand_ins: StandIns, tmp_path: Path, options: dict[str, str]
) -> None:
    run = run_packed(cuda_stand_ins, tmp_path, "mpnet", provider_options=options)
    names = kernels(run)
    assert names.count(EFFICIENT) == LAYERS
    assert not [name for name in names if "Softmax" in name or "Transpose" in name]
