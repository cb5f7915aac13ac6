"""Trace a torch module to ONNX with dynamic batch and token axes. Needs torch (extra `train`).

torch has two exporters. This uses the older one, which records the operators of one run (`dynamo=False`): with
eager attention its graphs of XLNet and ModernBERT hold for every batch and length, and it needs nothing beside
torch, where the newer one needs onnxscript. That they hold is not taken on trust: the parity gate runs every traced
graph on other shapes than it was traced with.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from es_sbert.errors import UnsupportedArchitecture, first_line
from es_sbert.exporters.graph import OPSET

# What the exporter says of every graph. That values became constants is what the parity gate looks for.
_EXPECTED_WARNINGS = (
    ("You are using the legacy TorchScript-based ONNX export", DeprecationWarning),
    ("The feature will be removed. Please remove usage of this function", DeprecationWarning),
    ("", torch.jit.TracerWarning),
    ("Exporting aten::index operator of advanced indexing", UserWarning),
)


def trace(module: nn.Module, inputs: Mapping[str, Tensor], output: str, *, name: str) -> onnx.ModelProto:
    """Trace one run of a module.

    Args:
        module: Takes the inputs in their order; gives one tensor with the batch as first axis.
        inputs: Name → example, int64 of *shape* ``(batch, tokens)``, both more than 1, with some padding.
        output: Name of the result; its second axis is dynamic where it has three (token vectors).
        name: Of the graph, and of the model in messages.

    Raises:
        UnsupportedArchitecture: the module does not run on these inputs, or torch cannot write one of its operators.
    """
    axes = {0: "batch", 1: "tokens"}
    module.eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), _without_expected_warnings():
        path = Path(folder) / "traced.onnx"
        arguments = tuple(inputs.values())
        try:
            ndim = module(*arguments).ndim
            dynamic = {**dict.fromkeys(inputs, axes), output: axes if ndim == 3 else {0: "batch"}}
            torch.onnx.export(
                module, arguments, str(path), input_names=list(inputs), output_names=[output], dynamic_axes=dynamic,
                opset_version=OPSET, dynamo=False,
            )  # fmt: skip
        except Exception as error:  # networks that want other inputs, and translations of operators: of every type
            raise UnsupportedArchitecture(
                f"{name}: torch cannot write this network as ONNX: {first_line(error)}",
                "Choose a model of another architecture, or serve this one by its own library.",
            ) from error
        graph = onnx.load(str(path))  # with the weights that torch puts beside graphs beyond 2 GB
    graph.graph.name = name
    return graph


def example(shape: tuple[int, int], vocabulary: int, padding_id: int = 0) -> tuple[Tensor, Tensor]:
    """A batch to trace with, ids and mask, int64 of this shape; a third of all texts but the first is padding."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, shape))
    mask = torch.ones_like(ids)
    mask[1:, shape[1] - shape[1] // 3 :] = 0
    return torch.where(mask == 1, ids, padding_id), mask


@contextmanager
def _without_expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message, category in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=category)
        yield
