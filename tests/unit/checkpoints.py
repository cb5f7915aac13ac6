"""Small sentence-transformers folders with random weights, written by the libraries that users write them with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.exporters.parity import parity_sentences

ARCHITECTURES = ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet")
# With rotary positions.
ROTARY_ARCHITECTURES = ("modernbert", "nomic_bert", "gte", "eurobert", "qwen3", "gemma3_text")
TRACED_ARCHITECTURES = ("xlnet", "electra")  # whose graphs are traced, not built
UNFUSED_ARCHITECTURES = ("xlnet", "modernbert")  # whose attention is not that of the others


def open_variant(folder: Path, variant: str, **options: Any) -> Encoder:
    """Open the encoder of a bundle with one of its variants for CPUs."""
    chosen = Variant(variant)
    return Encoder(folder, device="cpu", precision=str(chosen.precision), runtime=str(chosen.runtime), **options)


def mostly_long(architectures: Iterable[str]) -> list[Any]:
    """Parameters of a test: an architecture of each way to write positions, and the others in the long run."""
    sample = ("bert", "mpnet", "modernbert", "xlnet")
    return [name if name in sample else pytest.param(name, marks=pytest.mark.long) for name in architectures]


# (beginning, end, padding, unknown, mask) in the order of their ids: padding is 0 for BERT's kin, 1 for RoBERTa's.
_BERT_TOKENS = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
_ROBERTA_TOKENS = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
_XLNET_TOKENS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>")

_VOCABULARY = 600  # pieces

# As their own classes of tokenizers do; the general one, which is written here, forgets it otherwise.
_WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
_WITHOUT_TYPES = ["input_ids", "attention_mask"]


def write_checkpoint(
    folder: Path,
    architecture: str = "bert",
    *,
    pooling: str | Sequence[str] = "mean",
    dense: Sequence[Dense] = (),
    normalize: bool = True,
    hidden_act: str = "gelu",
    hidden: int = 48,
    heads: int = 4,
    layers: int = 2,
    max_tokens: int = 64,
    prompts: dict[str, str] | None = None,
    seed: int = 0,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a sentence-transformers folder of a small network; the same seed gives the same weights."""
    transformer_folder = folder.with_name(folder.name + "-transformer")
    tokenizer = _tokenizer(architecture, max_tokens)
    tokenizer.save_pretrained(transformer_folder)
    settings = _settings(architecture, len(tokenizer), hidden_act, hidden, heads, layers, max_tokens)
    network = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(architecture, **{**settings, **(config or {})})
    )
    _randomize(network, seed)
    network.save_pretrained(transformer_folder)

    modules: list[torch.nn.Module] = [Transformer(str(transformer_folder), max_seq_length=max_tokens)]
    modules.append(Pooling(hidden, pooling_mode=pooling))
    modules += [*dense, *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    return folder


def export_small_reranker(folder: Path) -> Path:
    """Export a cross-encoder with one layer of BERT, fp32 only, and return the bundle."""
    source = write_cross_encoder(folder / "bert", layers=1)
    export_reranker(read_cross_encoder(source), folder / "exported", [Variant.FP32])
    return folder / "exported"


def write_cross_encoder(
    folder: Path,
    architecture: str = "bert",
    *,
    labels: int = 1,
    layers: int = 2,
    max_tokens: int = 64,
    seed: int = 0,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a cross-encoder as transformers does: without modules.json."""
    tokenizer = _tokenizer(architecture, max_tokens)
    tokenizer.save_pretrained(folder)
    settings = _settings(architecture, len(tokenizer), "gelu", 48, 4, layers, max_tokens)
    made = transformers.AutoConfig.for_model(architecture, **{**settings, "num_labels": labels, **(config or {})})
    network = transformers.AutoModelForSequenceClassification.from_config(made)
    _randomize(network, seed)
    network.save_pretrained(folder)
    return folder


def keep_only_the_vocabulary(folder: Path) -> None:
    """Replace tokenizer.json by vocab.txt, or by vocab.json and merges.txt, as older folders are."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    if model["type"] == "BPE":
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")
    elif model["type"] == "WordPiece":
        (folder / "vocab.txt").write_text("\n".join(sorted(model["vocab"], key=model["vocab"].get)) + "\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if settings["tokenizer_class"].startswith(("PreTrained", "Tokenizers")):
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        name = {"bert": "Bert", "distilbert": "DistilBert", "mpnet": "MPNet", "roberta": "Roberta"}[model_type]
        kept = {key: value for key, value in settings.items() if key.endswith("_token") or key == "model_max_length"}
        (folder / "tokenizer_config.json").write_text(json.dumps({**kept, "tokenizer_class": f"{name}Tokenizer"}))


def _settings(
    architecture: str, vocabulary: int, hidden_act: str, hidden: int, heads: int, layers: int, max_tokens: int
) -> dict[str, Any]:
    """The settings of a small network in the words of its architecture."""
    if architecture == "distilbert":
        return {
            "vocab_size": vocabulary,
            "dim": hidden,
            "n_heads": heads,
            "n_layers": layers,
            "hidden_dim": 4 * hidden,
            "activation": hidden_act,
            "max_position_embeddings": max_tokens,
        }
    if architecture == "xlnet":
        return {
            "vocab_size": vocabulary,
            "d_model": hidden,
            "n_head": heads,
            "n_layer": layers,
            "d_inner": 4 * hidden,
            "ff_activation": hidden_act,
            "pad_token_id": _XLNET_TOKENS.index("<pad>"),
        }
    common = {
        "vocab_size": vocabulary, "hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers,
        "intermediate_size": 4 * hidden,
    }  # fmt: skip
    rotary = {
        **common, "max_position_embeddings": max_tokens, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    if architecture == "modernbert":
        # A window narrower than the longest input, and a layer that sees everything, as in the models people use.
        return {
            **rotary,
            "hidden_activation": hidden_act,
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 2,
            "sep_token_id": 3,
        }
    if architecture == "gemma3_text":
        # With attention in both directions, as EmbeddingGemma has it; the window is narrower than the longest input.
        return {
            **rotary,
            "hidden_activation": hidden_act,
            "num_key_value_heads": heads // 2,
            "head_dim": hidden // heads,
            "query_pre_attn_scalar": hidden // heads,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * (layers // 2) or ["sliding_attention"],
            "use_bidirectional_attention": True,
        }
    if architecture in ("qwen3", "eurobert"):
        # Heads that are larger than their share of the hidden units, and shared keys.
        return {**rotary, "hidden_act": hidden_act, "num_key_value_heads": heads // 2, "head_dim": 2 * hidden // heads}
    counted_after_padding = architecture in ("roberta", "xlm-roberta", "mpnet")
    return {
        **common,
        "hidden_act": hidden_act,
        "type_vocab_size": 1 if counted_after_padding else 2,
        "max_position_embeddings": max_tokens + 2 * counted_after_padding,
        "pad_token_id": int(counted_after_padding),
    }


def _randomize(network: torch.nn.Module, seed: int) -> None:
    """Weights large enough that attention is uneven, norms and biases that are not ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                is_scale = "norm" in name.lower() and name.endswith("weight")
                parameter.copy_(0.2 * noise + is_scale)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)


def _tokenizer(architecture: str, max_tokens: int) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of the architecture's kind, trained on the parity sentences."""
    if architecture == "xlnet":
        return _xlnet_tokenizer(max_tokens)
    roberta_like = architecture in ("roberta", "xlm-roberta", "mpnet")
    begin, end, padding, unknown, mask = _ROBERTA_TOKENS if roberta_like else _BERT_TOKENS
    special = [begin, padding, end, unknown, mask] if roberta_like else [padding, unknown, begin, end, mask]
    texts = parity_sentences(max_tokens)
    if architecture == "roberta":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=_VOCABULARY,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(texts, trainer)
    elif architecture == "xlm-roberta":
        tokenizer = _unigram(texts, special, unknown)
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.model = models.WordPiece(_word_pieces(tokenizer, texts, special), unk_token=unknown)
        tokenizer.add_special_tokens(special)
    ids = {token: tokenizer.token_to_id(token) for token in special}
    if architecture == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing((end, ids[end]), (begin, ids[begin]))
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} $B:1 {end}:1" if architecture == "bert" else f"{begin} $A {end} {end} $B {end}",
            special_tokens=[(begin, ids[begin]), (end, ids[end])],
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        bos_token=begin,
        eos_token=end,
        cls_token=begin,
        sep_token=end,
        pad_token=padding,
        unk_token=unknown,
        mask_token=mask,
        model_input_names=_WITH_TYPES if architecture == "bert" else _WITHOUT_TYPES,
    )


def _word_pieces(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], special: Sequence[str]) -> dict[str, int]:
    """Piece → id: letters, and the words that stand in texts most often.

    The library's trainer would choose among pieces of the same frequency by chance: another model in every run.
    """
    words = Counter(
        word
        for text in texts
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    )
    letters = sorted({letter for word in words for letter in word})
    frequent = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *frequent]
    return {piece: number for number, piece in enumerate(pieces[:_VOCABULARY])}


def _unigram(texts: Sequence[str], special: Sequence[str], unknown: str) -> tokenizers.Tokenizer:
    """Trained on texts, with the same ids and scores in every run, which the library's trainer does not give."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(special), unk_token=unknown, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    pieces = [(piece, round(score, 2)) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    first, rest = pieces[: len(special)], pieces[len(special) :]
    rest.sort(key=lambda piece: (-piece[1], piece[0]))
    tokenizer.model = models.Unigram([*first, *rest], special.index(unknown))
    return tokenizer


def _xlnet_tokenizer(max_tokens: int) -> transformers.PreTrainedTokenizerFast:
    """XLNet's: special tokens at the end, the last of a type of its own, padding on the left."""
    unknown, begin, end, classify, separate, padding, mask = _XLNET_TOKENS
    tokenizer = _unigram(parity_sentences(max_tokens), _XLNET_TOKENS, unknown)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A:0 {separate}:0 {classify}:2",
        pair=f"$A:0 {separate}:0 $B:1 {separate}:1 {classify}:2",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (separate, classify)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        bos_token=begin,
        eos_token=end,
        cls_token=classify,
        sep_token=separate,
        pad_token=padding,
        unk_token=unknown,
        mask_token=mask,
        padding_side="left",
        model_input_names=_WITH_TYPES,
    )
