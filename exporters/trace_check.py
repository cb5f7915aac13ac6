"""Compare a traced graph with its network on texts and lengths other than the traced ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, error_summary
from es_sbert.exporters.graph_builder import save_graph
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.runtime.onnx_session import open_session

USE_ANOTHER_LIBRARY = "Choose a model with another architecture, or run this one with its own library."

# Lengths of texts to try a traced graph with, and the longest one. Some networks only behave differently beyond a
# window of several hundred tokens.
_TRIED_LENGTHS = (2, 7, 40, 130)
LONGEST_TRIED = 1_024
# Relative differences far above rounding errors. The parity check judges smaller ones.
OTHER_RESULT = 0.01
_OTHER_BY_PADDING = 0.001


def check_trace(
    traced: onnx.ModelProto, module: nn.Module, example: tuple[Tensor, Tensor], vocabulary: int, longest: int
) -> None:
    """Make sure that a traced graph agrees with its module on texts and lengths other than the traced ones.

    Tracing may record properties of the one input that was traced, such as its length, or the parts of the network
    that it used. The parity check would notice the difference, but not the reason.

    Args:
        traced: Graph from ids and mask to token vectors, made by `trace_module`.
        module: The module that was traced.
        example: Ids and mask that it was traced with.
        vocabulary: Number of token ids.
        longest: Maximum length of a text in tokens.

    Raises:
        UnsupportedArchitecture: graph and module disagree, or the vector of a text depends on padding.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_graph(traced, Path(folder) / "traced.onnx")
        try:
            session = open_session(Path(folder) / "traced.onnx", Device("cpu"))
        except BundleInvalid as error:
            raise UnsupportedArchitecture(
                f"{traced.graph.name}: onnxruntime rejects the graph that torch exported "
                f"(onnxruntime: {error.__cause__})",
                USE_ANOTHER_LIBRARY,
            ) from error
    _TraceCheck(traced.graph.name, session, module, vocabulary).run(example, min(longest, LONGEST_TRIED))


class _TraceCheck:
    """The comparisons of `check_trace`."""

    def __init__(self, name: str, session: onnxruntime.InferenceSession, module: nn.Module, vocabulary: int) -> None:
        self._name = name
        self._session = session
        self._module = module
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(1)

    def run(self, example: tuple[Tensor, Tensor], longest: int) -> None:
        mask = example[1]
        self._compare(*example, "the graph that torch exports gives results that differ from the network's")
        other = "the graph that torch exports is only valid for the texts that it was traced with"
        self._compare(self._ids(*mask.shape), mask, f"{other}, because other texts use other parts of the network")
        self._compare(self._ids(*mask.shape), torch.ones_like(mask), f"{other}, and only with their padding")
        for length in [*(length for length in _TRIED_LENGTHS if length < longest), longest]:
            ids = self._ids(1, length)
            traced = f"the graph that torch exports is valid for texts of {mask.shape[1]} tokens, not of {length}"
            self._compare(ids, torch.ones_like(ids), f"{traced}, because the network treats other lengths differently")
        ids = self._ids(2, longest)
        mask, short = torch.ones_like(ids), max(2, longest // 3)
        mask[0, short:] = 0
        padded = run_network(self._name, self._module, ids, mask)[:1, :short]
        alone = run_network(self._name, self._module, ids[:1, :short], mask[:1, :short])
        if relative_difference(padded, alone) > _OTHER_BY_PADDING:
            raise self._refusal(
                "the network computes a different vector for a padded text, so a text's vector would depend on its "
                "batch"
            )

    def _ids(self, texts: int, tokens: int) -> Tensor:
        return torch.from_numpy(self._random.integers(0, self._vocabulary, (texts, tokens)))

    def _compare(self, ids: Tensor, mask: Tensor, otherwise: str) -> None:
        expected = run_network(self._name, self._module, ids, mask)
        inputs = [value.name for value in self._session.get_inputs()]
        feed = dict(zip(("input_ids", "attention_mask"), (ids.numpy(), mask.numpy()), strict=True))
        try:
            (actual,) = self._session.run(None, {name: feed[name] for name in inputs})
        except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
            raise self._refusal(f"{otherwise} (onnxruntime: {error_summary(error)})") from error
        if relative_difference(actual, expected) > OTHER_RESULT:
            raise self._refusal(otherwise)

    def _refusal(self, reason: str) -> UnsupportedArchitecture:
        return UnsupportedArchitecture(f"{self._name}: {reason}", USE_ANOTHER_LIBRARY)


def run_network(name: str, module: nn.Module, ids: Tensor, mask: Tensor) -> Floats:
    """Compute the token vectors of a batch, *shape* ``(batch, tokens, hidden)``.

    Raises:
        UnsupportedArchitecture: the network does not run on texts of this length.
    """
    try:
        with torch.no_grad():
            return np.asarray(module(ids, mask).numpy(), dtype=np.float32)
    except Exception as error:  # networks raise many types
        raise UnsupportedArchitecture(
            f"{name}: the network does not run on texts of {ids.shape[1]} tokens: {error_summary(error)}",
            USE_ANOTHER_LIBRARY,
        ) from error


def relative_difference(actual: Floats, expected: Floats) -> float:
    """Compute the relative difference of token vectors; infinite if they differ in shape or are not finite.

    Args:
        actual, expected: *Shape:* ``(batch, tokens, hidden)``.
    """
    if actual.shape != expected.shape or not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return float("inf")
    return float(np.linalg.norm(actual - expected) / max(1e-12, float(np.linalg.norm(expected))))
