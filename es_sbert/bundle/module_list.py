"""The modules of a model folder: those in modules.json, or sentence-transformers' defaults for a transformer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from es_sbert.bundle.known_settings import MODULE_ENTRY, check_settings
from es_sbert.bundle.model_files import read_module_entries, read_optional_json
from es_sbert.bundle.modules import STATIC, Feature, Pooling
from es_sbert.bundle.transformer_settings import SENTENCE_BERT_CONFIG_FILES, hidden_width
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting

_SERVE_ELSEWHERE = "Serve it with sentence-transformers, or choose a model that begins with a Transformer."
_MAKE_STATIC = (
    "Make a StaticEmbedding of its vectors, with a tokenizer of the library `tokenizers`, and compare the two: "
    "SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=...)]).save(FOLDER)."
)
_TWO_NETWORKS = (
    "embeds queries and documents with separate networks; es-sbert embeds both with one",
    "Choose one model for both, and embed an index of this one again: `es-sbert index migrate INDEX --model MODEL`. A "
    "folder of the former command `model pair` names its model for documents in es_sbert_pair.json; that one opens its "
    "indices.",
)
# Modules of sentence-transformers that es-sbert does not read → the reason, and what to do.
_REFUSED_MODULES = {
    "WordEmbeddings": (
        "looks words up unchanged, then without punctuation, then in lower case, which no tokenizer.json can express",
        _MAKE_STATIC,
    ),
    "WordWeights": ("weights the words of WordEmbeddings, which es-sbert does not support", _MAKE_STATIC),
    "BoW": ("counts the words of a text and has no token vectors", "Search for words with the engine itself (BM25)."),
    "CNN": ("is a network over WordEmbeddings, which es-sbert does not support", _SERVE_ELSEWHERE),
    "LSTM": ("is a network over WordEmbeddings, which es-sbert does not support", _SERVE_ELSEWHERE),
    "Router": _TWO_NETWORKS,
    "Asym": _TWO_NETWORKS,  # its name in older releases
    "CLIPModel": (
        "embeds images too, with the pooling of its own network",
        "Serve it with sentence-transformers, or choose a model for texts.",
    ),
}

# Other files of a sentence-transformers folder, besides modules.json.
_SENTENCE_TRANSFORMERS_FILES = (
    "es_sbert.json", "config_sentence_transformers.json", "1_Pooling", *SENTENCE_BERT_CONFIG_FILES,
)  # fmt: skip


def plain_modules(folder: Path) -> list[tuple[str, str]]:
    """The modules of a transformers folder: only the Transformer; see `plain_pooling`.

    Raises:
        BundleInvalid: the folder is not a transformers folder, or is a sentence-transformers folder that has lost its
            modules.json.
    """
    lost = [name for name in _SENTENCE_TRANSFORMERS_FILES if (folder / name).exists()]
    if lost or not (folder / "config.json").exists():
        what = f"but {lost[0]}" if lost else "and no config.json"
        raise BundleInvalid(
            f"{folder} has no modules.json {what}, so the pooling of its token vectors is unknown",
            "Copy the folder again, or use one that SentenceTransformer(...).save wrote.",
        )
    return [("Transformer", "")]


def plain_pooling(folder: Path, config: dict[str, Any]) -> Feature:
    """Return the sentence vector that sentence-transformers computes with a transformers folder."""
    names = config.get("architectures") or [""]
    if str(names[0]).endswith("ForSequenceClassification"):
        raise BundleInvalid(
            f"{folder} is a cross-encoder ({names[0]}), which does not compute sentence vectors",
            f"Export it as a reranker: `es-sbert export {folder} -o RERANKER`.",
        )
    if config.get("model_type") == "model2vec":
        raise UnsupportedArchitecture(
            f"{folder} is a folder of model2vec without modules.json",
            "Save it with one: SentenceTransformer(modules=[StaticEmbedding.from_model2vec(MODEL)]).save(FOLDER).",
        )
    templates = (folder / "chat_template.jinja", folder / "chat_template.json")
    if read_optional_json(folder / "tokenizer_config.json").get("chat_template") or any(
        template.exists() for template in templates
    ):
        raise UnsupportedSetting(
            f"{folder} has no modules.json, but a chat template, so sentence-transformers turns each text into a chat "
            "message",
            "Save it with a pooling: SentenceTransformer(modules=[Transformer(...), Pooling(...)]).save(folder).",
        )
    is_causal = str(names[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    return Feature(hidden_width(folder, config), pooling=(Pooling.LASTTOKEN if is_causal else Pooling.MEAN,))


def read_modules(folder: Path, ignored: Collection[str]) -> list[tuple[str, str]]:
    """Read (class name, folder) of each module in modules.json.

    Raises:
        BundleInvalid: the file is broken, or names a folder outside the model folder.
        UnsupportedArchitecture: a module that is not one of sentence-transformers or that es-sbert does not read, or a
            first module that is neither a Transformer nor a StaticEmbedding.
        UnsupportedSetting: an entry has a setting that es-sbert does not apply.
    """
    path = folder / "modules.json"
    entries = read_module_entries(folder)
    for entry in entries:
        check_settings(path, entry, MODULE_ENTRY, ignored)
    foreign = [str(entry["type"]) for entry in entries if not str(entry["type"]).startswith("sentence_transformers.")]
    if foreign:
        raise UnsupportedArchitecture(
            f"{path} has a module of the class {foreign[0]}, which is not one of sentence-transformers",
            "es-sbert does not run code from a model; choose one with modules of sentence-transformers.",
        )
    names = [entry["name"] for entry in entries if "name" in entry]
    if len(set(map(str, names))) < len(names):
        raise BundleInvalid(
            f"{path} gives two modules the same name", "Give each module in modules.json a unique name."
        )
    modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    for _, place in modules:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise BundleInvalid(f"{path} names {place!r}, which is outside the folder", "Do not use this model.")
    for kind, _ in modules:
        if kind in _REFUSED_MODULES:
            reason, remedy = _REFUSED_MODULES[kind]
            raise UnsupportedArchitecture(f"{path} has a {kind} module, which {reason}", remedy)
    if not modules or modules[0][0] not in ("Transformer", STATIC):
        raise UnsupportedArchitecture(
            f"{path} lists {', '.join(kind for kind, _ in modules) or 'no module'}; es-sbert reads models that begin "
            f"with a Transformer or a {STATIC}",
            "Choose such a model.",
        )
    return modules
