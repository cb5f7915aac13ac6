"""`Encoder`: a sentence encoder on onnxruntime or OpenVINO, from texts to vectors in input order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import numpy as np
from pydantic import Field

from es_sbert.arguments import as_text, as_texts, check_arguments, spell_out
from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.modules import PromptKind
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.opened_model import lasting_path
from es_sbert.encoder.sentence_transformers_names import (
    TEXTS_WITHOUT_MEANING,
    SentenceTransformersNames,
    check_without_meaning,
)
from es_sbert.encoder.text_pipeline import EncodeResult, EncoderInfo, TextPipeline
from es_sbert.errors import ModelError, UsageError, about_setting, require_extra
from es_sbert.messages import setting
from es_sbert.settings import Count, LoadOptions, ModelName, RunOptions, no_report
from es_sbert.vectors import Vectors, unit_vectors


class ModelOptions(ModelName, RunOptions, total=False):
    """Keyword arguments that choose the model of an index; all may be left out.

    Attributes:
        encoder: An open encoder instead of a model's name; it is not closed.
        report: See `Encoder`.
    """

    encoder: Encoder | None
    report: Annotated[Callable[[str], None], Field(no_report)]


class Encoder(SentenceTransformersNames):
    """A sentence encoder on onnxruntime or OpenVINO. A model without ONNX files is exported to the cache on first use.

    It is also an embedding object for LangChain and elasticsearch-py (`embed_documents`, `embed_query`). Thread-safe.
    Close it, or use it as a context manager, to end its threads. A forked process opens the model again when it first
    embeds a text. Unpickling opens it again, too.

    Usage:
        ```python
        with Encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.encode(["A man plays a guitar.", "The cat sleeps."])  # (2, 384) float32
            vector = encoder.encode("A man plays a guitar.")  # (384,)
        ```

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default. A `Path` is
            always a folder.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails if CUDA is not available. `auto` uses the CPU if CUDA
            does not work, with a warning in `info.warnings`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.
        runtime: `auto`, `onnxruntime` or `openvino`. If both are `auto`, the variant runs that is usually the fastest
            on this kind of processor.
        threads: CPU threads, by default one for each physical core. On CUDA the number of concurrent batches, by
            default 2.
        budget: Tokens of one batch, with padding on a CPU, without padding on CUDA; by default the best for the device.
        truncate_dim: Number of dimensions to truncate vectors to; the same as the name `MODEL@N`.
        called: Name to show in `info.model` and in messages instead of the model's own name.
        report: Called with a message before slow steps such as the export, with the time after them, and once per
            process if `auto` finds no GPU.

    Raises:
        ModelError: the model was not found, is broken or has an unknown architecture; the cache cannot be written.
        DeviceError: the requested device cannot be used.
        UsageError: the device, precision or runtime is invalid, or they cannot be combined.
    """

    @check_arguments
    @spell_out(LoadOptions)
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        truncate_dim: Count | None = None,
        called: str | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        name = DEFAULT_MODEL if model is None else model
        if truncate_dim is not None:
            name = f"{lasting_path(name)}@{truncate_dim}"
        with about_setting("model", model, ModelError):
            self.pipeline = TextPipeline(name, called=called, **options)

    @property
    def info(self) -> EncoderInfo:
        """The model, variant and device in use."""
        return self.pipeline.info

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that `kind` selects; an empty one if the model has none."""
        return {kind: self.pipeline.model.prompt(kind) for kind in ("query", "document")}

    def __repr__(self) -> str:
        info = self.info
        runs = "closed" if self.pipeline.is_closed else f"{info.variant} on {info.device} by {info.runtime}"
        return f"<Encoder {info.model!r}, {info.dimensions} dimensions, {runs}>"

    @check_arguments
    def encode(
        self,
        texts: str | Iterable[str],
        kind: PromptKind | None = None,
        *,
        prompt_name: PromptKind | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        truncate_dim: Count | None = None,
        **others: object,
    ) -> Vectors:
        """Embed texts.

        Args:
            texts: One text or any number of them; all vectors are held in memory (see `encode_stream`).
            kind: `query` or `document` prepends the model's prompt of that kind to each text.
            prompt_name: sentence-transformers' name for `kind`.
            prompt: Text to prepend to each text instead.
            normalize_embeddings: Scale the vectors to length 1. Most models do that themselves.
            show_progress_bar: Show a progress bar on stderr.
            convert_to_tensor: Return a tensor of torch, on the CPU.
            truncate_dim: Number of values of each vector to return, from its beginning.
            others: Other arguments of sentence-transformers, with values that ask for what this method does anyway;
                `batch_size` is ignored, since a batch has a maximum of tokens.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts; ``(dimensions,)`` for one string.

        Raises:
            UsageError: `kind` is unknown, a text is not a str or not valid Unicode, or an argument cannot be applied.
        """
        check_without_meaning(others, TEXTS_WITHOUT_MEANING, self.device)
        listed = [texts] if isinstance(texts, str) else as_texts(texts)
        kind = kind or prompt_name
        if prompt is not None:
            model = self.pipeline.model
            if model.prompt(None) or not model.include_prompt:
                raise UsageError(
                    f"`prompt` cannot be applied: {model.name} does not read its prompts as a part of the text",
                    f"Use its own prompts: {setting('kind', 'query')} or {setting('kind', 'document')}.",
                ).about("prompt", prompt)
            listed, kind = [prompt + text for text in listed], None
        if show_progress_bar:
            parts = _with_progress_bar(self.encode_stream(listed, kind), len(listed))
            vectors = np.concatenate([np.empty((0, self.info.dimensions), np.float32), *parts])
        else:
            vectors = self.pipeline.encode_details(listed, kind).vectors
        vectors = vectors[:, :truncate_dim]
        if normalize_embeddings:
            vectors = unit_vectors(vectors)
        array: Vectors = vectors[0] if isinstance(texts, str) else vectors
        if convert_to_tensor:
            require_extra("train", "torch")
            import torch  # imported here: other programs do without it

            return torch.from_numpy(np.ascontiguousarray(array))  # type: ignore[return-value]
        return array

    @check_arguments
    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: Count | None = None
    ) -> Iterator[EncodeResult]:
        """Embed any number of texts in bounded memory, `window` texts at a time, in order.

        While a window is embedded, the next one is read and tokenized.
        """
        return self.pipeline.encode_stream(texts, kind, window=window)

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts with the model's document prompt, as `es-sbert ingest` does.

        Raises:
            UsageError: `texts` is a single string, or a text is not valid Unicode.
        """
        vectors: list[list[float]] = self.pipeline.encode_details(texts, "document").vectors.tolist()
        return vectors

    @check_arguments
    def embed_query(self, text: str) -> list[float]:
        """Embed a search text with the model's query prompt, as `es-sbert search` does.

        Raises:
            UsageError: the text is not a string, or not valid Unicode.
        """
        vector: list[float] = self.encode(as_text(text, "text"), "query").tolist()
        return vector

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Run `embed_documents` in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Run `embed_query` in a thread."""
        return await asyncio.to_thread(self.embed_query, text)

    def close(self) -> None:
        """End the worker threads."""
        self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_index_encoder(
    index: str, name: str, fingerprint: str, *, model: str | Path | None = None, **options: Unpack[LoadOptions]
) -> Encoder:
    """Load the model of an index's vectors, from this machine or the hub (see `find_index_model`).

    The caller compares `info.fingerprint` with the mapping: a package or the hub may have a different model of that
    name.

    Args:
        index: Name of the index, for messages.
        name: Name of the model in the mapping, and of `info.model`.
        fingerprint: Fingerprint of the model in the mapping.
        model: A model to load instead, as for `Encoder`.
        options: As for `Encoder`.

    Raises:
        ModelError, DeviceError, UsageError: as for `Encoder`.
    """
    if model is not None:
        return Encoder(model, **options)
    located = find_index_model(index, name, fingerprint)
    return Encoder(located.folder, called=located.name, **options)


