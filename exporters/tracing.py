"""Trace sentence encoders and cross-encoders to ONNX with torch. Requires the `train` extra.

torch's TorchScript exporter is used (`dynamo=False`). With eager attention, its graphs of XLNet and ModernBERT are
valid for every batch size and length, and it does not need onnxscript. The parity check runs every traced graph on
shapes other than the traced ones.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn
from transformers import AttentionMaskInterface, AutoModelForSequenceClassification, AutoTokenizer

from es_sbert.bundle.bundle import PairFormat, ScoreParityReport
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel
from es_sbert.bundle.model_files import unfilled_weights
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.bundle.transformer_module import TextModel
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.errors import BundleInvalid, ModelError, UnsupportedArchitecture, error_summary
from es_sbert.exporters.fp16 import fuse_attention, to_fp16
from es_sbert.exporters.graph_builder import FLOAT, INT64, OPSET, save_graph
from es_sbert.exporters.numpy_reference import reference_batch_size
from es_sbert.exporters.parity import compare_scores, fp16_graph, max_padding_batches, parity_sentences
from es_sbert.exporters.pooling import TOKEN_VECTORS, finish_padded_graph, pool_fp16_network
from es_sbert.exporters.quantization import graph_from_trace
from es_sbert.exporters.static_quantization import equal_length_batches, sample_texts
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.batching import ModelInputs
from es_sbert.runtime.device import Device
from es_sbert.runtime.inference_pool import compile_model
from es_sbert.runtime.onnx_session import OnnxCudaModel, open_session
from es_sbert.runtime.siamese_encoder import TokenTypes, quiet_transformers, takes_token_types
from es_sbert.runtime.tokenizer import PairTokenizer, load_model_tokenizer

# Warnings that the exporter gives for every graph. The parity check finds out whether values wrongly became constants.
_EXPECTED_WARNINGS = (
    ("You are using the legacy TorchScript-based ONNX export", DeprecationWarning),
    ("The feature will be removed. Please remove usage of this function", DeprecationWarning),
    ("", torch.jit.TracerWarning),  # type: ignore[attr-defined]
    ("Exporting aten::index operator of advanced indexing", UserWarning),
)


def trace_module(module: nn.Module, inputs: Mapping[str, Tensor], output: str, *, name: str) -> onnx.ModelProto:
    """Trace one run of a module and return the graph.

    Args:
        module: Takes the inputs in their order and returns one tensor with the batch as first axis.
        inputs: Name → example, int64 of *shape* ``(batch, tokens)``, both more than 1, with some padding.
        output: Name of the result. If the result has three axes (token vectors), the second is dynamic.
        name: Name of the graph, and of the model in messages.

    Raises:
        UnsupportedArchitecture: the module does not run on these inputs, or torch cannot write one of its operators.
    """
    axes = {0: "batch", 1: "tokens"}
    module.eval()
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.no_grad(),
        warnings.catch_warnings(),
        _traceable_masks(),
        _traceable_repeats(),
    ):
        for message, category in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=category)
        path = Path(folder) / "traced.onnx"
        arguments = tuple(inputs.values())
        try:
            ndim = module(*arguments).ndim
            dynamic = {**dict.fromkeys(inputs, axes), output: axes if ndim == 3 else {0: "batch"}}
            names: dict[str, Any] = {"input_names": list(inputs), "output_names": [output], "dynamic_axes": dynamic}
            torch.onnx.export(module, arguments, str(path), opset_version=OPSET, dynamo=False, **names)
        except Exception as error:  # unsuitable inputs, and operators without a translation, raise errors of any type
            raise UnsupportedArchitecture(
                f"{name}: torch cannot export this network to ONNX: {error_summary(error)}", USE_ANOTHER_LIBRARY
            ) from error
        graph = onnx.load(str(path))  # with the weights that torch writes next to graphs of more than 2 GB
    graph.graph.name = name
    return graph


@contextmanager
def _traceable_masks() -> Iterator[None]:
    """Let transformers build special mask patterns by broadcasting instead of `vmap`, which cannot be exported to ONNX.

    The patterns of encoders compare positions, so broadcasting gives the same mask. The parity check verifies it.
    """
    original: Any = AttentionMaskInterface()["eager"]

    def broadcast_mask(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, "use_vmap": False})

    AttentionMaskInterface.register("eager", broadcast_mask)
    try:
        yield
    finally:
        AttentionMaskInterface.register("eager", original)


@contextmanager
def _traceable_repeats() -> Iterator[None]:
    """Let networks repeat values by broadcasting, because torch exports `repeat_interleave` incorrectly.

    The rotary embeddings of Cohere, ERNIE 4.5, GLM and Helium use `repeat_interleave`.
    """
    library: Any = torch
    original, method = library.repeat_interleave, library.Tensor.repeat_interleave

    def repeat(values: Tensor, *arguments: Any, **options: Any) -> Tensor:
        repeats = arguments[0] if arguments else options.get("repeats")
        dim = arguments[1] if len(arguments) > 1 else options.get("dim")
        if not isinstance(repeats, int) or dim is None:
            result: Tensor = original(values, *arguments, **options)
            return result
        axis = dim % values.ndim
        shape = values.shape
        return (
            values.unsqueeze(axis + 1).expand(*shape[: axis + 1], repeats, *shape[axis + 1 :]).flatten(axis, axis + 1)
        )

    library.repeat_interleave = library.Tensor.repeat_interleave = repeat
    try:
        yield
    finally:
        library.repeat_interleave, library.Tensor.repeat_interleave = original, method


def example_inputs(shape: tuple[int, int], vocabulary: int, padding_id: int = 0) -> tuple[Tensor, Tensor]:
    """Create a batch to trace with: ids and mask, int64 of this shape.

    A third of each text is padding, except for the first text.
    """
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, shape))
    mask = torch.ones_like(ids)
    mask[1:, shape[1] - shape[1] // 3 :] = 0
    return torch.where(mask == 1, ids, padding_id), mask


class _TokenVectorModule(nn.Module):
    """A transformer from ids and mask to token vectors. Token types are computed from the mask.

    Padding gets the library's padding id, because some networks use it to count positions or to shift texts.
    """

    def __init__(self, network: nn.Module, token_types: TokenTypes | None, padding_id: int) -> None:
        super().__init__()
        self.network = network
        self._token_types = token_types
        self._padding_id = padding_id

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Two int64 tensors of *shape* ``(batch, tokens)`` → ``(batch, tokens, hidden)``."""
        extra = {} if self._token_types is None else {"token_type_ids": self._token_types(mask)}
        ids = ids.masked_fill(mask == 0, self._padding_id)
        vectors: Tensor = self.network(input_ids=ids, attention_mask=mask, **extra).last_hidden_state
        return vectors


