"""Settings of a model folder: those that are applied, those that do not change vectors, and those that are refused.

sentence-transformers and transformers read more settings than es-sbert applies. A setting that is not applied and may
change a vector is refused by name, because a wrong vector is worse than an error. The tables are those of
sentence-transformers 6.2 and transformers 5.23; a test compares them with the installed releases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_sbert.bundle.model_files import COPY_AGAIN
from es_sbert.errors import BundleInvalid, UnsupportedSetting


@dataclass(frozen=True)
class SettingsTable:
    """The settings of one kind of file.

    Attributes:
        applied: Settings that es-sbert applies. Values that it cannot apply are refused when they are read.
        harmless: Settings that never change a vector.
        neutral: Maps each setting to the values with which it does not change vectors; other values are refused. An
            empty tuple allows null and an empty list or object.
    """

    applied: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[str]:
        """All settings that the table lists."""
        return self.applied | self.harmless | self.neutral.keys()


def check_settings(
    path: Path, settings: Mapping[str, Any], table: SettingsTable, ignored: Collection[str] = (), prefix: str = ""
) -> None:
    """Refuse settings that may change vectors and are not applied.

    Args:
        path: The file, for messages.
        settings: Its contents.
        table: The table of its kind.
        ignored: Unknown settings that the user accepts.
        prefix: Prefix of each name in messages, for an object inside the file.

    Raises:
        UnsupportedSetting: a setting may change vectors and is not applied.
        BundleInvalid: the settings are not an object.
    """
    if not isinstance(settings, Mapping):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: {prefix.removesuffix('.') or 'it'} is not an object", COPY_AGAIN
        )
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if key not in table.known:
            if name in ignored:
                continue
            raise UnsupportedSetting(
                f"{path} has the unknown setting {name}, which may change vectors",
                "Remove it if it does not change what the model computes, or accept it in an exported bundle: "
                f"`es-sbert export MODEL -o BUNDLE --ignore-setting {name}`.",
            )
        if key in table.neutral and not _is_neutral(value, table.neutral[key]):
            raise UnsupportedSetting(
                f"{path} sets {name} to {_shown(value)}, which es-sbert does not apply",
                _REMEDIES.get(
                    key, "Choose a model without this setting, or serve this one with sentence-transformers."
                ),
            )


def _is_neutral(value: Any, values: tuple[Any, ...]) -> bool:
    if not values:
        return value is None or value == [] or value == {}
    # 1 == True, although they are different settings. A flag that is null is not set.
    return (value is None and False in values) or any(value == each and type(value) is type(each) for each in values)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


_SAVE_TOKENIZER = "Save the tokenizer without it: AutoTokenizer.from_pretrained(MODEL).save_pretrained(MODEL)."
_REMEDIES = {
    "query_expansion": "It is for models with one vector per token (ColBERT); choose one with one vector per text.",
    "auto_map": "es-sbert does not run code from a model; choose an architecture that transformers itself has.",
    "split_special_tokens": _SAVE_TOKENIZER,
    "tokenizer_name_or_path": "Copy the tokenizer's files into the folder and remove the setting.",
    "transformer_task": "es-sbert reads encoders (feature-extraction): save the model as a SentenceTransformer.",
}

# modules.json, each entry.
MODULE_ENTRY = SettingsTable(
    applied=frozenset({"type", "path"}), harmless=frozenset({"idx", "name"}), neutral={"kwargs": ()}
)

CONFIG_SENTENCE_TRANSFORMERS = SettingsTable(
    applied=frozenset({"prompts", "default_prompt_name", "truncate_dim", "requirements", "model_type"}),
    # Vectors are always compared by cosine; sentence-transformers' `similarity` is not used.
    harmless=frozenset({"__version__", "similarity_fn_name"}),
)

# sentence_bert_config.json. The names with `args` are those of releases before 5.4.
SENTENCE_BERT_CONFIG = SettingsTable(
    applied=frozenset({
        "max_seq_length", "do_lower_case", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args",
        "model_kwargs", "model_args", "processing_kwargs", "modality_config", "query_length", "document_length",
    }),
    # Selects a flash attention kernel on GPUs; the vectors are the same.
    harmless=frozenset({"unpad_inputs"}),
    neutral={
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "query_expansion": (),
        "tokenizer_name_or_path": (),
        "backend": ("torch",),
    },
)  # fmt: skip

# Settings for loading and running the network.
MODEL_KWARGS = SettingsTable(
    # `dtype` and `torch_dtype` have no effect, because computation is in float32.
    harmless=frozenset({
        "dtype", "torch_dtype", "attn_implementation", "device_map", "low_cpu_mem_usage", "use_safetensors",
        "trust_remote_code", "local_files_only", "cache_dir", "token", "revision", "use_cache",
    }),
)  # fmt: skip

# Arguments of tokenizer calls.
TEXT_PROCESSING = SettingsTable(
    applied=frozenset({"max_length"}),
    harmless=frozenset({
        "padding", "pad_to_multiple_of", "return_length", "verbose",
        "return_special_tokens_mask", "return_offsets_mapping", "return_tensors",
    }),
    neutral={
        "truncation": (True, "longest_first", "only_first"), "add_special_tokens": (True,),
        "return_attention_mask": (True, None), "padding_side": ("right", None),
    },
)  # fmt: skip
COMMON_PROCESSING = SettingsTable(harmless=frozenset({"return_tensors", "verbose"}))
PROCESSING_KWARGS = SettingsTable(
    applied=frozenset({"text", "common"}), harmless=frozenset({"audio", "image", "video", "chat_template"})
)

POOLING = SettingsTable(
    applied=frozenset({
        "embedding_dimension", "word_embedding_dimension", "pooling_mode", "pooling_mode_cls_token",
        "pooling_mode_max_tokens", "pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken", "include_prompt",
    }),
)  # fmt: skip

DENSE = SettingsTable(
    applied=frozenset({
        "in_features", "out_features", "bias", "activation_function", "module_input_name", "module_output_name",
        "use_residual",
    }),
)  # fmt: skip

WEIGHTED_LAYERS = SettingsTable(
    applied=frozenset({"embedding_dimension", "word_embedding_dimension", "layer_start", "num_hidden_layers"})
)

LAYER_NORM = SettingsTable(applied=frozenset({"dimension"}))

NORMALIZE = SettingsTable(applied=frozenset({"module_input_name", "module_output_name"}))

# Settings in config.json that no network computes with: labels, training, generation, loading, bookkeeping.
_HARMLESS_CONFIG = frozenset({
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "initializer_factor", "init_std", "id2label", "label2id", "num_labels", "problem_type", "classifier_dropout",
    "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
    "sentence_transformers", "sbert_ce_default_activation_function", "chunk_size_feed_forward", "output_attentions",
    "output_hidden_states", "return_dict", "tie_word_embeddings", "bos_token_id", "eos_token_id", "sep_token_id",
    "cls_token_id", "mask_token_id", "unk_token_id", "decoder_start_token_id", "finetuning_task",
    "task_specific_params", "tokenizer_class", "prefix", "torchscript", "tf_legacy_loss", "use_bfloat16",
    "tie_encoder_decoder", "cross_attention_hidden_size", "is_encoder_decoder", "type_vocab_size", "vocab_size",
    "output_past", "model_name",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "directionality", "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout",
    "attention_dropout", "qa_dropout", "seq_classif_dropout", "dropout_prob", "hidden_dropout", "language", "name",
    # Settings of `generate`.
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
})  # fmt: skip

# config.json of the architectures whose graphs are built from the weights. Traced graphs are the library's own network.
_CODE = {"auto_map": ()}
# With these settings, it is a different network, which is traced too.
_OTHER_NETWORK = frozenset({"is_decoder", "add_cross_attention", "pruned_heads", "quantization_config"})
_BERT_CONFIG = _OTHER_NETWORK | {
    "model_type", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "hidden_act",
    "layer_norm_eps", "max_position_embeddings", "position_embedding_type", "pad_token_id",
}  # fmt: skip
_DISTILBERT_CONFIG = _OTHER_NETWORK | {
    "model_type", "n_layers", "n_heads", "dim", "hidden_dim", "activation", "max_position_embeddings", "pad_token_id",
}  # fmt: skip
_BERT = SettingsTable(_BERT_CONFIG, _HARMLESS_CONFIG | {"is_causal"}, _CODE)
CONFIGS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _BERT),
    "mpnet": SettingsTable(_BERT_CONFIG | {"relative_attention_num_buckets"}, _HARMLESS_CONFIG | {"is_causal"}, _CODE),
    # Sinusoidal positions are stored in the weights like others.
    "distilbert": SettingsTable(
        _DISTILBERT_CONFIG, _HARMLESS_CONFIG | {"is_causal", "sinusoidal_pos_embds", "tie_weights_"}, _CODE
    ),
}

# Transformers with rotary positions. These tables are checked when a graph is built, not when a folder is read. If a
# setting is not listed, the network is traced instead, and the library applies the setting.
_ROTARY_CONFIG = _OTHER_NETWORK | {
    "model_type", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size",
    "max_position_embeddings", "rope_parameters", "rope_scaling",
}  # fmt: skip
# Llama's layers.
_LLAMA_CONFIG = _ROTARY_CONFIG | {
    "num_key_value_heads", "head_dim", "rms_norm_eps", "attention_bias", "rope_theta",
}  # fmt: skip
_HARMLESS_ROTARY = _HARMLESS_CONFIG | {
    "pad_token_id", "mask_token_id", "classifier_pooling", "classifier_bias", "classifier_activation",
    "embedding_dropout", "mlp_dropout", "decoder_bias", "deterministic_flash_attn", "reference_compile",
    "sparse_prediction", "sparse_pred_ignore_index", "initializer_cutoff_factor", "pretraining_tp",
}  # fmt: skip
ROTARY_CONFIGS = {
    # Positions are always rotary, and `norm_eps` is the epsilon that is read.
    "modernbert": SettingsTable(
        _ROTARY_CONFIG | {
            "hidden_activation", "norm_eps", "norm_bias", "attention_bias", "mlp_bias", "layer_types",
            "local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta",
        },
        _HARMLESS_ROTARY | {"position_embedding_type", "layer_norm_eps", "repad_logits_with_grad", "is_causal"},
        _CODE,
    ),
    "nomic_bert": SettingsTable(
        _ROTARY_CONFIG | {"hidden_act", "layer_norm_eps", "head_dim", "rope_theta", "type_vocab_size"},
        (_HARMLESS_ROTARY | {"is_causal"}) - {"type_vocab_size"},
        _CODE,
    ),
    "gte": SettingsTable(
        _ROTARY_CONFIG | {"hidden_act", "layer_norm_eps", "rope_theta", "type_vocab_size"},
        (_HARMLESS_ROTARY | {"is_causal"}) - {"type_vocab_size"},
        _CODE,
    ),
    "eurobert": SettingsTable(
        _LLAMA_CONFIG | {"hidden_act", "mlp_bias"}, _HARMLESS_ROTARY | {"is_causal"}, _CODE
    ),
    "qwen3": SettingsTable(
        _LLAMA_CONFIG | {
            "hidden_act", "is_causal", "layer_types", "use_sliding_window", "sliding_window", "max_window_layers",
        },
        _HARMLESS_ROTARY,
        _CODE,
    ),
    # The model's own code does not apply caps on logits either.
    "gemma3_text": SettingsTable(
        _LLAMA_CONFIG | {
            "hidden_activation", "is_causal", "layer_types", "sliding_window", "sliding_window_pattern",
            "rope_local_base_freq", "query_pre_attn_scalar", "use_bidirectional_attention",
        },
        _HARMLESS_ROTARY | {
            "final_logit_softcapping", "attn_logit_softcapping", "_sliding_window_pattern", "hidden_act",
            "cache_implementation",
        },
        _CODE,
    ),
}  # fmt: skip

# Types of the settings in config.json that es-sbert applies.
CONFIG_TYPES: dict[str, tuple[type, ...]] = {
    "model_type": (str,),
    **dict.fromkeys(("hidden_act", "activation", "hidden_activation"), (str,)),
    "position_embedding_type": (str, type(None)),
    **dict.fromkeys(("layer_norm_eps", "norm_eps", "rms_norm_eps"), (float,)),
    **dict.fromkeys(
        (
            "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "n_layers", "n_heads",
            "dim", "hidden_dim", "max_position_embeddings", "relative_attention_num_buckets", "local_attention",
            "global_attn_every_n_layers", "sliding_window_pattern", "max_window_layers", "type_vocab_size",
        ),
        (int,),
    ),
    **dict.fromkeys(("pad_token_id", "num_key_value_heads", "head_dim", "sliding_window"), (int, type(None))),
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "use_sliding_window"), (bool,)),
    "use_bidirectional_attention": (bool, type(None)),
    "vocab_size": (int,),
}  # fmt: skip

TOKENIZER_CONFIG = SettingsTable(
    applied=frozenset({
        "tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space",
        "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "model_input_names",
        "model_max_length", "max_len", "truncation_side", "bos_token", "eos_token", "unk_token", "sep_token",
        "pad_token", "cls_token", "mask_token",
    }),
    harmless=frozenset({
        # Paths and bookkeeping.
        "name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "backend", "is_local",
        "local_files_only", "use_fast", "legacy", "from_slow", "trust_remote_code", "files_loaded", "verbose",
        "language", "device_map", "max_model_input_sizes", "vocab_size", "return_tensors", "device",
        # Settings for decoding, padding, pairs and the truncation of calls.
        "clean_up_tokenization_spaces", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        "errors", "trim_offsets", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "max_length", "stride",
        "truncation_strategy", "spaces_between_special_tokens", "unk_id", "pad_token_id",
        # Settings of the Python tokenizers before transformers 5.
        "do_basic_tokenize", "never_split", "sp_model_kwargs", "wordpieces_prefix", "clean_text",
        # Ignored if there is a tokenizer.json.
        "add_bos_token", "add_eos_token",
        # Settings for chats and for other modalities.
        "chat_template", "response_template", "response_schema", "chat_control_tokens", "tokenizer_type",
        "use_default_system_prompt",
    }),
    neutral={
        "split_special_tokens": (False,),
        "auto_map": (),
        "processor_class": (),
        "init_inputs": (),
        "fix_mistral_regex": (False,),
    },
)  # fmt: skip