def check_one_model(options: ModelOptions) -> None:
    """Check that not both a model and an encoder are given.

    Raises:
        UsageError: both are.
    """
    if options.get("model") is not None and options.get("encoder") is not None:
        raise UsageError("a model and an encoder cannot be combined", "Pass one of the two.").about(
            "model", options["model"]
        )


@contextmanager
def chosen_encoder(options: ModelOptions, stored: tuple[str, str, str] | None = None) -> Iterator[Encoder]:
    """Open the encoder that options choose, until the block ends; an encoder among them stays open.

    Args:
        options: Further entries are ignored.
        stored: Index, name and fingerprint of the model to open if the options name none; else the default model.

    Raises:
        ModelError, DeviceError, UsageError: as for `Encoder`; or both a model and an encoder are given.
    """
    check_one_model(options)
    encoder, model = options.get("encoder"), options.get("model")
    if encoder is not None:
        yield encoder
        return
    loading: Any = {name: value for name, value in options.items() if name in LoadOptions.__annotations__}
    with Encoder(model, **loading) if stored is None else open_index_encoder(*stored, model=model, **loading) as opened:
        yield opened


def _with_progress_bar(parts: Iterable[EncodeResult], texts: int) -> Iterator[Vectors]:
    import click  # imported here: programs without a bar do without it

    with click.progressbar(length=texts, label="Encoding", file=sys.stderr) as bar:
        for part in parts:
            yield part.vectors
            bar.update(len(part.vectors))


def preparation_text(seconds: float) -> str:
    """Say in a summary that its time does not include preparing the model; empty if nothing was prepared."""
    return f" (the model was prepared before, in {seconds:,.1f} s)" if seconds else ""


def report_warnings(encoder: Encoder, report: Callable[[str], None]) -> None:
    """Report an encoder's warnings, for commands whose summary does not include them."""
    for warning in encoder.info.warnings:
        report(f"Warning: {warning}")