class TracedSentenceModel:
    """Builds the graphs of one sentence model. The model is traced once, for the first graph."""

    def __init__(self, model: SentenceModel) -> None:
        self._model = model

    def build(self, precision: Precision) -> onnx.ModelProto:
        """Build a graph with the inputs and the output of `build_sentence_graph`.

        Raises:
            UnsupportedArchitecture: transformers cannot open the model without running code that comes with it, torch
                cannot trace it, or nothing in it can be quantized or converted to fp16.
        """
        model = self._model
        if precision is Precision.FP16:
            network = onnx.ModelProto()
            network.CopyFrom(self._token_vectors)
            fuse_attention(network)
            return pool_fp16_network(model, to_fp16(network))
        graph = graph_from_trace(self._token_vectors, int8=precision is Precision.INT8)
        return finish_padded_graph(graph, model, TOKEN_VECTORS)

    @cached_property
    def _token_vectors(self) -> onnx.ModelProto:
        model = self._model
        transformer: Any = _open_transformer(model)
        network = transformer.auto_model
        types = None
        if takes_token_types(network, transformer.tokenizer):
            types = TokenTypes.from_tokenizer(load_model_tokenizer(model))
        shape, vocabulary = (3, min(11, model.max_tokens)), _count_ids(model, transformer.tokenizer)
        ids, mask = example_inputs(shape, vocabulary)
        inputs = {"input_ids": ids, "attention_mask": mask}
        module = _TokenVectorModule(network, types, transformer.tokenizer.pad_token_id or 0)
        module.eval()
        text = example_inputs((1, min(model.longest_input, LONGEST_TRIED)), vocabulary)
        before = run_network(model.name, module, *text)
        traced = trace_module(module, inputs, TOKEN_VECTORS, name=model.name)
        if relative_difference(run_network(model.name, module, *text), before) > OTHER_RESULT:
            raise UnsupportedArchitecture(
                f"{model.name}: the network computes a different vector for a text after it has read other texts",
                USE_ANOTHER_LIBRARY,
            )
        check_trace(traced, module, (ids, mask), vocabulary, model.longest_input)
        return traced


