"""Averaged outputs or first output of a transformer that was not trained for sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from es_sbert.bundle.modules import PromptKind
from es_sbert.runtime.batching import plan_batches

# Padded tokens of one batch.
_BUDGET = {"cpu": 2048, "cuda": 32_768}


class TransformerBaseline:
    """A transformer's last hidden states as sentence vectors (a `SentenceEmbedder`).

    Opens transformers folders, and of sentence-transformers folders the transformer alone: pooling, Dense and
    Normalize modules and prompts are left aside.

    Args:
        folder: The folder.
        pooling: `average`: the mean of all token vectors, special tokens included; `cls`: the first one.
        name: For tables.
        device: As torch names it.
    """

    def __init__(self, folder: Path, pooling: str, name: str, device: str = "cpu") -> None:
        self.name = name
        modules = folder / "modules.json"
        place = folder / json.loads(modules.read_bytes())[0]["path"] if modules.exists() else folder
        file = place / "sentence_bert_config.json"
        settings = json.loads(file.read_bytes()) if file.exists() else {}
        self._pooling, self._device = pooling, torch.device(device)
        self._lowercase = bool(settings.get("do_lower_case", False))
        self._tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, padding_side="right")
        network = AutoModel.from_pretrained(place, local_files_only=True, use_safetensors=True, dtype=torch.float32)
        self._network = network.to(self._device).eval()
        longest = min(self._tokenizer.model_max_length, network.config.max_position_embeddings)
        self._max_tokens = min(settings.get("max_seq_length") or longest, longest)

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, hidden)``; texts beyond the model's length are cut; no prompts."""
        vectors = np.empty((len(texts), self._network.config.hidden_size), dtype=np.float32)  # (texts, hidden)
        if not texts:
            return vectors
        given = [text.lower() for text in texts] if self._lowercase else list(texts)
        encoding = self._tokenizer(given, truncation=True, max_length=self._max_tokens)
        lengths = np.array([len(ids) for ids in encoding["input_ids"]], dtype=np.int64)  # (texts,)
        for members in plan_batches(lengths, _BUDGET.get(self._device.type, _BUDGET["cpu"])):
            rows = [{name: values[member] for name, values in encoding.items()} for member in members.tolist()]
            tensors = self._tokenizer.pad(rows, return_tensors="pt").to(self._device)
            with torch.inference_mode():
                states = self._network(**tensors).last_hidden_state  # (batch, tokens, hidden)
            if self._pooling == "cls":
                pooled = states[:, 0]
            else:
                weights = tensors["attention_mask"].unsqueeze(-1).to(states.dtype)  # (batch, tokens, 1)
                # A tokenizer without special tokens gives an empty text no token at all: zero, not NaN.
                pooled = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
            vectors[members] = pooled.float().cpu().numpy()  # (batch, hidden)
        return vectors
