"""The step `attention`: from which length of text each of onnxruntime's attention kernels is the faster one."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.arithmetic import attention_flops
from benchmarks.gpu_check.card import load_libraries
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.results import JSON

LENGTHS = (15, 32, 48, 64, 96, 128, 256, 512)  # tokens a text
HIDDEN = (384, 768)
HEADS = 12
TRUE_TOKENS = 32_768
# The provider's option sdpa_kernel is a set of bits; 2 is the memory-efficient (CUTLASS) kernel alone.
KERNELS = {"default": {}, "sdpa_kernel=2": {"sdpa_kernel": "2"}}
_LAYERS = 8  # in one graph, so that starting a run weighs little


def attention(context: Context) -> JSON:
    """PackedMultiHeadAttention by each kernel at several lengths, with as many true tokens in each batch."""
    load_libraries()
    from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS

    cases: JSON = {}
    for hidden in HIDDEN:
        graph = write_graph(context.scratch / f"attention-{hidden}.onnx", hidden)
        for length in LENGTHS:
            name = f"{hidden}/{length}"
            if not context.wants(name):
                continue
            try:
                context.check_time(10)
            except OutOfTime as error:
                cases[name] = {"error": str(error)}
                continue
            say(f"attention: {name}")
            cases[name] = _measure(graph, hidden, length, min(TRUE_TOKENS, context.texts or TRUE_TOKENS), context.runs)
    return {
        "heads": HEADS,
        "encoder_takes_sdpa_kernel_2_up_to": SHORT_TEXT_TOKENS,
        "default_is_faster_from": {str(hidden): crossover(cases, hidden) for hidden in HIDDEN},
        "cases": cases,
    }


def crossover(cases: JSON, hidden: int) -> int | None:
    """The least measured length from which the default kernel is the faster one at every longer length too."""
    measured = {length: cases.get(f"{hidden}/{length}", {}).get("faster") for length in LENGTHS}
    found = None
    for length in sorted((length for length, faster in measured.items() if faster), reverse=True):
        if measured[length] != "default":
            break
        found = length
    return found


def write_graph(path: Path, hidden: int) -> Path:
    """A graph of nothing but attention: the output of each layer is the query of the next."""
    import onnx
    from onnx import TensorProto, helper

    rows = [("query", "key", "value"), ["tokens", hidden]]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, rows[1]) for name in rows[0]]
    inputs.append(helper.make_tensor_value_info("token_offset", TensorProto.INT32, ["batch", "longest"]))
    inputs.append(helper.make_tensor_value_info("cumulated_lengths", TensorProto.INT32, ["batch + 1"]))
    names = ["query", *(f"attended_{layer}" for layer in range(_LAYERS - 1)), "output"]
    nodes = [
        helper.make_node(
            "PackedMultiHeadAttention",
            [names[layer], "key", "value", "", "token_offset", "cumulated_lengths"],
            [names[layer + 1]],
            domain="com.microsoft",
            num_heads=HEADS,
        )
        for layer in range(_LAYERS)
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT16, rows[1])
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def _measure(graph: Path, hidden: int, length: int, tokens: int, runs: int) -> JSON:
    import onnxruntime

    from es_sbert.runtime.batching import pack
    from es_sbert.runtime.onnx_session import session_options

    texts = max(1, tokens // length)
    batch = pack([np.zeros(length, np.int64)] * texts)
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((texts * length, hidden), dtype=np.float32).astype(np.float16) for _ in range(3)]
    feed: dict[str, Any] = dict(zip(("query", "key", "value"), rows, strict=True))
    feed |= {"token_offset": batch.token_offset, "cumulated_lengths": batch.cumulated_lengths}
    found: JSON = {}
    outputs = []
    for name, options in KERNELS.items():
        providers = [("CUDAExecutionProvider", options), "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(graph), session_options(), providers=providers)
        if session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError(f"the session runs on {session.get_providers()[0]}")
        found[name] = _microseconds(session, feed, runs)
        outputs.append(session.run(["output"], feed)[0].astype(np.float32))
    medians = {name: times["median"] for name, times in found.items()}
    work = attention_flops(hidden, texts, length)
    return {
        "texts": texts,
        "microseconds_a_layer": found,
        "tflops": {name: work / (median * 1e6) for name, median in medians.items() if median},
        "faster": min(medians, key=lambda name: medians[name]),
        "largest_difference": float(np.abs(outputs[0] - outputs[1]).max()),
    }


def _microseconds(session: Any, feed: dict[str, Any], runs: int) -> JSON:
    """Microseconds of a layer, inputs and output on the card."""
    import onnxruntime

    from benchmarks.gpu_check.card import timed

    binding = session.io_binding()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(values, "cuda", 0) for name, values in feed.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output", "cuda")
    times = timed(lambda: session.run_with_iobinding(binding), binding.synchronize_outputs, runs, warm_up=5)
    times = [1e6 * took / _LAYERS for took in times]
    return {"median": statistics.median(times), "min": min(times)}
