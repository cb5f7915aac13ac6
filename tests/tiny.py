"""A sentence-transformers folder small enough to write in milliseconds, made without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ["a", "man", "plays", "guitar", "the", "cat", "sleeps", "on", "mat", "query", "passage", ":", "."]
HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 16, 2, 2, 32, 40


def write_tiny_bert(
    folder: Path,
    *,
    seed: int = 0,
    pooling: str = "mean",
    normalize: bool = True,
    max_tokens: int = 24,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Write a BERT with random weights, its tokenizer, pooling and prompts, as sentence-transformers would."""
    (folder / "1_Pooling").mkdir(parents=True)
    tokenizer = tiny_tokenizer()
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INTERMEDIATE, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "pad_token_id": 0,
        "vocab_size": tokenizer.get_vocab_size(),
    }  # fmt: skip
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + ([("Normalize", "2_Normalize")] if normalize else [])
    _write(
        folder / "modules.json",
        [
            {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for idx, (kind, path) in enumerate(modules)
        ],
    )
    _write(folder / "config.json", config)
    _write(folder / "1_Pooling/config.json", {"embedding_dimension": HIDDEN, "pooling_mode": pooling})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"prompts": prompts or {}, "default_prompt_name": None})
    tokenizer.save(str(folder / "tokenizer.json"))
    # Without it transformers guesses a tokenizer by the model's type, with other ids.
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"},
    )
    save_file(_weights(config["vocab_size"], seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def rotate_vectors(folder: Path, axes: NDArray[np.float32]) -> None:
    """Append a matrix to the modules of a model, and again the Normalize at their end, as a rotation by PCA does."""
    modules = json.loads((folder / "modules.json").read_text())
    place = f"{len(modules)}_Dense"
    modules.append({"path": place, "type": "sentence_transformers.models.Dense"})
    (folder / place).mkdir()
    after, before = axes.shape
    activation = "torch.nn.modules.linear.Identity"
    settings = {"in_features": before, "out_features": after, "bias": False, "activation_function": activation}
    _write(folder / place / "config.json", settings)
    save_file({"linear.weight": axes}, folder / place / "model.safetensors")
    if modules[-2]["type"].endswith("Normalize"):
        modules.append({"path": f"{len(modules)}_Normalize", "type": "sentence_transformers.models.Normalize"})
    _write(folder / "modules.json", [{**one, "idx": idx, "name": str(idx)} for idx, one in enumerate(modules)])


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))


def tiny_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer of a dozen words, with special tokens around a text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return tokenizer


def _weights(vocabulary: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(0, 0.3, shape).astype(np.float32)

    def norm(prefix: str) -> dict[str, np.ndarray]:
        return {f"{prefix}.weight": 1 + matrix(HIDDEN), f"{prefix}.bias": matrix(HIDDEN)}

    def linear(prefix: str, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        return {f"{prefix}.weight": matrix(outputs, inputs), f"{prefix}.bias": matrix(outputs)}

    tensors = {
        "embeddings.word_embeddings.weight": matrix(vocabulary, HIDDEN),
        "embeddings.position_embeddings.weight": matrix(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": matrix(2, HIDDEN),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            tensors |= linear(f"{prefix}.attention.self.{name}", HIDDEN, HIDDEN)
        tensors |= linear(f"{prefix}.attention.output.dense", HIDDEN, HIDDEN)
        tensors |= norm(f"{prefix}.attention.output.LayerNorm")
        tensors |= linear(f"{prefix}.intermediate.dense", INTERMEDIATE, HIDDEN)
        tensors |= linear(f"{prefix}.output.dense", HIDDEN, INTERMEDIATE)
        tensors |= norm(f"{prefix}.output.LayerNorm")
    return tensors
