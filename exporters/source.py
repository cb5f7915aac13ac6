"""Where a sentence model's graphs come from: its weights where the architecture is known, else a trace."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.errors import UnsupportedArchitecture
from es_sbert.exporters.architectures import read_transformer
from es_sbert.exporters.build import RECIPES, TRACED_RECIPES, Recipe, build_graph
from es_sbert.exporters.transformer import Transformer

_TRACERS = ("torch", "sentence_transformers")


@dataclass(frozen=True)
class Source:
    """How the graphs of one model are made.

    Attributes:
        model: The model.
        offered: The graphs there are for each precision.
        build: Makes one.
        transformer: The weights; None where the graph is traced.
    """

    model: SentenceModel
    offered: Mapping[Precision, tuple[Recipe, ...]]
    build: Callable[[Recipe], onnx.ModelProto]
    transformer: Transformer | None

    def recipes(self, precisions: Sequence[Precision]) -> list[Recipe]:
        """The graphs of these precisions, each once.

        Raises:
            UnsupportedArchitecture: there is none for one of them.
        """
        missing = [precision for precision in precisions if precision not in self.offered]
        if missing:
            raise UnsupportedArchitecture(
                f"{self.model.name} ({self.model.architecture}) is traced, and traced graphs have no "
                f"{', '.join(missing)} variant",
                f"Export {' or '.join(self.offered)}; fp32 runs on CUDA too.",
            )
        return [recipe for precision in dict.fromkeys(precisions) for recipe in self.offered[precision]]


def choose_source(model: SentenceModel) -> Source:
    """Weights where the graph builder knows the architecture, which needs no torch; else a trace.

    Raises:
        UnsupportedArchitecture: no graph can be built from the weights, and torch is not installed or the model
            brings code of its own, which is never run.
        BundleInvalid: weights are missing or of the wrong shape.
    """
    try:
        transformer = read_transformer(model)
    except UnsupportedArchitecture as error:
        if "auto_map" in model.transformer_config:
            raise UnsupportedArchitecture(
                error.message,
                "es-sbert runs no code that comes with a model; choose an architecture that transformers itself has.",
            ) from error
        if any(importlib.util.find_spec(name) is None for name in _TRACERS):
            raise
        # Imported here: only such models need torch.
        from es_sbert.exporters.traced import TracedSentenceModel

        return Source(model, TRACED_RECIPES, TracedSentenceModel(model).build, None)
    return Source(model, RECIPES, partial(build_graph, model, transformer), transformer)
