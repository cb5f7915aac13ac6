"""Make a pair of two models with the same vector space: one embeds documents, the other queries.

A large model embeds the documents once. A small one, or a table of token vectors that was fitted to its vectors, embeds
each query. The folder is a Router of sentence-transformers, which computes the same vectors. An index with vectors of
the large model can be searched with the pair without embedding its documents again.

`measure_agreement` measures whether the two share a space. In a model from a different space, dimensions have other
meanings, so searches with it would return arbitrary documents.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from es_sbert.bundle.model_files import (
    module_entry,
    read_module_list,
    read_optional_json,
    write_json,
    write_module_entries,
)
from es_sbert.bundle.modules import Normalize
from es_sbert.bundle.pair_record import PairAgreement, PairedModel, PairRecord
from es_sbert.bundle.sentence_model import PromptKind, SentenceModel, read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import ModelsDisagree, UnsupportedArchitecture, UsageError
from es_sbert.exporters.export_bundle import copy_model, copy_module, is_previous_export, own_folder
from es_sbert.exporters.parity import normalize_rows, parity_sentences, row_cosines, spearman
from es_sbert.filesystem import staged_folder
from es_sbert.messages import pluralize
from es_sbert.vectors import Vectors

# Thresholds that models of the same space reach (docs/results.md, Measured once). The plain cosine is high
# for all texts if the vectors of the models point in similar directions. The ranks of models trained from the same
# pretrained network agree to some extent; their centered cosines do not.
MIN_CENTERED_COSINE, MIN_RANK_AGREEMENT = 0.4, 40.0
_BAR = f"centered cosine ≥ {MIN_CENTERED_COSINE:g}, rank agreement ≥ {MIN_RANK_AGREEMENT:g}"

# Number of built-in texts, and the maximum and minimum number to compare; all pairs of texts are compared.
BUILT_IN_TEXTS, _MOST_TEXTS, _LEAST_TEXTS = 512, 2_000, 50
_LONGEST = 64  # maximum tokens of the built-in texts: queries are short


def make_pair(
    documents: SentenceModel,
    queries: SentenceModel,
    output: Path,
    texts: Sequence[str] | None = None,
    *,
    accept_disagreement: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> PairRecord:
    """Write a pair to a folder, which appears complete or not at all.

    Args:
        documents: The model that embeds documents; for a model with a Router, its route for documents is used.
        queries: The model that embeds queries; for a model with a Router, its route for queries is used.
        output: Folder to write; new, empty, or an earlier pair.
        texts: Texts for the comparison, such as queries of your users; by default built-in English texts.
        accept_disagreement: Write the pair even if the two do not agree; every summary then mentions it.
        report: Called before slow steps.

    Returns:
        The record about the two models, which is also in the folder.

    Raises:
        UsageError: there are too few texts, the two models are the same or have different dimensions, or the folder
            has other content.
        ModelsDisagree: the two models do not share a space; nothing was written.
        UnsupportedArchitecture: one of the models cannot be part of a pair.
        ModelError: a model cannot be opened.
        OutputError: the folder cannot be written.
    """
    is_previous_export(output, PairRecord.FILE_NAME)  # refuses a folder with other content before the work
    documents = documents.route(documents.route_number("document"))
    queries = queries.route(queries.route_number("query"))
    _check_models(documents, queries)
    distinct = list(dict.fromkeys(built_in_texts() if texts is None else texts))[:_MOST_TEXTS]
    if len(distinct) < _LEAST_TEXTS:
        raise UsageError(
            f"{len(distinct)} different texts are too few to compare two models",
            f"Use at least {_LEAST_TEXTS}, one per line, or omit `texts` to use built-in English texts.",
        )
    with tempfile.TemporaryDirectory(prefix="es-sbert-pair.") as name:
        folders = {"document": Path(name) / "documents", "query": Path(name) / "queries"}
        for model, folder in ((documents, folders["document"]), (queries, folders["query"])):
            folder.mkdir()
            copy_model(model, folder)
        agreement = _compare(folders, documents, queries, distinct, report)
        report(f"{queries.name} for queries of {documents.name}: {agreement.describe()}")
        if not agreement.passed and not accept_disagreement:
            raise ModelsDisagree(
                f"{queries.name} and {documents.name} do not share a vector space ({agreement.bar}): "
                f"{agreement.describe()}. Nothing was written",
                "Distill a model from the one for documents, or compare the two on your own texts: `texts=FILE`. "
                "With `accept_disagreement` the pair is written anyway.",
            )
        record = PairRecord(documents=_note(documents), queries=_note(queries), agreement=agreement)
        with staged_folder(output) as folder:
            _write_pair(folder, folders, documents, queries, record)
            read_sentence_model(folder)  # verifies that its routes are the two models
    return record


def built_in_texts() -> list[str]:
    """Return the default texts for measuring agreement: English sentences, and edge cases for tokenizers."""
    return parity_sentences(_LONGEST, BUILT_IN_TEXTS)


def measure_agreement(documents: Vectors, by_documents: Vectors, by_queries: Vectors) -> PairAgreement:
    """Measure how well the query model agrees with the document model.

    Args:
        documents: Vectors of texts as documents, from the document model. All are of *shape* ``(texts, dimensions)``.
        by_documents: Vectors of the same texts as queries, from the document model.
        by_queries: Vectors of the same texts as queries, from the query model.
    """
    reference, found = (
        normalize_rows(vectors) @ normalize_rows(documents).T for vectors in (by_documents, by_queries)
    )  # both (queries, documents)
    others = ~np.eye(len(documents), dtype=bool)  # (queries, documents): not the text itself
    # As in the parity check, texts that are equal after truncation tie; rounding must not order them.
    ranks = spearman(np.round(reference[others], 5), np.round(found[others], 5))
    first, second = normalize_rows(by_documents), normalize_rows(by_queries)
    common = first.mean(axis=0)  # (dimensions,)
    without = [(vectors - common).astype(np.float32) for vectors in (first, second)]  # both (texts, dimensions)
    centered = float(row_cosines(*without).mean())
    return PairAgreement(
        texts=len(documents),
        mean_cosine=float(row_cosines(by_documents, by_queries).mean()),
        centered_cosine=centered,
        rank_agreement=ranks,
        bar=_BAR,
        passed=centered >= MIN_CENTERED_COSINE and ranks >= MIN_RANK_AGREEMENT,
    )


def _check_models(documents: SentenceModel, queries: SentenceModel) -> None:
    if documents.fingerprint == queries.fingerprint:
        raise UsageError(
            f"{documents.name} and {queries.name} are the same model",
            "Set `queries` to a faster model of the same space.",
        )
    if documents.dimensions != queries.dimensions:
        fewer = min(documents.dimensions, queries.dimensions)
        raise UsageError(
            f"{documents.name} has vectors of {documents.dimensions} dimensions, {queries.name} of "
            f"{queries.dimensions}: a pair needs the same number",
            f"Distill a model to {documents.dimensions} dimensions, or truncate the larger one: MODEL@{fewer}.",
        )
    for model in (documents, queries):
        if model.truncate_dim is not None:
            raise UnsupportedArchitecture(
                f"{model.name} has a truncate_dim in config_sentence_transformers.json, which would truncate the "
                "vectors of both models",
                f"Remove it there, and add the dimensions to the name: {model.name}@{model.truncate_dim}.",
            )


def _compare(
    folders: dict[str, Path],
    documents: SentenceModel,
    queries: SentenceModel,
    texts: list[str],
    report: Callable[[str], None],
) -> PairAgreement:
    # In fp32, so that the result is the same on all machines.
    def embed(folder: Path, name: str, *kinds: PromptKind) -> list[Vectors]:
        with Encoder(folder, precision="fp32", device="cpu", called=name, report=report) as encoder:
            return [encoder.encode(texts, kind) for kind in kinds]

    report(f"Comparing the vectors of {pluralize(len(texts), 'text')}")
    large, by_documents = embed(folders["document"], documents.name, "document", "query")
    (by_queries,) = embed(folders["query"], queries.name, "query")
    return measure_agreement(large, by_documents, by_queries)


def _note(model: SentenceModel) -> PairedModel:
    return PairedModel(
        name=model.name, fingerprint=model.fingerprint, prompts=model.prompts, default_prompt=model.default_prompt
    )


def _write_pair(
    folder: Path, sources: dict[str, Path], documents: SentenceModel, queries: SentenceModel, record: PairRecord
) -> None:
    types: dict[str, object] = {}
    structure: dict[str, list[str]] = {}
    for route, source in sources.items():
        names = structure[route] = []
        for number, (kind, place) in enumerate(read_module_list(source)):
            usual_place = own_folder(number, kind)
            if place != usual_place and kind not in ("Transformer", "StaticEmbedding", "Pooling", Normalize.__name__):
                # The folder's name is part of the fingerprint.
                raise UnsupportedArchitecture(
                    f"the module {kind} of {documents.name if route == 'document' else queries.name} is in the folder "
                    f"{place!r}, but in a Router it would be read as {usual_place!r}",
                    "Save the model with sentence-transformers, which names the folders of modules by position.",
                )
            name = f"{route}_{usual_place}"
            names.append(name)
            types[name] = module_entry(kind, "")["type"]
            copy_module(source, place, folder / name)
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_module_entries(folder, [module_entry("Router", "")])
    settings = read_optional_json(sources["document"] / "config_sentence_transformers.json")
    write_json(folder / "config_sentence_transformers.json", {**settings, **_joined_prompts(documents, queries)})
    write_json(folder / PairRecord.FILE_NAME, record.model_dump(mode="json"))


def _joined_prompts(documents: SentenceModel, queries: SentenceModel) -> dict[str, object]:
    """Join the prompts: the query prompt of the query model, and all other prompts of the document model."""
    prompts, default = dict(documents.prompts), documents.default_prompt
    query_prompt = queries.prompt("query")
    if query_prompt != documents.prompt("query"):
        if default == "query":
            default = "without_kind"
            prompts[default] = documents.prompt(None)
        prompts["query"] = query_prompt
    return {"prompts": prompts, "default_prompt_name": default}
