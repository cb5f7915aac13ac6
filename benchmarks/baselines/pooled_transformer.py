"""Averaged outputs or first output of a transformer that was not trained for sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from es_sbert.bundle.model_files import find_weight_files, read_json
from es_sbert.bundle.sentence_model import PromptKind, max_input_tokens
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, error_summary
from es_sbert.runtime.batching import pad, plan_batches

# Padded tokens of one batch.
BUDGET = {"cpu": 2048, "cuda": 32_768}
_AGAIN = "Copy or download the model folder again."


class TokenPooling(StrEnum):
    """The sentence vector: the mean of all token vectors, special tokens included, or the first one."""

    AVERAGE = "average"
    CLS = "cls"


class TransformerBaseline:
    """A transformer's last hidden states as sentence vectors (an `Embedder`).

    Opens bare transformers folders, and of sentence-transformers folders the transformer alone: pooling, Dense and
    Normalize modules and prompts are left aside.

    Args:
        folder: The folder.
        pooling: Average or CLS.
        name: For tables.
        device: As torch names it.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, or do not fill the network.
        UnsupportedArchitecture: transformers does not know the network, or it is no encoder.
    """

    def __init__(self, folder: Path, pooling: TokenPooling, name: str, device: str = "cpu") -> None:
        self.name = name
        place = folder / _transformer_subfolder(folder)
        config = read_json(place / "config.json")
        if config.get("is_encoder_decoder"):
            raise UnsupportedArchitecture(f"{place} is an encoder with a decoder", "Give the folder of an encoder.")
        tokenizer = read_json(place / "tokenizer.json")
        settings_file = place / "sentence_bert_config.json"
        settings = read_json(settings_file) if settings_file.exists() else {}
        self._max_tokens = max_input_tokens(place, config, settings, tokenizer)
        self._lowercase = bool(settings.get("do_lower_case", False))
        self._pooling = pooling
        self._device = torch.device(device)
        self._tokenizer, self._network = _load_transformer(place)
        self._network.to(self._device).eval()

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, hidden)``; texts beyond the model's length are cut; no prompts."""
        vectors = np.empty((len(texts), self._network.config.hidden_size), dtype=np.float32)  # (texts, hidden)
        if not texts:
            return vectors
        given = [text.lower() for text in texts] if self._lowercase else list(texts)
        encoding = self._tokenizer(given, truncation=True, max_length=self._max_tokens, return_attention_mask=False)
        lengths = np.array([len(ids) for ids in encoding["input_ids"]], dtype=np.int64)  # (texts,)
        for members in plan_batches(lengths, BUDGET.get(self._device.type, BUDGET["cpu"])):
            tensors = self._batch(encoding, members)
            with torch.inference_mode():
                states = self._network(**tensors).last_hidden_state  # (batch, tokens, hidden)
            vectors[members] = pool_tokens(states, tensors["attention_mask"], self._pooling).float().cpu().numpy()
        return vectors

    def _batch(self, encoding: Any, members: NDArray[np.int64]) -> dict[str, Tensor]:
        """Tensors of some texts, each *shape* ``(batch, longest)``, always padded on the right.

        CLS pooling needs the text's first token in the first column.
        """

        def column(name: str, padding: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            return pad([np.array(encoding[name][member], dtype=np.int64) for member in members], padding)

        ids, mask = column("input_ids", self._tokenizer.pad_token_id or 0)
        arrays = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in encoding:
            arrays["token_type_ids"], _ = column("token_type_ids", 0)
        return {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}


def pool_tokens(states: Tensor, mask: Tensor, pooling: TokenPooling) -> Tensor:
    """Token vectors to sentence vectors.

    Args:
        states: *Shape:* ``(batch, tokens, hidden)``.
        mask: *Shape:* ``(batch, tokens)``, 1 for tokens and 0 for padding on the right.

    Returns:
        *Shape:* ``(batch, hidden)``.
    """
    if pooling is TokenPooling.CLS:
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)  # (batch, tokens, 1)
    # A tokenizer without special tokens gives an empty text no token at all: zero, not NaN.
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def _transformer_subfolder(folder: Path) -> str:
    """The transformer's path within a sentence-transformers folder; empty for any other folder."""
    path = folder / "modules.json"
    if not path.exists():
        return ""
    try:
        kind, place = next((str(entry["type"]), str(entry["path"])) for entry in json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise BundleInvalid(f"{path} is broken: {error!r}", _AGAIN) from error
    if kind.rpartition(".")[2] != "Transformer":
        raise UnsupportedArchitecture(f"{path} begins with a {kind}", "Give a folder that holds a transformer.")
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise BundleInvalid(f"{path} names {place!r}, outside the folder", "Do not use this model.")
    return place


def _load_transformer(place: Path) -> tuple[Any, Any]:
    """Tokenizer and network, without code of the folder's own and without pickles."""
    find_weight_files(place)  # says what to do about pickles, which transformers would only call missing
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
        network, loading = AutoModel.from_pretrained(
            place, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # transformers, tokenizers and safetensors raise errors of many kinds on broken folders
        raise BundleInvalid(f"{place} cannot be opened by transformers: {error_summary(error)}", _AGAIN) from error
    # transformers fills what is missing with random numbers. Only the pooler, which is not used here, may be missing.
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if missing:
        raise BundleInvalid(f"the weights in {place} lack {', '.join(missing[:3])}", _AGAIN)
    return tokenizer, network
