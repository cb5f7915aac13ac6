"""Semantic search over an Elasticsearch or OpenSearch index, with Sentence-BERT models (arXiv 1908.10084).

    from es_sbert import Encoder, SemanticIndex

    vectors = Encoder("all-MiniLM-L6-v2").encode(["A first text.", "A second text."])

    with SemanticIndex.create("docs", "http://localhost:9200", model="all-MiniLM-L6-v2") as index:
        index.add([{"_id": "1", "text": "A cat sits on the mat."}])
        for hit in index.search("feline", k=5):
            print(hit.id, hit.cosine)

Functions do what the commands do: `load_files`, `migrate_index`, `adopt_vectors`, `calibrate_index`, `train_model`,
`distill_model`, `adapt_model`, `evaluate_model` and `export_model`. Errors are in `es_sbert.errors`. Names are imported
when they are first used, so `import es_sbert` is fast.
"""

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from es_sbert.bundle.bundle import (
        EncoderManifest,
        EncoderVariant,
        ParityReport,
        RerankerManifest,
        RerankerVariant,
        ScoreParityReport,
    )
    from es_sbert.config import EngineSettings
    from es_sbert.diagnostics.confidence_interval import ConfidenceInterval
    from es_sbert.diagnostics.index_calibration import Calibration, calibrate_index
    from es_sbert.diagnostics.min_cosine import CosineRecommendation, ThresholdRow
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.reranker import PairScores, RankedText, Reranker
    from es_sbert.encoder.text_pipeline import EncodeResult, EncoderInfo
    from es_sbert.engines.engine import Engine
    from es_sbert.evaluation import evaluate_model
    from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow
    from es_sbert.evaluation.index_retrieval import evaluate_index
    from es_sbert.evaluation.judgement_files import LabeledQuery
    from es_sbert.evaluation.significance import PairedDifference, Verdict
    from es_sbert.exporters import export_model
    from es_sbert.index.adopt import AdoptionReport, MetadataCounts, adopt_vectors
    from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
    from es_sbert.index.vector_field import VectorField
    from es_sbert.ingest.check_first_records import DocumentPreview, DryRun, TextPreview
    from es_sbert.ingest.load_files import load_files, preview_files
    from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport, SkippedCounts
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import ProgressSnapshot
    from es_sbert.migration.alias_swap import cancel_migration
    from es_sbert.migration.migrate import MigrationResult, migrate_index
    from es_sbert.search.async_semantic_index import AsyncSemanticIndex
    from es_sbert.search.search_result import (
        Hit,
        HybridHit,
        HybridResult,
        PartialResult,
        Passage,
        RankedHits,
        Reranking,
        SearchResult,
        StoredDocument,
    )
    from es_sbert.search.search_scope import OpenOptions
    from es_sbert.search.semantic_index import CreateOptions, SemanticIndex
    from es_sbert.search.vector_query import SearchMethod
    from es_sbert.settings import AddOptions, HybridOptions, SearchOptions
    from es_sbert.training import AdaptResult as AdaptResult
    from es_sbert.training import Distillation as Distillation
    from es_sbert.training import ModelComparison as ModelComparison
    from es_sbert.training import TrainingResult as TrainingResult
    from es_sbert.training import adapt_model as adapt_model
    from es_sbert.training import distill_model as distill_model
    from es_sbert.training import train_model as train_model

# Usage reporting of dependencies is off unless the environment says otherwise. onnxruntime reads its variable during
# its import, writes a device id and a database below ~/.cache, and resolves its collector's name; its
# `disable_telemetry_events()` comes after that. Every module of this package, in worker processes and Ray actors too,
# is imported after this line.
NO_TELEMETRY = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
for _name, _value in NO_TELEMETRY.items():
    _os.environ.setdefault(_name, _value)

# `exporters/` and `mappings/` are top-level folders that an installation has inside this package: see `package-dir` in
# pyproject.toml, which a checkout that is only on the path (a worktree, a machine of `make gpu-check`) cannot use, and
# which in an editable installation may name another checkout. Links would not survive a checkout on Windows.
if not _os.path.isdir(_os.path.join(_os.path.dirname(__file__), "mappings")):
    __path__.append(_os.path.dirname(_os.path.dirname(__file__)))

