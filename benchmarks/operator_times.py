"""Where the time of a variant goes, and how near its products come to what the processor can do.

    python -m benchmarks.operator_times [--model FOLDER] [--seconds 3] [--write]
    python -m benchmarks.operator_times --kept --write

For each variant of the model that runs on this processor, on one thread, with full batches of texts of 16 and of 128
tokens: the speed of the whole graph; the shares of products with weights, of attention and of everything else, from
the runtime's own profile; and the speed of one large product in the same precision, in a graph of its own, of the best
of three sizes. An addition and a multiplication count as two operations.

--write keeps the run in `benchmarks/results/operators/KIND.json` and writes its table into docs/results.md.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.common import table
from benchmarks.encode_peers.processor import KINDS, this_processor
from benchmarks.kept_runs import (
    ROOT,
    conditions,
    load_text,
    processor_text,
    read_kinds,
    rounded_numbers,
    write_kind,
    write_section,
)
from es_sbert.bundle.bundle import EncoderBundle
from es_sbert.bundle.variants import Precision, Runtime, Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.model_loading import find_encoder, open_or_export
from es_sbert.runtime.batching import InputBuilder, ModelInputs
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import session_options
from es_sbert.runtime.runtimes import compile_model
from es_sbert.runtime.variant_candidates import default_exports

RESULTS = ROOT / "benchmarks/results/operators"
PAGE = ROOT / "docs/results.md"
NAME, MAKER = "operator times", "benchmarks.operator_times"

_LENGTHS = (16, 128)  # tokens of the texts
_LARGE = (256, 512, 1024)  # rows and columns of the products that are measured alone
_INNER = 4  # times as long as the rows and columns, so that reading and writing them does not count

# Operators as the two runtimes name them in their profiles. A product of onnxruntime is one of attention if its second
# factor is no matrix. OpenVINO joins the operators of attention to a Subgraph.
_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat"}
_OPENVINO = {"FullyConnected": "products", "MatMul": "attention", "Subgraph": "attention"}
_GROUPS = ("products", "attention", "other")


@dataclass
class OperatorTimes:
    """What was measured of one variant with texts of one length.

    Attributes:
        variant: Its name.
        tokens: Of each text.
        batch_tokens: Of a batch.
        texts_per_second: On one thread, of the fastest batch.
        shares: `products`, `attention`, `other` → share of the time.
        others: The operators of `other`, the longest first, with their shares.
        rate: 10⁹ operations of products with weights a second, while these products run.
        large_rate: The same of one large product, of the best size.
    """

    variant: str
    tokens: int
    batch_tokens: int
    texts_per_second: float
    shares: dict[str, float]
    others: dict[str, float]
    rate: float
    large_rate: float


@dataclass
class OperatorRun:
    """One run of the benchmark.

    Attributes:
        model: Its name.
        date, commit, processor, python, load: See `kept_runs.conditions`.
        found: What was measured.
    """

    model: str
    date: str
    commit: str | None
    processor: dict[str, Any]
    python: str
    load: float
    found: list[OperatorTimes]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> OperatorRun:
        """A run that `asdict` has turned into JSON."""
        return cls(**{**fields, "found": [OperatorTimes(**one) for one in fields["found"]]})


def measure(bundle: EncoderBundle, variant: Variant, seconds: float) -> Iterator[OperatorTimes]:
    """One variant, with texts of each length."""
    graph, path = bundle.manifest.variants[variant], bundle.variant_file(variant)
    model = compile_model(path, graph.runtime, graph.precision, Device("cpu"), threads=1)
    session = model.open_session()
    build = InputBuilder(session.input_names, session.properties)
    per_token = operations_per_token(bundle.variant_file(Variant.FP32))
    large_rate = large_product_rate(variant, seconds)
    for tokens in _LENGTHS:
        ids = np.random.default_rng(0).integers(1, 8, size=tokens)  # every vocabulary has these
        rows = [ids] * (model.batch_tokens // tokens)
        inputs = build(rows)
        output = np.empty((len(rows), bundle.model.dimensions), dtype=np.float32)
        took = fastest(partial(session.run, inputs, output), seconds)
        times = profile(path, variant, inputs, seconds)
        whole = sum(times.values())
        shares = {group: sum(times[key] for key in times if key[0] == group) / whole for group in _GROUPS}
        others = Counter({name: value / whole for (group, name), value in times.items() if group == "other"})
        yield OperatorTimes(
            variant=variant,
            tokens=tokens,
            batch_tokens=model.batch_tokens,
            texts_per_second=len(rows) / took,
            shares=shares,
            others=dict(others.most_common(4)),
            rate=per_token * tokens * len(rows) / (took * shares["products"]) / 1e9,
            large_rate=large_rate,
        )


def operations_per_token(path: Path) -> int:
    """Operations of the products with weights in a graph of float32, for one token."""
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {tensor.name: tensor.dims for tensor in graph.initializer if len(tensor.dims) == 2}
    return sum(
        2 * weights[node.input[1]][0] * weights[node.input[1]][1]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in weights
    )


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of the calls in some time; other programs disturbed it least."""
    call()  # the first call of a shape prepares it
    found = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


