"""Read config_sentence_transformers.json: prompts, the length of a vector, and required releases of libraries."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from es_sbert.bundle.known_settings import CONFIG_SENTENCE_TRANSFORMERS, check_settings
from es_sbert.bundle.model_files import COPY_AGAIN, read_optional_json
from es_sbert.errors import BundleInvalid, UnsupportedSetting

# es-sbert reads models as these releases do.
_FOLLOWED_RELEASES = {"sentence_transformers": "6.2.0", "sentence-transformers": "6.2.0", "transformers": "5.23.0"}


def read_model_settings(path: Path, ignored: Collection[str]) -> dict[str, Any]:
    """Read the prompts, the name of the default prompt and `truncate_dim` from config_sentence_transformers.json, if
    any.

    Raises:
        BundleInvalid: a setting has the wrong type.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    settings = read_optional_json(path)
    check_settings(path, settings, CONFIG_SENTENCE_TRANSFORMERS, ignored)
    _check_requirements(path, settings.get("requirements"))
    # For any other value, including null, sentence-transformers builds other modules.
    if (kind := settings.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise UnsupportedSetting(
            f"{path} sets model_type to {kind!r}", "Choose a model that was saved as a SentenceTransformer."
        )
    kept = settings.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1):
        raise BundleInvalid(
            f"{path} has the truncate_dim {kept!r}, expected a positive number of values",
            "Correct it, or remove it for whole vectors.",
        )
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: prompts is not an object of strings",
            'Write them as {"query": "…", "document": "…"}.',
        )
    if not isinstance(default, str | None):
        raise BundleInvalid(f"{path} has a setting of the wrong type: default_prompt_name is {default!r}", COPY_AGAIN)
    # sentence-transformers defines these two names even if they are not in the file.
    if default is not None and default not in {*prompts, "query", "document"}:
        raise BundleInvalid(
            f"{path} has the default prompt {default!r}, but no prompt with that name",
            "Set default_prompt_name to one of its prompts, or remove it.",
        )
    texts = {name: text or "" for name, text in prompts.items()}
    return {"prompts": texts, "default_prompt": default, "truncate_dim": kept}


def _check_requirements(path: Path, requirements: Any) -> None:
    """Refuse a model that requires a different release of a library than the one that es-sbert follows."""
    for package, requirement in (requirements or {}).items() if isinstance(requirements, dict) else ():
        specifier = requirement.get("specifier") if isinstance(requirement, dict) else requirement
        followed = _FOLLOWED_RELEASES.get(package)
        try:
            is_met = followed is None or SpecifierSet(str(specifier or "")).contains(followed, prereleases=True)
        except InvalidSpecifier:
            continue  # sentence-transformers skips it too
        if not is_met:
            raise UnsupportedSetting(
                f"{path} requires {package} {specifier}, but es-sbert reads models like release {followed}",
                "Choose a model that these releases can read.",
            )