from es_sbert.lazy_names import lazy_names as _lazy_names  # noqa: E402 - after the environment was set
from es_sbert.version import __version__ as __version__  # noqa: E402

_NAMES = {
    "es_sbert.bundle.bundle": (
        "EncoderManifest EncoderVariant ParityReport RerankerManifest RerankerVariant ScoreParityReport"
    ),
    "es_sbert.config": "EngineSettings",
    "es_sbert.diagnostics.confidence_interval": "ConfidenceInterval",
    "es_sbert.diagnostics.index_calibration": "Calibration calibrate_index",
    "es_sbert.diagnostics.min_cosine": "CosineRecommendation ThresholdRow",
    "es_sbert.encoder.encoder": "Encoder",
    "es_sbert.encoder.reranker": "PairScores RankedText Reranker",
    "es_sbert.encoder.text_pipeline": "EncodeResult EncoderInfo",
    "es_sbert.engines.engine": "Engine",
    "es_sbert.evaluation": "evaluate_model",
    "es_sbert.evaluation.evaluation_report": "EvaluationReport ReportRow",
    "es_sbert.evaluation.index_retrieval": "evaluate_index",
    "es_sbert.evaluation.judgement_files": "LabeledQuery",
    "es_sbert.evaluation.significance": "PairedDifference Verdict",
    "es_sbert.exporters": "export_model",
    "es_sbert.index.adopt": "AdoptionReport MetadataCounts adopt_vectors",
    "es_sbert.index.mapping": "ChunkRules VectorFieldMeta",
    "es_sbert.index.vector_field": "VectorField",
    "es_sbert.ingest.check_first_records": "DocumentPreview DryRun TextPreview",
    "es_sbert.ingest.load_files": "load_files preview_files",
    "es_sbert.ingest.load_report": "ConcurrentChanges LoadReport SkippedCounts",
    "es_sbert.ingest.load_threads": "LoadControl",
    "es_sbert.ingest.progress": "ProgressSnapshot",
    "es_sbert.migration.alias_swap": "cancel_migration",
    "es_sbert.migration.migrate": "MigrationResult migrate_index",
    "es_sbert.search.async_semantic_index": "AsyncSemanticIndex",
    "es_sbert.search.search_result": (
        "Hit HybridHit HybridResult PartialResult Passage RankedHits Reranking SearchResult StoredDocument"
    ),
    "es_sbert.search.search_scope": "OpenOptions",
    "es_sbert.search.semantic_index": "CreateOptions SemanticIndex",
    "es_sbert.search.vector_query": "SearchMethod",
    "es_sbert.settings": "AddOptions HybridOptions SearchOptions",
    "es_sbert.training": (
        "AdaptResult Distillation ModelComparison TrainingResult adapt_model distill_model train_model"
    ),
}
# As a list for type checkers. A test compares it with `_NAMES`. `import *` does without the extra `train`.
__all__ = [
    "AddOptions", "AdoptionReport", "AsyncSemanticIndex", "Calibration", "ChunkRules", "ConcurrentChanges",
    "ConfidenceInterval", "CosineRecommendation", "CreateOptions", "DocumentPreview", "DryRun", "EncodeResult",
    "Encoder", "EncoderInfo", "EncoderManifest", "EncoderVariant", "Engine", "EngineSettings", "EvaluationReport",
    "Hit", "HybridHit", "HybridOptions", "HybridResult", "LabeledQuery", "LoadControl", "LoadReport",
    "MetadataCounts", "MigrationResult", "OpenOptions", "PairScores", "PairedDifference", "ParityReport",
    "PartialResult", "Passage", "ProgressSnapshot", "RankedHits", "RankedText", "ReportRow", "Reranker",
    "RerankerManifest", "RerankerVariant", "Reranking", "ScoreParityReport", "SearchMethod", "SearchOptions",
    "SearchResult", "SemanticIndex", "SkippedCounts", "StoredDocument", "TextPreview", "ThresholdRow", "VectorField",
    "VectorFieldMeta", "Verdict", "adopt_vectors", "calibrate_index", "cancel_migration", "evaluate_index",
    "evaluate_model", "export_model", "load_files", "migrate_index", "preview_files",
]  # fmt: skip

__getattr__, __dir__ = _lazy_names(__name__, _NAMES)
