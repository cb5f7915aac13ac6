"""The graphs of a cross-encoder, traced, and what they are compared with.

Needs torch and sentence-transformers (extra `train`); imported only where a cross-encoder is exported.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime import InferenceSession
from sentence_transformers import CrossEncoder
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from es_sbert.bundle.cross_encoder import CrossEncoderModel
from es_sbert.bundle.model import Precision
from es_sbert.bundle.reranker import PairFormat, ScoreParity
from es_sbert.encoder.device import Device, choose_device
from es_sbert.encoder.hardware import cuda_devices
from es_sbert.encoder.pairs import CUDA_MULTIPLE, PairTokenizer
from es_sbert.encoder.session import available_providers, open_session
from es_sbert.errors import BundleInvalid, DeviceError, UnsupportedArchitecture, first_line
from es_sbert.exporters.adopt import adopt
from es_sbert.exporters.files import save_graph
from es_sbert.exporters.fused_attention import fuse_attention
from es_sbert.exporters.graph import FLOAT, INT64
from es_sbert.exporters.half import emulate_fp16, to_fp16
from es_sbert.exporters.pair_parity import compare_scores, parity_pairs
from es_sbert.exporters.parity import padded_batches
from es_sbert.exporters.trace import example, trace
from es_sbert.exporters.transformer import Floats
from es_sbert.networks.token_types import takes_token_types

_OUTPUT = "score"
_TRACED_OUTPUT = "logits"
_BATCH_TOKENS = 16_384
_CPU = Device("cpu")


class _Logits(nn.Module):
    """A network from its inputs, in the order of `names`, to one value a label."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self._names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Int64 tensors of *shape* ``(batch, tokens)`` → ``(batch, labels)``."""
        logits: Tensor = self.network(**dict(zip(self._names, inputs, strict=True))).logits
        return logits


class TracedCrossEncoder:
    """One cross-encoder, opened and traced once for all its graphs.

    Args:
        model: The model.

    Raises:
        UnsupportedArchitecture: transformers cannot open it without running code that comes with it.
        BundleInvalid: it lacks weights that its network has, the head's for instance.

    Attributes:
        pairs: How its tokenizer hands pairs to the network.
    """

    def __init__(self, model: CrossEncoderModel) -> None:
        self._model = model
        self._network, tokenizer = _open(model)
        self._vocabulary = len(tokenizer)
        names = ["input_ids", "attention_mask"]
        if takes_token_types(self._network, tokenizer):
            names.append("token_type_ids")
        self.pairs = PairFormat(
            inputs=tuple(names),
            padding_id=tokenizer.pad_token_id or 0,
            padding_side=tokenizer.padding_side,
            truncation_side=tokenizer.truncation_side,
        )

    def build(self, precision: Precision) -> onnx.ModelProto:
        """A graph with this model's inputs and `score`, float32 (batch, labels), before the activation.

        Raises:
            UnsupportedArchitecture: torch cannot trace the model, or nothing in it can be quantised or halved.
        """
        graph = adopt(self._logits, int8=precision is Precision.INT8)
        graph.rename(_TRACED_OUTPUT, _OUTPUT)
        model = graph.model(
            self._model.name,
            [(name, INT64, ("batch", "tokens")) for name in self.pairs.inputs],
            [(_OUTPUT, FLOAT, ("batch", len(self._model.labels)))],
        )
        if precision is Precision.FP16:
            fuse_attention(model)
            to_fp16(model)
        return model

    def compare(self, path: Path, precision: Precision) -> ScoreParity:
        """The parity report of a written graph, run with as much padding as there can be.

        An fp16 graph runs on CUDA, or emulated on the CPU where there is none; the others run on the CPU.

        Raises:
            BundleInvalid: onnxruntime does not take the file.
        """
        first, second = parity_pairs(self._model.max_tokens)
        tokenizer = PairTokenizer(self._model, self.pairs)
        tokenized = tokenizer(first, second)
        session, emulated = _open_fp16(path) if precision is Precision.FP16 else (open_session(path, _CPU), False)
        multiple = CUDA_MULTIPLE if precision is Precision.FP16 else 1
        scores = np.empty((len(first), len(self._model.labels)), dtype=np.float32)  # (pairs, labels)
        for batch in padded_batches(tokenized.lengths):
            (scores[batch],) = session.run([_OUTPUT], tokenizer.feed(tokenized, batch, multiple=multiple))
        name = f"sentence-transformers {version('sentence-transformers')}"
        return compare_scores(precision, name, self._reference, scores, emulated=emulated)

    @cached_property
    def _reference(self) -> Floats:
        """The reference's outputs for the parity pairs, *shape* ``(pairs, labels)``, before the activation."""
        pairs = list(zip(*parity_pairs(self._model.max_tokens), strict=True))
        encoder = CrossEncoder(str(self._model.folder), device="cpu", local_files_only=True).float()
        scores = encoder.predict(
            pairs,
            activation_fn=nn.Identity(),
            batch_size=max(1, min(32, _BATCH_TOKENS // self._model.max_tokens)),
            show_progress_bar=False,
        )
        return np.asarray(scores, dtype=np.float32).reshape(len(pairs), len(self._model.labels))

    @cached_property
    def _logits(self) -> onnx.ModelProto:
        ids, mask = example((3, min(11, self._model.max_tokens)), self._vocabulary, self.pairs.padding_id)
        if self.pairs.padding_side == "left":
            ids, mask = ids.flip(1), mask.flip(1)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        taken = {name: inputs[name] for name in self.pairs.inputs}
        return trace(_Logits(self._network, self.pairs.inputs), taken, _TRACED_OUTPUT, name=self._model.name)


def _open_fp16(path: Path) -> tuple[InferenceSession, bool]:
    """A session of an fp16 graph, and whether it is emulated."""
    try:
        return open_session(path, choose_device("cuda", available_providers(), cuda_devices())), False
    except DeviceError:
        # A driver alone is not enough (CUDA, cuDNN): only opening a session shows what is there.
        with tempfile.TemporaryDirectory() as folder:
            emulated = Path(folder) / "emulated.onnx"
            save_graph(emulate_fp16(onnx.load(str(path))), emulated)
            return open_session(emulated, _CPU), True


def _open(model: CrossEncoderModel) -> tuple[nn.Module, Any]:
    """The network, float32, with attention that can be traced, and its tokenizer."""
    try:
        network, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(model.folder), local_files_only=True, attn_implementation="eager", output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(str(model.folder), local_files_only=True)
    except Exception as error:  # whatever the library raises on a network that it does not know
        raise UnsupportedArchitecture(
            f"{model.name}: transformers cannot open this {model.architecture} as a cross-encoder: "
            f"{type(error).__name__}: {first_line(error)}",
            "Open it with AutoModelForSequenceClassification and mend what it names; code that it brings is not run.",
        ) from error
    # transformers makes up at random what a checkpoint lacks.
    if loaded["missing_keys"]:
        raise BundleInvalid(
            f"the weights in {model.folder} lack {', '.join(sorted(loaded['missing_keys']))}",
            "Give a cross-encoder that was trained as one; the head of an encoder without one would be random.",
        )
    # Checkpoints kept in half precision are to be computed in float32.
    return network.float(), tokenizer
