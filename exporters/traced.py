"""Graphs of sentence models that no graph can be built for from weights: traced, with our own pooling behind.

Needs torch and sentence-transformers (extra `train`); imported only where a model needs it.
"""

from __future__ import annotations

from functools import cached_property

import onnx
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from es_sbert.bundle.model import Precision, SentenceModel
from es_sbert.encoder.tokenizer import load_tokenizer
from es_sbert.errors import UnsupportedArchitecture, first_line
from es_sbert.exporters.adopt import adopt
from es_sbert.exporters.build import Recipe
from es_sbert.exporters.graph import FLOAT, INT64
from es_sbert.exporters.pooling import padded_vectors, sentence_vector
from es_sbert.exporters.trace import example, trace
from es_sbert.networks.token_types import TokenTypes, takes_token_types

_INPUTS = ("input_ids", "attention_mask")
_TOKEN_VECTORS = "token_embeddings"


class _TokenVectors(nn.Module):
    """A transformer from ids and mask to token vectors; token types are made from the mask."""

    def __init__(self, network: nn.Module, token_types: TokenTypes | None) -> None:
        super().__init__()
        self.network = network
        self._token_types = token_types

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Two int64 tensors of *shape* ``(batch, tokens)`` → ``(batch, tokens, hidden)``."""
        extra = {} if self._token_types is None else {"token_type_ids": self._token_types(mask)}
        vectors: Tensor = self.network(input_ids=ids, attention_mask=mask, **extra).last_hidden_state
        return vectors


class TracedSentenceModel:
    """The graphs of one sentence model; it is traced once, for the first of them."""

    def __init__(self, model: SentenceModel) -> None:
        self._model = model

    def build(self, recipe: Recipe) -> onnx.ModelProto:
        """A graph with the inputs and the output of `build.build_graph`.

        Raises:
            UnsupportedArchitecture: transformers cannot open the model without running code that comes with it,
                torch cannot trace it, or nothing in it can be quantised.
        """
        model = self._model
        graph = adopt(self._token_vectors, int8=recipe.precision is Precision.INT8)
        graph.rename(sentence_vector(graph, model, padded_vectors(graph, _TOKEN_VECTORS)), "sentence_embedding")
        return graph.model(
            model.name,
            [(name, INT64, ("batch", "tokens")) for name in _INPUTS],
            [("sentence_embedding", FLOAT, ("batch", model.dimensions))],
        )

    @cached_property
    def _token_vectors(self) -> onnx.ModelProto:
        model = self._model
        transformer = _open(model)
        network = transformer.auto_model
        types = None
        if takes_token_types(network, transformer.tokenizer):
            types = TokenTypes.of(load_tokenizer(model.tokenizer_file))
        ids, mask = example((3, min(11, model.max_tokens)), len(transformer.tokenizer))
        module = _TokenVectors(network, types)
        return trace(module, dict(zip(_INPUTS, (ids, mask), strict=True)), _TOKEN_VECTORS, name=model.name)


def _open(model: SentenceModel) -> nn.Module:
    """sentence-transformers' Transformer module of a model, float32, with attention that can be traced."""
    try:
        network = SentenceTransformer(
            str(model.folder), device="cpu", local_files_only=True, model_kwargs={"attn_implementation": "eager"}
        ).float()
    except Exception as error:  # whatever the libraries raise on a network that they do not know
        raise UnsupportedArchitecture(
            f"{model.name}: sentence-transformers cannot open the architecture {model.architecture!r}: "
            f"{type(error).__name__}: {first_line(error)}",
            "es-sbert runs no code that comes with a model; choose an architecture that transformers itself has.",
        ) from error
    first: nn.Module = network[0]
    return first
