"""Small sentence-transformers folders with random weights, written by the libraries that users write them with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from es_sbert.exporters.sentences import parity_sentences

ARCHITECTURES = ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet")

# (beginning, end, padding, unknown, mask) in the order of their ids: padding is 0 for BERT's kin, 1 for RoBERTa's.
_BERT_TOKENS = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
_ROBERTA_TOKENS = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")


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
    """Write a sentence-transformers folder: safetensors, tokenizer.json, modules.json and the rest.

    Args:
        folder: Where; made if it is not there.
        architecture: One of `ARCHITECTURES`.
        pooling: One pooling mode of sentence-transformers, or several that are concatenated.
        dense: Dense modules behind the pooling.
        normalize: Whether a Normalize module ends the model.
        hidden_act: Activation between the feed-forward products.
        hidden, heads, layers: Size of the transformer.
        max_tokens: Longest input; the model has positions for just as many.
        prompts: Prompt name → text.
        seed: The same one gives the same weights.
        config: Further settings of the transformer's configuration.

    Returns:
        The folder.
    """
    transformer_folder = folder.with_name(folder.name + "-transformer")
    tokenizer = _tokenizer(architecture, max_tokens)
    tokenizer.save_pretrained(transformer_folder)
    network = _network(architecture, len(tokenizer), hidden_act, hidden, heads, layers, max_tokens, config or {})
    _randomise(network, seed)
    network.save_pretrained(transformer_folder)

    modules: list[torch.nn.Module] = [Transformer(str(transformer_folder), max_seq_length=max_tokens)]
    modules.append(Pooling(hidden, pooling_mode=pooling))
    modules += [*dense, *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    return folder


def _network(
    architecture: str, vocabulary: int, hidden_act: str, hidden: int, heads: int, layers: int, max_tokens: int,
    extra: dict[str, Any],
) -> Any:  # fmt: skip
    if architecture == "distilbert":
        return transformers.DistilBertModel(
            transformers.DistilBertConfig(
                vocab_size=vocabulary, dim=hidden, n_heads=heads, n_layers=layers, hidden_dim=4 * hidden,
                activation=hidden_act, max_position_embeddings=max_tokens, **extra,
            )
        )  # fmt: skip
    kinds: dict[str, tuple[Any, Any]] = {
        "bert": (transformers.BertConfig, transformers.BertModel),
        "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel),
        "mpnet": (transformers.MPNetConfig, transformers.MPNetModel),
    }
    make_config, make_model = kinds[architecture]
    counted_after_padding = architecture != "bert"
    return make_model(
        make_config(
            vocab_size=vocabulary, hidden_size=hidden, num_attention_heads=heads, num_hidden_layers=layers,
            intermediate_size=4 * hidden, hidden_act=hidden_act, type_vocab_size=2 if architecture == "bert" else 1,
            max_position_embeddings=max_tokens + 2 * counted_after_padding,
            pad_token_id=int(counted_after_padding), **extra,
        )
    )  # fmt: skip


def _randomise(network: torch.nn.Module, seed: int) -> None:
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
    roberta_like = architecture in ("roberta", "xlm-roberta", "mpnet")
    begin, end, padding, unknown, mask = _ROBERTA_TOKENS if roberta_like else _BERT_TOKENS
    special = [begin, padding, end, unknown, mask] if roberta_like else [padding, unknown, begin, end, mask]
    texts = parity_sentences(max_tokens)
    trainer: Any
    if architecture == "roberta":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    elif architecture == "xlm-roberta":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token=unknown,
                                          show_progress=False)  # fmt: skip
    else:
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ids = {token: tokenizer.token_to_id(token) for token in special}
    if architecture == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing((end, ids[end]), (begin, ids[begin]))
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}", special_tokens=[(begin, ids[begin]), (end, ids[end])]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_tokens, bos_token=begin, eos_token=end, cls_token=begin,
        sep_token=end, pad_token=padding, unk_token=unknown, mask_token=mask,
    )  # fmt: skip
