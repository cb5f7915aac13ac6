"""Settings of a model folder: those that are applied, those that do not change vectors, and those that are refused.

sentence-transformers and transformers read more settings than es-sbert applies. A setting that is not applied and may
change a vector is refused by name, because a wrong vector is worse than an error. `known_settings.json` has the tables;
a test compares them with the installed releases.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
            empty list allows null and an empty list or object.
    """

    applied: frozenset[str]
    harmless: frozenset[str]
    neutral: Mapping[str, list[Any]]

    @property
    def known(self) -> frozenset[str]:
        """All settings that the table lists."""
        return self.applied | self.harmless | self.neutral.keys()


_STORED = json.loads(Path(__file__).with_name("known_settings.json").read_text(encoding="utf-8"))


def _read_tables() -> dict[str, SettingsTable]:
    tables: dict[str, SettingsTable] = {}
    for name, entry in _STORED["tables"].items():
        like = tables.get(entry.get("like", ""), SettingsTable(frozenset(), frozenset(), {}))
        tables[name] = SettingsTable(
            like.applied.union(entry.get("applied", ())),
            like.harmless.union(entry.get("harmless", ())),
            {**like.neutral, **entry.get("neutral", {})},
        )
    return tables


# By the name of a file, of an object in it, of a module, or of an architecture, for config.json.
TABLES = _read_tables()
# Architectures whose graphs are built from the weights, without and with rotary positions.
CONFIGS = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert")
ROTARY_CONFIGS = ("modernbert", "nomic_bert", "gte", "eurobert", "qwen3", "gemma3_text")

_TYPES = {"str": str, "float": float, "int": int, "bool": bool, "null": type(None)}
# Types of the settings in config.json that es-sbert applies.
CONFIG_TYPES = {
    key: tuple(_TYPES[each] for each in names.split(" or ")) for names, keys in _STORED["types"].items() for key in keys
}


def check_settings(
    path: Path, settings: Mapping[str, Any], table: str, ignored: Collection[str] = (), prefix: str = ""
) -> None:
    """Refuse settings that may change vectors and are not applied.

    Args:
        path: The file, for messages.
        settings: Its contents.
        table: Name of the table of its kind.
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
    known = TABLES[table]
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if key not in known.known:
            if name in ignored:
                continue
            raise UnsupportedSetting(
                f"{path} has the unknown setting {name}, which may change vectors",
                "Remove it if it does not change what the model computes, or accept it in an exported bundle: "
                f"`es-sbert export MODEL -o BUNDLE --ignore-setting {name}`.",
            )
        if key in known.neutral and not _is_neutral(value, known.neutral[key]):
            raise UnsupportedSetting(
                f"{path} sets {name} to {_shown(value)}, which es-sbert does not apply",
                _REMEDIES.get(
                    key, "Choose a model without this setting, or serve this one with sentence-transformers."
                ),
            )


def _is_neutral(value: Any, values: list[Any]) -> bool:
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