def profile(path: Path, variant: Variant, inputs: ModelInputs, seconds: float) -> Counter[tuple[str, str]]:
    """(Group, operator) → microseconds, by the runtime's own profile."""
    if variant.runtime is Runtime.OPENVINO:
        return _profile_openvino(path, variant, inputs, seconds)
    options = session_options()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            fastest(lambda: session.run(None, inputs), seconds / 2)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            operator = event["args"]["op_name"]
            dimensions = [len(*shape.values()) for shape in event["args"]["input_type_shape"]]
            found[_group(operator, dimensions), operator] += event["dur"]
    return found


def _profile_openvino(path: Path, variant: Variant, inputs: ModelInputs, seconds: float) -> Counter[tuple[str, str]]:
    request = _compile_openvino(str(path), variant, {"PERF_COUNT": True})
    found: Counter[tuple[str, str]] = Counter()

    def run() -> None:
        request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        for node in request.get_profiling_info():
            if node.status == node.Status.EXECUTED:
                group = _OPENVINO.get(node.node_type, "other")
                found[group, node.node_type] += round(node.real_time.total_seconds() * 1e6)

    fastest(run, seconds)
    return found


def _compile_openvino(model: Any, variant: Variant, settings: Mapping[str, Any]) -> Any:
    """An inference request of a file's name or a model's bytes, with the settings of `OpenVinoModel` for one thread."""
    import openvino

    core = openvino.Core()
    precision = {Precision.BF16: "bf16"}.get(variant.precision, "f32")
    fixed = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model), "CPU", {**fixed, "ENABLE_CPU_PINNING": False, **settings})
    return compiled.create_infer_request()


def _group(operator: str, dimensions: Sequence[int]) -> str:
    """The group of an operator of onnxruntime, by the numbers of dimensions of its inputs."""
    if operator in _PRODUCTS:
        return "attention" if dimensions[1:2] > [2] else "products"
    return "attention" if operator == "Softmax" else "other"


def large_product_rate(variant: Variant, seconds: float) -> float:
    """10⁹ operations a second of a product of two matrices of the best size, on one thread."""
    return max(2 * _INNER * size**3 / _product_seconds(variant, size, seconds / len(_LARGE)) / 1e9 for size in _LARGE)


def _product_seconds(variant: Variant, size: int, seconds: float) -> float:
    model, left = large_product(variant, size)
    if variant.runtime is Runtime.OPENVINO:
        request = _compile_openvino(model.SerializeToString(), variant, {})
        return fastest(lambda: request.infer({"x": left}, share_inputs=True, share_outputs=True), seconds)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    return fastest(lambda: session.run(None, {"x": left}), seconds)


