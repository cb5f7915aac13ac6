"""BERT-like models with random weights, and texts of given lengths: speed depends on shapes alone. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from benchmarks.gpu_check.arithmetic import Shape

# The shapes of all-MiniLM-L6 and of BERT-base.
SHAPES = {
    "minilm": Shape(hidden=384, heads=12, layers=6, intermediate=1536),
    "bert-base": Shape(hidden=768, heads=12, layers=12, intermediate=3072),
}
MAX_TOKENS = 512
_VOCABULARY = 30_522
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_EMBEDDINGS = 0.02  # standard deviation of BERT's initial embeddings

# A text of n tokens has n - 2 words, since each word is one piece.
_SPECIAL_TOKENS = 2
_WORD = re.compile(r"([▁Ġ]?)([a-z]{2,})")


def write_model(
    folder: Path, shape: Shape, *, vocabulary: int = _VOCABULARY, pooling: str = "mean", seed: int = 0
) -> Path:
    """Write a sentence-transformers folder with normalized vectors; what is there is kept.

    Args:
        pooling: `mean` or `max`.
    """
    if not (folder / "modules.json").exists():
        _write_transformer(folder, shape, vocabulary, seed, "BertModel", {})
        (folder / "1_Pooling").mkdir()
        _write(
            folder / "1_Pooling/config.json",
            {"word_embedding_dimension": shape.hidden, f"pooling_mode_{pooling}_tokens": True},
        )
        _write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS, "do_lower_case": False})
        modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
        described = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ]
        _write(folder / "modules.json", described)
    return folder


def write_cross_encoder(folder: Path, shape: Shape, *, vocabulary: int = _VOCABULARY, seed: int = 0) -> Path:
    """Write a cross-encoder with one output, as transformers does; what is there is kept."""
    if not (folder / "config.json").exists():
        rng = np.random.default_rng(seed + 1)
        head = {"classifier.weight": _linear(rng, 1, shape.hidden), "classifier.bias": np.zeros(1, np.float32)}
        _write_transformer(folder, shape, vocabulary, seed, "BertForSequenceClassification", head)
    return folder


def _write_transformer(
    folder: Path, shape: Shape, vocabulary: int, seed: int, kind: str, head: dict[str, np.ndarray]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(_weights(shape, vocabulary, np.random.default_rng(seed)))
    if head:
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()} | head
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _SPECIAL, strict=True))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_TOKENS,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **{f"{name}_token": token for name, token in names.items()},
        },
    )
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if head else {}
    config = {
        "model_type": "bert", "architectures": [kind], "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "max_position_embeddings": MAX_TOKENS, "type_vocab_size": 2, "vocab_size": vocabulary, "pad_token_id": 0,
        **labels,
    }  # fmt: skip
    _write(folder / "config.json", config)


def _weights(shape: Shape, vocabulary: int, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Name → tensor as transformers' BertModel names them, weights of *shape* ``(out, in)``."""
    hidden, wide = shape.hidden, shape.intermediate

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", _linear(rng, outputs, inputs)
        yield f"{name}.bias", _embeddings(rng, outputs)

    def norm(name: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", np.ones(hidden, np.float32)
        yield f"{name}.bias", np.zeros(hidden, np.float32)

    for name, rows in (("word", vocabulary), ("position", MAX_TOKENS), ("token_type", 2)):
        yield f"embeddings.{name}_embeddings.weight", _embeddings(rng, rows, hidden)
    yield from norm("embeddings.LayerNorm")
    for number in range(shape.layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", hidden, hidden)
        yield from linear(f"{layer}.attention.output.dense", hidden, hidden)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", wide, hidden)
        yield from linear(f"{layer}.output.dense", hidden, wide)
        yield from norm(f"{layer}.output.LayerNorm")
    yield from linear("pooler.dense", hidden, hidden)


def _embeddings(rng: np.random.Generator, *size: int) -> np.ndarray:
    return rng.standard_normal(size, dtype=np.float32) * np.float32(_EMBEDDINGS)


def _linear(rng: np.random.Generator, outputs: int, inputs: int) -> np.ndarray:
    """Large enough that texts get different vectors and scores, in spite of what fp16 rounds away."""
    return rng.standard_normal((outputs, inputs), dtype=np.float32) / np.float32(np.sqrt(inputs))


def _tokenizer(vocabulary: int) -> Tokenizer:
    """WordPiece over made-up words, each of which is one piece."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    syllables = ["".join(pair) for pair in product("bcdfghjklmnpqrstvwxz", "aeiou")]
    words = chain(product(syllables, repeat=2), product(syllables, repeat=3))
    pieces = chain(_SPECIAL, letters, (f"##{letter}" for letter in letters), ("".join(word) for word in words))
    vocab = {piece: number for number, piece in enumerate(islice(pieces, vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def whole_words(tokenizer_file: Path) -> list[str]:
    """Words that a tokenizer takes as one piece, sorted."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = [match[2] for piece in tokenizer.get_vocab() if (match := _WORD.fullmatch(piece))]
    words = sorted(set(found))
    # Twice, since some tokenizers take the first word of a text in another way. Parts of words are several pieces.
    pieces = tokenizer.encode_batch([f"{word} {word}" for word in words], add_special_tokens=False)
    return [word for word, encoding in zip(words, pieces, strict=True) if len(encoding.ids) == 2]


def make_texts(words: Sequence[str], count: int, tokens: int, seed: int) -> list[str]:
    """Texts of random words, with between half and one and a half times as many tokens, evenly spread.

    Args:
        words: Each of one token.
        count: How many texts.
        tokens: Mean tokens of a text, special tokens included.
        seed: Another seed gives other texts.
    """
    rng = np.random.default_rng((seed, tokens, count))
    sizes = rng.integers(-(-tokens // 2), tokens + tokens // 2 + 1, size=count) - _SPECIAL_TOKENS  # (texts,)
    sizes = np.maximum(sizes, 1)
    picked = rng.integers(len(words), size=int(sizes.sum())).tolist()
    drawn = iter(picked)
    return [" ".join(words[place] for place in islice(drawn, size)) for size in sizes.tolist()]
