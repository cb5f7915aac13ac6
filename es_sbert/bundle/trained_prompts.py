"""The prompts that known models were trained with, for folders that do not state them.

Such a folder is used without prompts, as sentence-transformers does, because the fingerprint of existing vectors covers
them. Users get a warning, and `es-sbert model fetch` writes a copy with the prompts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import PROMPT_NAMES, SentenceModel
from es_sbert.bundle.shortened_model import whole_name
from es_sbert.config import expand_home
from es_sbert.messages import setting

# Names on the hub without the organization, in lower case, and the prompts that the model card requires for search.
# Models whose card only recommends a prompt (bge-*-en-v1.5), or asks for an instruction for the task (e5-*-instruct),
# are not listed.
_FAMILIES: tuple[tuple[re.Pattern[str], dict[PromptKind, str]], ...] = (
    (
        re.compile(r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?"),
        {"query": "query: ", "document": "passage: "},
    ),
    (
        re.compile(r"nomic-embed-text-v(1|1\.5|2-moe)(-unsupervised|-ablated)?"),
        {"query": "search_query: ", "document": "search_document: "},
    ),
    (
        re.compile(r"mxbai-embed-large-v1"),
        {"query": "Represent this sentence for searching relevant passages: "},
    ),
)
# Name under which the prompt of a kind is added, unless the folder has an empty one.
_NEW_NAMES: dict[PromptKind, str] = {"query": "query", "document": "passage"}
_HUB_CACHE = "models--"


def missing_prompts(name: str, folder: Path, stated: Mapping[str, str]) -> dict[str, str]:
    """Return the prompts that a model was trained with, if its folder states none.

    The model is identified by its name, not by its base (`_name_or_path`): a model that was trained further may have
    learned without prompts.

    Args:
        name: Hub id, folder or name by which the model was opened.
        folder: The folder, perhaps in the hub's cache.
        stated: The prompts that the folder states; empty ones do not count.

    Returns:
        Maps prompt names to the text in front of an input; empty if nothing is missing.
    """
    for each in () if any(stated.values()) else _possible_names(name, folder):
        for pattern, prompts in _FAMILIES:
            if pattern.fullmatch(each.lower()):
                return {
                    next((name for name in PROMPT_NAMES[kind] if name in stated), _NEW_NAMES[kind]): prompt
                    for kind, prompt in prompts.items()
                }
    return {}


def _possible_names(name: str, folder: Path) -> list[str]:
    """Names of a model without the organization: from its name, and from its folder in the hub's cache."""
    cached = [part.rpartition("--")[2] for part in folder.absolute().parts if part.startswith(_HUB_CACHE)]
    return [PurePath(whole_name(name)).name, *cached]


def describe_prompts(prompts: Mapping[str, str]) -> str:
    """`'query: ' (query) and 'passage: ' (passage)`."""
    return " and ".join(f"{prompt!r} ({name})" for name, prompt in prompts.items())


def prompt_warning(model: SentenceModel) -> str | None:
    """A warning if a model was trained with prompts that its folder does not state."""
    prompts = missing_prompts(model.name, model.folder, model.prompts)
    if not prompts:
        return None
    whole, short = whole_name(model.name), _possible_names(model.name, model.folder)[-1]
    is_on_hub = "/" in whole and not expand_home(whole).is_dir()
    command = f"es-sbert model fetch {whole}" if is_on_hub else f"es-sbert model fetch {short} --from {model.folder}"
    return (
        f"{model.name} was trained with the prompts {describe_prompts(prompts)}, but its folder states none, so "
        f"searches find less. Make a copy with them: `{command}`. Then use {setting('model', short)} for new "
        f"indices, and `es-sbert index migrate INDEX --model {short}` for existing ones"
    )