def large_product(variant: Variant, size: int) -> tuple[onnx.ModelProto, NDArray[Any]]:
    """A graph with one product as the variant has them, *shape:* ``(size, size)``, and its left factor."""
    inner, outer = _INNER * size, size
    random = np.random.default_rng(0)
    kind, result = TensorProto.FLOAT, TensorProto.FLOAT
    left: NDArray[Any] = random.standard_normal((outer, inner), dtype=np.float32)
    right: NDArray[Any] = random.standard_normal((inner, outer), dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    constants: dict[str, NDArray[Any]] = {}
    if variant.precision is Precision.INT8:
        right = random.integers(-127, 128, (inner, outer), dtype=np.int8)
        zero = np.array(128, dtype=np.uint8)
        if variant.runtime is Runtime.OPENVINO:
            # OpenVINO joins these to one product in int8, but only with an input that is quantized in the graph.
            constants = {"step": np.array(0.01, dtype=np.float32), "zero": zero}
            constants["steps"] = np.full(size, 0.01, dtype=np.float32)
            nodes = [
                helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["levels"]),
                helper.make_node("DequantizeLinear", ["levels", "step", "zero"], ["floats"]),
                helper.make_node("DequantizeLinear", ["w", "steps"], ["weights"], axis=1),
                helper.make_node("MatMul", ["floats", "weights"], ["y"]),
            ]
        else:
            kind, result, constants = TensorProto.UINT8, TensorProto.INT32, {"zero": zero}
            left = random.integers(0, 256, (outer, inner), dtype=np.uint8)
            nodes = [helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", kind, (outer, inner))],
        [helper.make_tensor_value_info("y", result, (outer, outer))],
        [numpy_helper.from_array(value, name) for name, value in {"w": right, **constants}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), left


def section(runs: Mapping[str, OperatorRun]) -> str:
    """The tables of all kinds of processor."""
    if not runs:
        return "No processor has been measured yet."
    return "\n\n".join(f"### {KINDS[kind]}: {run.model}\n\n{run_text(run)}" for kind, run in runs.items())


def run_text(run: OperatorRun) -> str:
    """Processor and table."""
    header = ["variant, tokens a text", "texts/s, one thread", "products", "attention", "other", "most of the other"]
    rows = [
        [
            f"{one.variant}, {one.tokens}",
            f"{one.texts_per_second:,.0f}",
            *(f"{one.shares[group]:.0%}" for group in _GROUPS),
            ", ".join(f"{name} {share:.0%}" for name, share in one.others.items()),
            f"{one.rate:,.0f}",
            f"{one.large_rate:,.0f}",
            f"{one.rate / one.large_rate:.0%}",
        ]
        for one in run.found
    ]
    header += ["products, GOP/s", "large product, GOP/s", "of it"]
    about = f"{processor_text(run.processor)}; {run.date}, Python {run.python}, commit {run.commit}."
    return f"{about} {load_text(run.load, ())}\n\n{table(header, rows)}"


def kept() -> dict[str, OperatorRun]:
    """Kind of processor → the run that is kept."""
    return {kind: OperatorRun.from_json(fields) for kind, fields in read_kinds(RESULTS).items()}


@click.command()
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="For each figure.")
@click.option("--only", multiple=True, metavar="VARIANT", help="Only these variants.")
@click.option("--write", is_flag=True, help="Keep the run, and write what it found into docs/.")
@click.option("--kept", "only_kept", is_flag=True, help="Run nothing; show, or write, what is kept.")
def main(model: str, seconds: float, only: Sequence[str], write: bool, only_kept: bool) -> None:
    """Measure all variants and print the table."""
    if not only_kept:
        processor = this_processor()
        begun = conditions(processor)
        variants = [variant for variant in default_exports() if not only or variant in only]
        bundle, refused = open_or_export(
            find_encoder(model),
            [Variant.FP32, *variants],
            may_fall_back=True,
            report=lambda line: click.echo(line, err=True),
        )
        found = [times for variant in variants if variant not in refused for times in measure(bundle, variant, seconds)]
        run = OperatorRun(model=bundle.model.name, **begun, found=found)
        click.echo(run_text(run))
        if write:
            write_kind(RESULTS, processor.kind, rounded_numbers(asdict(run)))
    if write:
        write_section(PAGE, NAME, section(kept()), maker=MAKER)
    elif only_kept:
        click.echo(section(kept()))


if __name__ == "__main__":
    main()
