"""Write a graph to its file, and say what was written."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime

from es_sbert import __version__
from es_sbert.bundle.manifest import GraphFile
from es_sbert.bundle.store import hash_file

# Protobuf ends at 2 GiB; beyond this many bytes of weights they go into a file of their own beside the graph.
EXTERNAL_DATA_FROM = 1_900_000_000


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph, with its weights beside it as `FILE.data` where they pass protobuf's limit."""
    path.parent.mkdir(exist_ok=True)
    size = sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
    if size < EXTERNAL_DATA_FROM:
        onnx.save_model(graph, str(path))
    else:
        onnx.save_model(
            graph, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=f"{path.name}.data"
        )


def describe_file(path: Path, folder: Path, *, precision: str, device: str, forced: bool) -> GraphFile:
    """What a manifest says of a graph's file, hashes included."""
    data = path.with_name(f"{path.name}.data")
    return GraphFile(
        file=path.relative_to(folder).as_posix(),
        sha256=hash_file(path),
        data_sha256=hash_file(data) if data.exists() else None,
        precision=precision,
        device=device,
        forced=forced,
    )


def versions() -> dict[str, str]:
    """Of the packages that decide what a graph is."""
    return {"es-sbert": __version__, "onnx": version("onnx"), "onnxruntime": str(onnxruntime.__version__)}
