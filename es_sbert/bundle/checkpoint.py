"""Read a sentence-transformers folder: modules.json and the configurations of its modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from es_sbert.bundle.fingerprint import fingerprint
from es_sbert.bundle.json_files import COPY_AGAIN, optional_json, read_json
from es_sbert.bundle.model import PROMPT_NAMES, SentenceModel
from es_sbert.bundle.modules import check_widths, read_head, read_modules, read_pooling
from es_sbert.bundle.safetensors import find_weights, hash_tensors, read_header
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture

# Architectures whose every setting is known, and those of their config.json that change the output.
KNOWN_ARCHITECTURES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"})
_CONFIG_KEYS = (
    "model_type", "hidden_act", "activation", "layer_norm_eps", "num_attention_heads", "n_heads",
    "position_embedding_type", "relative_attention_num_buckets", "pad_token_id",
)  # fmt: skip

# Settings with which even these architectures are other networks, unless they are false or empty.
UNUSUAL_CONFIG_KEYS = ("is_decoder", "add_cross_attention", "pruned_heads")

_LAYERS = ("num_hidden_layers", "n_layers")
_LAYER = re.compile(r"\blayer\.(\d+)\.")

# Names that sentence-transformers has given to the file with the longest input, the first found wins.
_SBERT_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# Arguments for the tokenizer that may stand in that file and change nothing for a text that runs alone.
_INERT_TOKENIZER_KEYS = {"model_max_length", "padding_side", "use_fast", "trust_remote_code"}

# Of any other architecture everything counts but what no network computes with: who wrote it, and how to train it.
_INERT_CONFIG_KEYS = frozenset({
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "initializer_factor", "init", "init_range", "init_std", "id2label", "label2id", "problem_type",
    "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "sentence_transformers",
    "sbert_ce_default_activation_function",
})  # fmt: skip

# A model_max_length beyond this says that nobody set one (transformers writes 10^30).
_NO_LIMIT = 10**9


def read_model(folder: Path, name: str | None = None) -> SentenceModel:
    """Read and check a sentence-transformers folder.

    Args:
        folder: The folder with modules.json.
        name: Name for people; the folder's own name by default.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, dimensions contradict each other.
        UnsupportedArchitecture: a module or a setting that es-sbert does not honour.
    """
    modules = read_modules(folder)
    transformer, pooling_folder = modules[0][1], modules[1][1]
    config = read_json(folder / transformer / "config.json")
    pooling, width = read_pooling(folder / pooling_folder)
    dense, normalize = read_head(folder, modules[2:])
    dimensions = check_widths(folder, width * len(pooling), dense)
    tokenizer = read_json(folder / transformer / "tokenizer.json")
    sbert = read_sbert_settings(folder / transformer, tokenizer)
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json")

    files = find_weights(folder / transformer)
    weights = [hash_tensors(files)]
    weights += [hash_tensors(find_weights(folder / layer.folder)) for layer in dense]
    try:
        model = SentenceModel(
            folder=folder,
            name=name or folder.resolve().name,
            transformer=transformer,
            architecture=str(config.get("model_type", "unknown")),
            transformer_config=config,
            pooling=pooling,
            dense=dense,
            normalize=normalize,
            max_tokens=longest_input(folder / transformer, config, sbert, tokenizer),
            dimensions=dimensions,
            prompts=prompts,
            default_prompt=default_prompt,
            lowercase=sbert.get("do_lower_case", False),
            fingerprint="",
        )
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error}", COPY_AGAIN) from error
    settings = model.model_dump(
        mode="json",
        include={"pooling", "dense", "normalize", "max_tokens", "prompts", "default_prompt", "lowercase"},
    )
    settings |= _renamed(model)
    settings["config"] = decisive_settings(config, files)
    return model.model_copy(update={"fingerprint": fingerprint("".join(weights), tokenizer, settings)})


def _renamed(model: SentenceModel) -> dict[str, Any]:
    """Settings that es-sbert has once understood otherwise: vectors from then may not pass for those of now."""
    changed: dict[str, Any] = {}
    a_prompt_for_each_kind = all(model.prompts.keys() & set(names) for names in PROMPT_NAMES.values())
    if model.default_prompt is not None and not a_prompt_for_each_kind:
        changed["prompt_without_kind"] = model.default_prompt
    if model.lowercase:
        changed["lowercase_in_tokenizer"] = True
    return changed


def decisive_settings(config: dict[str, Any], weights: Sequence[Path]) -> dict[str, Any]:
    """What decides a transformer's output beside its weights, for the fingerprint.

    Args:
        config: Its config.json.
        weights: Its safetensors files.
    """
    if config.get("model_type") not in KNOWN_ARCHITECTURES:
        return {key: value for key, value in config.items() if key not in _INERT_CONFIG_KEYS and "dropout" not in key}
    settings = {key: config[key] for key in _CONFIG_KEYS if key in config}
    settings |= {key: config[key] for key in UNUSUAL_CONFIG_KEYS if config.get(key)}
    held = {int(found[1]) for file in weights for name in read_header(file) if (found := _LAYER.search(name))}
    layers = next((config[key] for key in _LAYERS if key in config), None)
    # A config.json may leave out layers that the weights hold; whoever uses them all need not say so.
    return settings if layers == len(held) else {**settings, "layers": layers}


def read_sbert_settings(folder: Path, tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The sentence_bert_config.json of a transformer's folder, under whatever name; empty where there is none.

    Args:
        folder: Of the transformer.
        tokenizer: Its tokenizer.json.

    Raises:
        BundleInvalid: a file is broken.
        UnsupportedArchitecture: texts would be read otherwise than es-sbert reads them.
    """
    file, sbert = next(
        ((folder / name, found) for name in _SBERT_FILES if (found := optional_json(folder / name))),
        (folder / _SBERT_FILES[0], {}),
    )
    given = sbert.get("processor_kwargs") or sbert.get("tokenizer_args") or {}
    unknown = sorted(given.keys() - _INERT_TOKENIZER_KEYS - {"truncation_side"})
    if unknown:
        raise UnsupportedArchitecture(
            f"{file} changes the tokenizer's {', '.join(unknown)}",
            "es-sbert reads texts by tokenizer.json alone: save the model with a tokenizer that has these settings.",
        )
    said = given.get("truncation_side") or optional_json(folder / "tokenizer_config.json").get("truncation_side")
    side = str(said or (tokenizer.get("truncation") or {}).get("direction") or "right")
    if side.lower() != "right":
        raise UnsupportedArchitecture(
            f"{folder} cuts long texts at their beginning (truncation_side {side})",
            "es-sbert cuts them at their end: choose a model that does, or save this one with truncation_side right.",
        )
    if "model_max_length" in given:
        sbert = {**sbert, "max_seq_length": given["model_max_length"]}
    return sbert


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """The prompts and the name of the default one from config_sentence_transformers.json, where there is one."""
    settings = optional_json(path)
    if settings.get("truncate_dim") is not None:
        raise UnsupportedArchitecture(
            f"{path} cuts vectors to their first {settings['truncate_dim']} values (truncate_dim)",
            "es-sbert gives whole vectors: remove truncate_dim there for these.",
        )
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: prompts are no texts by name",
            'Write them as {"query": "…", "document": "…"}.',
        )
    # sentence-transformers has these two names whether or not they stand in the file.
    if default is not None and default not in {*prompts, "query", "document"}:
        raise BundleInvalid(
            f"{path} has the default prompt {default!r}, and no prompt of that name",
            "Name one of its prompts under default_prompt_name, or none.",
        )
    return {name: text or "" for name, text in prompts.items()}, default


def longest_input(folder: Path, config: dict[str, Any], sbert: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """The longest input in tokens: what the model says, and never more than it has positions for.

    Args:
        folder: Of the transformer.
        config, sbert, tokenizer: Its config.json, sentence_bert_config.json and tokenizer.json.

    Raises:
        BundleInvalid: nothing says it.
    """
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        # Their first positions are taken by the padding token: position ids start at pad_token_id + 1.
        positions -= int(config.get("pad_token_id", 1)) + 1
    said = sbert.get("max_seq_length") or optional_json(folder / "tokenizer_config.json").get("model_max_length")
    if not said and not positions:
        # What tokenizer.json was last cut to is no property of the model, unless all else is silent.
        said = (tokenizer.get("truncation") or {}).get("max_length")
    # -1 is XLNet's word for positions without an end.
    limits = [int(value) for value in (said, positions) if value and 0 < value < _NO_LIMIT]
    if not limits:
        raise BundleInvalid(
            f"{folder} says nowhere how many tokens the model reads",
            "Set max_seq_length in sentence_bert_config.json.",
        )
    return min(limits)
