"""Cross-encoders in fp16 on the real CUDA provider: what it computes where, and in which number format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from es_sbert.bundle.bundle import open_reranker_bundle
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.exporters.graph_builder import INT64
from tests.cuda.stand_in import Run, StandIns
from tests.unit.checkpoints import write_cross_encoder

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
LAYERS = 2
PAIRS, TOKENS = 3, 16
OPTIONS = {"enable_skip_layer_norm_strict_mode": "1", "use_tf32": "0", "sdpa_kernel": "7"}

RERANK = """
import sys
from pathlib import Path
from es_sbert.encoder.reranker import Reranker
from tests.cuda.marks import mark
with Reranker(Path(sys.argv[1]), device=sys.argv[2]) as reranker:
    mark("score")  # a trial was run before, with a length that suits no kernel
    print(reranker.name, reranker.score(["a man plays"] * 3, ["the cat sleeps", "", "guitar " * 90]).shape)
    print(*reranker.warnings, sep="\\n")
"""


@pytest.fixture(scope="module", params=["bert", "mpnet", "xlnet", "modernbert"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every kind: plain, with relative positions, with padding on the left, with rotary positions."""
    folder = write_cross_encoder(tmp_path_factory.mktemp("models") / "model", request.param, layers=LAYERS)
    export_reranker(read_cross_encoder(folder), folder.with_name("exported"), [Variant.FP16], force=True)
    return folder.with_name("exported")


@pytest.fixture(scope="module")
def scored(cuda_stand_ins: StandIns, exported: Path) -> Run:
    """`auto` on CUDA: three pairs, and then more padded tokens than one batch may have.

    1,100 pairs of 64 tokens are 70,400.
    """
    code = RERANK.replace(
        "    print(*reranker.warnings",
        '    mark("many")\n'
        '    print(reranker.score(["a " * 90] * 1100, ["b"] * 1100).shape)\n'
        "    print(*reranker.warnings",
    )
    done = cuda_stand_ins.run(["-c", code, str(exported), "cuda"])
    assert done.returncode == 0, done.stderr
    return done


def feed(folder: Path) -> dict[str, np.ndarray]:
    """Inputs of three texts, of which two have padding."""
    pairs = open_reranker_bundle(folder).manifest.pairs
    mask = np.ones((PAIRS, TOKENS), dtype=np.int64)
    mask[1:, TOKENS // 2 :] = 0
    if pairs.padding_side == "left":
        mask = np.ascontiguousarray(mask[:, ::-1])
    ids = np.where(mask == 1, 7, pairs.padding_id)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: inputs[name] for name in pairs.inputs}


def test_all_compute_nodes_run_on_cuda_in_fp16(cuda_stand_ins: StandIns, exported: Path) -> None:
    path = exported / "onnx/model_fp16.onnx"
    run = cuda_stand_ins.run_graph(path, feed(exported), provider_options=OPTIONS)
    assert run.error is None
    assert run.providers[0] == CUDA
    assert run.outputs == [[((PAIRS, 1), "float32")]]

    # What the CPU computes are shapes: integers, and whether they are equal. onnxruntime adds a Gather of a shape where
    # it moves a Transpose.
    typed = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    kinds = {info.name: info.type.tensor_type.elem_type for info in typed.graph.value_info}
    of_node = {node.name: {kinds.get(name) for name in node.output} for node in typed.graph.node}
    on_cpu = {name: operator for name, operator, provider in run.nodes if provider == CPU}
    assert {operator for name, operator in on_cpu.items() if name not in of_node} <= {"Gather"}
    computing = {name for name in on_cpu if not of_node.get(name, set()) <= {INT64, onnx.TensorProto.BOOL}}
    assert not computing

    # Attention is one operator where it is written in the usual way.
    fused = open_reranker_bundle(exported).manifest.architecture in ("bert", "mpnet")
    assert run.nodes_of(CUDA).count("MultiHeadAttention") == (LAYERS if fused else 0)
    assert run.nodes_of(CUDA).count("Softmax") == (0 if fused else LAYERS)

    # Every product is in float16 and summed in float32, but for the head's.
    [trace] = run.runs
    half = [gemm for gemm in trace.gemms if gemm.types[0] == "16F"]
    single = [gemm for gemm in trace.gemms if gemm.types[0] != "16F"]
    assert len(half) >= 6 * LAYERS, trace.summary()  # four products with weights and two of attention, or more
    assert {gemm.compute_type.removesuffix("_PEDANTIC") for gemm in half} == {"32F"}
    assert len(single) <= 2, trace.summary()
    assert not any(gemm.tf32 for gemm in single)
    assert trace.copies("D2H")[-1].bytes == 4 * PAIRS, trace.summary()


def test_attention_uses_memory_efficient_kernel_without_cudnn(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    """cuDNN would make a plan for every shape of a batch; other kernels store the scores of all pairs of tokens."""
    config = {"hidden_size": 64}  # heads of 16, where the models of other tests have 12
    folder = write_cross_encoder(tmp_path / "model", layers=LAYERS, config=config)
    export_reranker(read_cross_encoder(folder), tmp_path / "exported", [Variant.FP16])
    done = cuda_stand_ins.run(["-c", RERANK, str(tmp_path / "exported"), "cuda"])
    assert done.returncode == 0, done.stderr
    trace = done.trace.marked("score")
    kernels = [kernel.name for kernel in trace.kernels]
    assert kernels.count("attention_kernel_batched_impl") == LAYERS, trace.summary()
    assert not any("softmax" in name.lower() for name in kernels), trace.summary()
    assert not any("Descriptor" in name for name in done.trace.cudnn)


def test_missing_fp16_variant_warns_and_runs_fp32(cuda_stand_ins: StandIns, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", layers=1)
    export_reranker(read_cross_encoder(folder), tmp_path / "exported", [Variant.FP32])
    done = cuda_stand_ins.run(["-c", RERANK, str(tmp_path / "exported"), "auto"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["model (fp32) (3,)", "the reranker has no fp16 variant: fp32 runs instead"]


def test_fp16_scores_long_pairs_in_batches(scored: Run) -> None:
    assert scored.stdout.splitlines()[:2] == ["model (fp16) (3,)", "(1100,)"]
    trace = scored.trace.marked("many")
    scores = [copy.bytes // 4 for copy in trace.copies("D2H") if copy.bytes in (4 * 512, 4 * 76)]
    assert sorted(scores) == [76, 512, 512], trace.summary()