def _open_transformer(model: SentenceModel) -> nn.Module:
    """Open sentence-transformers' Transformer module of a model, float32, with attention that can be traced."""
    try:
        with quiet_transformers():
            network = SentenceTransformer(
                str(model.folder), device="cpu", local_files_only=True, model_kwargs={"attn_implementation": "eager"}
            ).float()
    except Exception as error:  # the libraries raise many types for unknown networks
        raise UnsupportedArchitecture(
            f"{model.name}: sentence-transformers cannot open the architecture {model.architecture!r}: "
            f"{type(error).__name__}: {error_summary(error)}",
            "es-sbert does not run code that comes with a model. Choose an architecture that transformers itself has.",
        ) from error
    first: nn.Module = network[0]
    return first


def _count_ids(model: TextModel, tokenizer: Any) -> int:
    """Number of token ids that have a vector: a tokenizer may have more, which no text then may contain."""
    vectors = model.transformer_config.get("vocab_size")
    return min(len(tokenizer), vectors) if isinstance(vectors, int) else len(tokenizer)


_SCORE_OUTPUT = "score"
_LOGITS_OUTPUT = "logits"
_CPU = Device("cpu")


class _LogitsModule(nn.Module):
    """A network from its inputs to one value per label."""

    def __init__(self, network: nn.Module, pairs: PairFormat) -> None:
        super().__init__()
        self.network = network
        self._pairs = pairs

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Int64 tensors of *shape* ``(batch, tokens)`` → ``(batch, labels)``. Without types, all are 0."""
        types = torch.zeros_like(ids) if types is None else types
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        logits: Tensor = self.network(**{name: inputs[name] for name in self._pairs.inputs}).logits
        return logits


class TracedCrossEncoder:
    """One cross-encoder, opened and traced once for all its graphs.

    Args:
        model: The model.

    Raises:
        UnsupportedArchitecture: transformers cannot open the model without running code that comes with it.
        BundleInvalid: the model lacks weights of its network, such as those of the head.

    Attributes:
        pairs: The form in which the tokenizer passes pairs to the network.
    """

    def __init__(self, model: CrossEncoderModel) -> None:
        self._model = model
        with quiet_transformers():
            self._network, tokenizer = _open_cross_encoder(model)
        self._vocabulary = _count_ids(model, tokenizer)
        types = ("token_type_ids",) if takes_token_types(self._network, tokenizer) else ()
        self.pairs = PairFormat(
            inputs=("input_ids", "attention_mask", *types),
            padding_id=tokenizer.pad_token_id or 0,
            padding_side=tokenizer.padding_side,
            truncation_side=tokenizer.truncation_side,
        )

    def build(self, precision: Precision) -> onnx.ModelProto:
        """Build a graph with this model's inputs and `score`, float32 (batch, labels), before the activation.

        Raises:
            UnsupportedArchitecture: torch cannot trace the model, or nothing in it can be quantized or converted to
                fp16.
        """
        graph = graph_from_trace(self._logits, int8=precision is Precision.INT8)
        graph.rename(_LOGITS_OUTPUT, _SCORE_OUTPUT)
        inputs = [(name, INT64, ("batch", "tokens")) for name in self.pairs.inputs]
        output = (_SCORE_OUTPUT, FLOAT, ("batch", len(self._model.labels)))
        model = graph.model(self._model.name, inputs, [output])
        if precision is Precision.FP16:
            fuse_attention(model)
            to_fp16(model)
        return model

    def sample(self, graph: onnx.ModelProto) -> Iterator[ModelInputs]:
        """Create inputs from sample pairs, without padding, for the quantization of a graph."""
        tokenizer = PairTokenizer(self._model, self.pairs)
        texts = tokenizer.readable(sample_texts(self._model))
        tokenized = tokenizer(texts, [*texts[1:], texts[0]])
        return (tokenizer.feed(tokenized, batch) for batch in equal_length_batches(tokenized.lengths))

    def compare(self, path: Path, variant: Variant) -> ScoreParityReport:
        """Run a written graph as a variant does, with as much padding as possible, and return the parity report.

        An fp16 graph runs on CUDA, or is emulated on the CPU if CUDA is not available. Other graphs run on the CPU.

        Raises:
            DeviceError: this machine cannot run the variant.
            BundleInvalid: the runtime rejects the file.
        """
        tokenizer = PairTokenizer(self._model, self.pairs)
        first, second = self._parity_pairs
        tokenized = tokenizer(first, second)
        precision = variant.precision
        half = precision is Precision.FP16
        scores = np.empty((len(first), len(self._model.labels)), dtype=np.float32)  # (pairs, labels)
        with fp16_graph(path) if half else nullcontext((path, _CPU, False)) as (file, device, emulated):
            compiled = compile_model(file, variant.runtime, precision, device, threads=1)
            # Padded as on a GPU, even if fp16 is emulated.
            padding = OnnxCudaModel if half else compiled
            padded_length = partial(padding.padded_length, most=self._model.max_tokens)
            session = compiled.open_session()
            for batch in max_padding_batches(tokenized.lengths):
                output = np.empty((len(batch), scores.shape[1]), dtype=np.float32)
                session.run(tokenizer.feed(tokenized, batch, padded_length), output)
                scores[batch] = output
        name = f"sentence-transformers {version('sentence-transformers')}"
        return compare_scores(precision, name, self._reference, scores, emulated=emulated)

    @cached_property
    def _parity_pairs(self) -> tuple[list[str], list[str]]:
        """Two wordings of a statement, unrelated statements, empty and very long texts: the first and the second."""
        first = PairTokenizer(self._model, self.pairs).readable(parity_sentences(self._model.max_tokens))
        return first, [*first[1:], first[0]]

    @cached_property
    def _reference(self) -> Floats:
        """The reference's outputs for the parity pairs, *shape* ``(pairs, labels)``, before the activation."""
        pairs = list(zip(*self._parity_pairs, strict=True))
        size = reference_batch_size(self._model.max_tokens)
        try:
            with quiet_transformers():
                encoder = CrossEncoder(str(self._model.folder), device="cpu", local_files_only=True).float()
            scores = encoder.predict(pairs, activation_fn=nn.Identity(), batch_size=size, show_progress_bar=False)
        except Exception as error:  # the library raises many types for folders that it cannot open
            raise ModelError(
                f"{self._model.folder} cannot be compared with its reference: sentence-transformers fails on it: "
                f"{type(error).__name__}: {error_summary(error)}",
                "Open the folder with CrossEncoder(...) and fix the cause of the error.",
            ) from error
        return np.asarray(scores, dtype=np.float32).reshape(len(pairs), len(self._model.labels))

    @cached_property
    def _logits(self) -> onnx.ModelProto:
        ids, mask = example_inputs((3, min(11, self._model.max_tokens)), self._vocabulary, self.pairs.padding_id)
        if self.pairs.padding_side == "left":
            ids, mask = ids.flip(1), mask.flip(1)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        taken = {name: inputs[name] for name in self.pairs.inputs}
        module = _LogitsModule(self._network, self.pairs)
        traced = trace_module(module, taken, _LOGITS_OUTPUT, name=self._model.name)
        check_trace(traced, module, (ids, mask), self._vocabulary, self._model.max_tokens, self.pairs)
        return traced


