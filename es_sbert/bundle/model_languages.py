"""The languages that a model was trained on: from its name, or from the model card in its folder (`README.md`)."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder
from es_sbert.bundle.shortened_model import whole_name
from es_sbert.config import expand_home

# Models of the hub for English texts, without the organization in front, in lower case. Their folders often lack the
# model card, for example if they come from `es-sbert model fetch`.
_ENGLISH_MODELS = re.compile(
    r"all-minilm-l(6|12)-v[12]|all-mpnet-base-v[12]|all-distilroberta-v1|all-roberta-large-v1"
    r"|multi-qa-(minilm-l6|mpnet-base|distilbert)-(cos|dot)-v1|msmarco-(?!.*multilingual)[\w.-]+"
    r"|paraphrase-(minilm-l(3|6|12)|mpnet-base|albert-small)-v[12]"
    r"|bge-(small|base|large)-en(-v1\.5)?|e5-(small|base|large)(-v2)?|gte-(tiny|small|base|large)(-en-v1\.5)?"
    r"|mxbai-embed-(xsmall|large)-v1|nomic-embed-text-v1(\.5)?|modernbert-embed-(base|large)"
    r"|snowflake-arctic-embed-(xs|s|m|l)(-v1\.5)?|granite-embedding-(30m|125m)-english|granite-embedding-english-[\w-]+"
    r"|static-retrieval-mrl-en-v1|potion-base-\w+|potion-retrieval-32m"
)
_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
# `language: en`, `language: [en, de]`, or one `- en` per line.
_LANGUAGE = re.compile(r"^languages?:([^\n]*(?:\n[ \t]*-[^\n]*)*)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#[^\n]*")
_MAX_CARD_BYTES = 1 << 18


def known_languages(name: str, fingerprint: str) -> frozenset[str]:
    """Find out which languages a model was trained on, from what this machine has. The hub is not asked.

    Args:
        name: Name of the model in the mapping: folder, hub id, installed or registered name, also with `@DIMENSIONS`.
        fingerprint: Its fingerprint.

    Returns:
        The languages as the model card has them, ISO 639-1 for most models; empty if they are not known.
    """
    name = whole_name(name)
    folder = expand_home(name)
    if name and folder.is_dir() and (languages := read_card_languages(folder)):
        return languages
    if _ENGLISH_MODELS.fullmatch(PurePath(name).name.lower()):
        return frozenset({"en"})
    for found in (find_registered_folder(name, fingerprint, []), installed_model_folder(name)):
        if found is not None and (languages := read_card_languages(found)):
            return languages
    return frozenset()


def read_card_languages(folder: Path) -> frozenset[str]:
    """Read `language` from the front matter of a model card; empty if there is none.

    Args:
        folder: The folder with the `README.md`.
    """
    try:
        with (folder / "README.md").open("rb") as file:
            card = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return frozenset()
    front_matter = _FRONT_MATTER.match(card)
    found = None if front_matter is None else _LANGUAGE.search(front_matter[1])
    if found is None:
        return frozenset()
    return frozenset(word.lower() for word in re.findall(r"[A-Za-z]+(?:-[A-Za-z]+)*", _COMMENT.sub("", found[1])))
