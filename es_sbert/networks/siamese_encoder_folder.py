"""Open and save siamese encoders as sentence-transformers folders."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from es_sbert.bundle.model_files import find_weight_files
from es_sbert.bundle.sentence_model import Activation, Dense, Pooling, SentenceModel
from es_sbert.bundle.sentence_model_reader import read_plain_transformer, read_sentence_model
from es_sbert.encoder.tokenizer import load_tokenizer
from es_sbert.errors import BundleInvalid, error_summary
from es_sbert.networks.siamese_encoder import DenseLayer, SiameseEncoder, TokenTypes, takes_token_types

_ACTIVATION_NAMES = {
    Activation.IDENTITY: "torch.nn.modules.linear.Identity",
    Activation.TANH: "torch.nn.modules.activation.Tanh",
    Activation.RELU: "torch.nn.modules.activation.ReLU",
    Activation.GELU: "torch.nn.modules.activation.GELU",
}

# Written in the form that every version of sentence-transformers reads.
_POOLING_KEYS = {
    Pooling.CLS: "pooling_mode_cls_token",
    Pooling.MEAN: "pooling_mode_mean_tokens",
    Pooling.MAX: "pooling_mode_max_tokens",
    Pooling.MEAN_SQRT_LEN: "pooling_mode_mean_sqrt_len_tokens",
    Pooling.WEIGHTEDMEAN: "pooling_mode_weightedmean_tokens",
    Pooling.LASTTOKEN: "pooling_mode_lasttoken",
}


def open_siamese_encoder(
    folder: Path, *, name: str | None = None, pooling: Sequence[Pooling] = (Pooling.MEAN,)
) -> SiameseEncoder:
    """Open a sentence-transformers folder or a bare transformers folder, in float32, on the CPU.

    Args:
        folder: The folder.
        name: Name for people; the folder's own by default.
        pooling: Pooling modes of a bare transformer, which has none of its own.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: a module that es-sbert does not honour.
    """
    name = name or folder.resolve().name
    if (folder / "modules.json").exists():
        model = read_sentence_model(folder, name)
    else:
        model = read_plain_transformer(folder, name, pooling)
    transformer = load_transformer(model)
    dense = [_open_dense(model, settings) for settings in model.dense]
    return SiameseEncoder(model, transformer, dense, _read_token_types(model, transformer))


def _read_token_types(model: SentenceModel, transformer: nn.Module) -> TokenTypes | None:
    """What sentence-transformers would hand the transformer; None where all types are 0, as they are by default."""
    types = TokenTypes.of(load_tokenizer(model.tokenizer_file))
    if not any((*types.prefix, types.body, *types.suffix)):
        return None
    tokenizer = AutoTokenizer.from_pretrained(str(model.transformer_folder), local_files_only=True)
    return types if takes_token_types(transformer, tokenizer) else None


def load_transformer(model: SentenceModel) -> nn.Module:
    """The transformer of a model folder, float32, in training mode; its unused pooler is frozen.

    Raises:
        BundleInvalid: transformers does not take the folder, or its weights do not fill the network.
    """
    folder = model.transformer_folder
    find_weight_files(folder)  # refuses pickles before another library opens them
    try:
        transformer, loading = AutoModel.from_pretrained(
            str(folder),
            use_safetensors=True,
            local_files_only=True,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BundleInvalid(
            f"transformers cannot open {folder}: {error_summary(error)}",
            "Give the folder of a transformers encoder with its config.json and model.safetensors.",
        ) from error
    # transformers fills what is missing with random numbers; only the pooler, which is not used, may be missing.
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if missing:
        raise BundleInvalid(
            f"the weights in {folder} lack {', '.join(missing[:3])}", "Copy or download the model folder again."
        )
    pooler = getattr(transformer, "pooler", None)
    if pooler is not None:
        # Next-sentence prediction's layer gets no gradient from a sentence vector; several processes would wait for it.
        pooler.requires_grad_(False)
    network: nn.Module = transformer.train()
    return network


def _open_dense(model: SentenceModel, settings: Dense) -> DenseLayer:
    layer = DenseLayer(settings)
    (file,) = find_weight_files(model.folder / settings.folder)
    layer.load_state_dict(safetensors.torch.load_file(file))
    return layer


def save_siamese_encoder(encoder: SiameseEncoder, folder: Path) -> None:
    """Write a folder that es-sbert and sentence-transformers open.

    Args:
        encoder: The encoder; updates by LoRA are merged into the written weights.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    model = encoder.model
    folder.mkdir(parents=True, exist_ok=True)
    transformer: Any = merge_lora(encoder.transformer)
    transformer.save_pretrained(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(str(model.transformer_folder), local_files_only=True)
    tokenizer.save_pretrained(str(folder))
    # The tokenizer as it was: transformers may write it in another form, and its file is part of the fingerprint.
    (folder / "tokenizer.json").write_bytes(model.tokenizer_file.read_bytes())
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    width = (model.dense[0].in_features if model.dense else model.dimensions) // len(model.pooling)
    pooling = {key: mode in model.pooling for mode, key in _POOLING_KEYS.items()}
    if len(model.pooling) > 1:
        # The flags lose the order of several modes; the newer key keeps it.
        pooling = {"pooling_mode": [str(mode) for mode in model.pooling]}  # type: ignore[dict-item]
    _write_json(
        folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling, "include_prompt": True}
    )
    for layer in encoder.dense:
        place = f"{len(modules)}_Dense"
        _write_dense(layer, folder / place)
        modules.append((place, "Dense"))
    if model.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (folder / modules[-1][0]).mkdir(exist_ok=True)
    _write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
            for number, (place, kind) in enumerate(modules)
        ],
    )
    _write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": model.max_tokens, "do_lower_case": model.lowercase}
    )
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": model.prompts, "default_prompt_name": model.default_prompt, "similarity_fn_name": "cosine"},
    )


def merge_lora(transformer: nn.Module) -> nn.Module:
    """The transformer with its LoRA updates, where it has some, added to its weights; the argument is left alone."""
    if not hasattr(transformer, "merge_and_unload"):
        return transformer
    plain: nn.Module = copy.deepcopy(transformer).merge_and_unload()
    return plain


def _write_dense(layer: DenseLayer, folder: Path) -> None:
    settings = layer.settings
    folder.mkdir()
    _write_json(
        folder / "config.json",
        {
            "in_features": settings.in_features,
            "out_features": settings.out_features,
            "bias": settings.bias,
            "activation_function": _ACTIVATION_NAMES[settings.activation],
        },
    )
    safetensors.torch.save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in layer.state_dict().items()},
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