def _open_cross_encoder(model: CrossEncoderModel) -> tuple[nn.Module, Any]:
    """Open the network, float32, with attention that can be traced, and its tokenizer."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        network, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(model.folder), **options, use_safetensors=True, attn_implementation="eager", output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(str(model.folder), **options)
    except Exception as error:  # the library raises many types for unknown networks
        raise UnsupportedArchitecture(
            f"{model.name}: transformers cannot open this {model.architecture} as a cross-encoder: "
            f"{type(error).__name__}: {error_summary(error)}",
            "Open it with AutoModelForSequenceClassification and fix the cause of the error. es-sbert does not run "
            "code that comes with a model.",
        ) from error
    if missing := loaded["missing_keys"]:
        raise unfilled_weights(model.folder, missing, loaded["unexpected_keys"])
    # Checkpoints in half precision must compute in float32.
    return network.float(), tokenizer


USE_ANOTHER_LIBRARY = "Choose a model with another architecture, or run this one with its own library."

# Lengths of texts to try a traced graph with, and the longest one. Some networks only behave differently beyond a
# window of several hundred tokens.
_TRIED_LENGTHS = (2, 7, 40, 130)
LONGEST_TRIED = 1_024
# Relative differences far above rounding errors. The parity check judges smaller ones.
OTHER_RESULT = 0.01
_OTHER_BY_PADDING = 0.001


def check_trace(
    traced: onnx.ModelProto,
    module: nn.Module,
    example: tuple[Tensor, Tensor],
    vocabulary: int,
    longest: int,
    padding: PairFormat | None = None,
) -> None:
    """Make sure that a traced graph agrees with its module on texts and lengths other than the traced ones.

    Tracing may record properties of the one input that was traced, such as its length, or the parts of the network
    that it used. The parity check would notice the difference, but not the reason.

    Args:
        traced: Graph from ids and mask to token vectors or scores, made by `trace_module`.
        module: The module that was traced.
        example: Ids and mask that it was traced with.
        vocabulary: Number of token ids.
        longest: Maximum length of a text in tokens.
        padding: How inputs are padded; by default on the right, with ids that the module replaces.

    Raises:
        UnsupportedArchitecture: graph and module disagree, or the result of a text depends on padding.
    """
    name, longest = traced.graph.name, min(longest, LONGEST_TRIED)
    padding_id = 0 if padding is None else padding.padding_id
    random = np.random.default_rng(1)

    def refusal(reason: str) -> UnsupportedArchitecture:
        return UnsupportedArchitecture(f"{name}: {reason}", USE_ANOTHER_LIBRARY)

    with tempfile.TemporaryDirectory() as folder:
        save_graph(traced, Path(folder) / "traced.onnx")
        try:
            session = open_session(Path(folder) / "traced.onnx", Device("cpu"))
        except BundleInvalid as error:
            raise refusal(
                f"onnxruntime rejects the graph that torch exported (onnxruntime: {error.__cause__})"
            ) from error

    def any_ids(texts: int, tokens: int) -> Tensor:
        return torch.from_numpy(random.integers(0, vocabulary, (texts, tokens)))

    def compare(ids: Tensor, mask: Tensor, otherwise: str) -> None:
        ids = ids.masked_fill(mask == 0, padding_id)
        expected = run_network(name, module, ids, mask)
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        try:
            (actual,) = session.run(None, {each.name: feed[each.name].numpy() for each in session.get_inputs()})
        except Exception as error:  # onnxruntime raises a dozen types that share no base below Exception
            raise refusal(f"{otherwise} (onnxruntime: {error_summary(error)})") from error
        if relative_difference(actual, expected) > OTHER_RESULT:
            raise refusal(otherwise)

    mask = example[1]
    compare(*example, "the graph that torch exports gives results that differ from the network's")
    other = "the graph that torch exports is only valid for the texts that it was traced with"
    compare(any_ids(*mask.shape), mask, f"{other}, because other texts use other parts of the network")
    compare(any_ids(*mask.shape), torch.ones_like(mask), f"{other}, and only with their padding")
    for length in [*(length for length in _TRIED_LENGTHS if length < longest), longest]:
        ids = any_ids(1, length)
        valid = f"the graph that torch exports is valid for texts of {mask.shape[1]} tokens, not of {length}"
        compare(ids, torch.ones_like(ids), f"{valid}, because the network treats other lengths differently")
    ids, short = any_ids(4, longest), max(2, longest // 3)
    pads_left = padding is not None and padding.padding_side == "left"
    mask, kept = torch.ones_like(ids), slice(longest - short, None) if pads_left else slice(short)
    mask[:-1] = 0
    mask[:-1, kept] = 1
    padded = run_network(name, module, ids.masked_fill(mask == 0, padding_id), mask)[:-1]
    alone = run_network(name, module, ids[:-1, kept], mask[:-1, kept])
    if relative_difference(padded[:, kept] if padded.ndim == 3 else padded, alone) > _OTHER_BY_PADDING:
        raise refusal(
            "the network computes a different result for a padded text, so a text's result would depend on its batch"
        )


def run_network(name: str, module: nn.Module, ids: Tensor, mask: Tensor) -> Floats:
    """Compute the token vectors of a batch, *shape* ``(batch, tokens, hidden)``, or its scores, ``(batch, labels)``.

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
    """Compute the relative difference of vectors or scores; infinite if shapes differ or a value is not finite."""
    if actual.shape != expected.shape or not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return float("inf")
    return float(np.linalg.norm(actual - expected) / max(1e-12, float(np.linalg.norm(expected))))
