"""Tune a model on the documents of an index, and measure on held-out queries whether it has improved.

The steps are: choose fields, read documents, create and split pairs, mine hard negatives, train, compare. The result of
each step is kept in `FOLDER/adapt`. An interrupted run resumes after the last finished step; training resumes from its
last checkpoint.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from es_sbert.arguments import check_arguments, spell_out, with_defaults
from es_sbert.batched import batched
from es_sbert.bundle.local_registry import try_register_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import EngineOrClient, connected
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryPolicy, make_retrier, without_retries
from es_sbert.errors import CheckpointInvalid, IndexMismatch, ModelError, SourceError, UsageError
from es_sbert.evaluation.judgement_files import LabeledQuery, labeled_queries
from es_sbert.evaluation.ranking import measure_ranking, search_exact
from es_sbert.evaluation.significance import PairedDifference, Verdict, paired_difference
from es_sbert.filesystem import file_lock, open_output
from es_sbert.index.document_sample import DocumentSelection, read_documents
from es_sbert.index.mapping import and_query
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import require_index
from es_sbert.messages import pluralize, setting
from es_sbert.settings import AdaptOptions, AdaptSettings, no_report
from es_sbert.training.adapt_plan import AdaptInputs, AdaptPlan, first_passages, make_plan, training_recipe
from es_sbert.training.example_augmentation import choose_negatives, normalized_text, relevant_rows
from es_sbert.training.pair_corpus import (
    FieldChoice,
    PairDocument,
    QuerySplit,
    build_corpus,
    labeled_pairs,
    labeled_summary,
    split_queries,
)
from es_sbert.training.recipe import HardNegativesSpec
from es_sbert.training.run_folder import hash_model, write_json
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_run import refuse_several_processes, train_model

# Documents that are ranked for a query: to find negatives, and to measure a model.
_RANK_DEPTH, _MEASURED_DEPTH = 100, 10
_SEARCHES_PER_REQUEST = 50
_IDS_PER_REQUEST = 1000


@dataclass(frozen=True)
class ModelComparison:
    """A tuned model and the model that it started from.

    Usage:
        ```python
        comparison = adapt_model("docs", "docs-tuned", "http://localhost:9200").comparison
        print(comparison.queries, comparison.verdict)
        ```

    Attributes:
        documents: Number of documents that the queries were ranked against.
        ndcg, recall: nDCG@10 and recall@10 × 100 of the tuned model (`first`) and the stock model (`second`).
    """

    documents: int
    ndcg: PairedDifference
    recall: PairedDifference

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.ndcg.queries

    @property
    def verdict(self) -> Verdict:
        """Better by nDCG@10, unless worse by recall@10; worse if it is worse by either."""
        return Verdict.WORSE if self.recall.verdict is Verdict.WORSE else self.ndcg.verdict


@dataclass(frozen=True)
class AdaptResult:
    """A finished run.

    Usage:
        ```python
        result = adapt_model("docs", "docs-tuned", "http://localhost:9200")
        print(result.model, result.fingerprint, result.trained)
        ```

    Attributes:
        comparison: The tuned model compared with the model that it started from.
        model: Folder of the tuned model, a bundle; None if it was not better and was deleted.
        fingerprint: Its fingerprint.
        plan: Model and fields of the run.
        trained: Number of pairs that the model was trained on.
        is_alias: Whether the name of the index is an alias, which `es-sbert index migrate` needs.
        settings: The settings of the run.
    """

    comparison: ModelComparison
    model: Path | None
    fingerprint: str
    plan: AdaptPlan
    trained: int
    is_alias: bool
    settings: AdaptSettings


def query_metrics(
    queries: NDArray[np.float32], documents: NDArray[np.float32], relevant: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Rank all documents by cosine; return nDCG@10 and recall@10 × 100 of each query.

    Args:
        queries, documents: Vectors. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        relevant: Rows of the documents that are relevant to each query, at least one.

    Returns:
        *Shape:* ``(2, queries)``.
    """
    found, _ = search_exact(queries, documents, _MEASURED_DEPTH)  # (queries, ranks)
    scores = [
        measure_ranking([str(row) for row in best], dict.fromkeys(map(str, rows), 1))
        for best, rows in zip(found.tolist(), relevant, strict=True)
    ]
    return np.array([[score[name] for score in scores] for name in ("ndcg@10", "recall@10")])


def compare_metrics(
    stock: NDArray[np.float64], tuned: NDArray[np.float64], documents: int, seed: int
) -> ModelComparison:
    """Compare the metrics of two models, query by query.

    Args:
        stock, tuned: Results of `query_metrics` for the same queries.
        documents: Number of documents.
        seed: Seed of the resampling.
    """
    ndcg, recall = (paired_difference(after, before, seed=seed) for before, after in zip(stock, tuned, strict=True))
    return ModelComparison(documents, ndcg, recall)


def rank_by_bm25(
    engine: Engine,
    selection: DocumentSelection,
    queries: Sequence[str],
    fields: Sequence[str],
    rows: Mapping[str, int],
    *,
    depth: int,
    retrying: Retrier = without_retries,
) -> NDArray[np.int64]:
    """Search for each query, and return the rows of the known documents among its top hits, best first.

    Args:
        engine: The engine of the index.
        selection: Index and filter.
        queries: The queries.
        fields: Fields to search.
        rows: Id of a known document → its row. Hits that are not in it are ignored.
        depth: Hits per search.
        retrying: Retries each request.

    Returns:
        The row of each hit, padded with −1. *Shape:* ``(queries, depth)``.

    Raises:
        EngineError: the engine failed.
    """
    ranking = np.full((len(queries), depth), -1, np.int64)
    number, same = 0, {"size": depth, "_source": False, "track_total_hits": False}
    filters: Json = {} if selection.filter is None else {"filter": [selection.filter]}
    for part in batched(list(queries), _SEARCHES_PER_REQUEST):
        matches: list[Json] = [{"multi_match": {"query": query, "fields": list(fields)}} for query in part]
        bodies = [{"query": {"bool": {"must": [match], **filters}}, **same} for match in matches]
        for answer in retrying(partial(engine.multi_search, selection.index, bodies)):
            found = [rows[hit["_id"]] for hit in answer["hits"]["hits"] if hit["_id"] in rows]
            distinct = list(dict.fromkeys(found))
            ranking[number, : len(distinct)] = distinct
            number += 1
    return ranking


@dataclass(frozen=True)
class Adaptation:
    """A run of `adapt_model`; the attributes are its arguments."""

    engine: Engine
    settings: AdaptSettings
    inputs: AdaptInputs
    folder: Path
    device: str
    threads: int | None
    report: Callable[[str], None]
    retrying: Retrier

    @property
    def work(self) -> Path:
        """Folder of the documents, the pairs and the results of steps."""
        return self.folder / "adapt"

    @property
    def model_folder(self) -> Path:
        """Folder of the tuned model."""
        return self.folder / "model"

    def begin(self, *, resume: bool) -> None:
        """Record the settings of a new run, or compare them with those of the run to resume.

        Raises:
            UsageError: the folder is not empty.
            CheckpointInvalid: there is no run to resume, or the run has other settings or queries.
        """
        path = self.work / "run.json"
        settings = self.settings.model_dump(mode="json")
        recorded = {"settings": settings, "queries": self.inputs.digest()}
        if not resume:
            if any(entry.name != "lock" for entry in self.folder.iterdir()):
                remedy = f"Use a new folder, or resume its run with {setting('resume')}."
                raise UsageError(f"{self.folder} is not empty", remedy).about("output", self.folder)
            with translate_disk_errors(self.folder):
                self.work.mkdir(parents=True, exist_ok=True)
            write_json(path, recorded)
            return
        if not path.is_file():
            problem = f"{self.folder} holds no run to resume"
            raise CheckpointInvalid(problem, f"Leave out {setting('resume')} to start one.").about("resume")
        before = orjson.loads(path.read_bytes())
        earlier = before["settings"]
        changed = [name for name in earlier | settings if earlier.get(name) != settings.get(name)]
        if before["queries"] != recorded["queries"]:
            changed.append("queries")
        if changed:
            raise CheckpointInvalid(
                f"{self.folder} was started with other settings: {', '.join(changed)}",
                "Resume with the options of the run (see adapt/run.json), or start a new run in another folder.",
            )

    def finish(self, state: IndexState) -> AdaptResult:
        """Do all steps that are not done yet.

        Args:
            state: The index.
        """
        path, plan = self.work / "result.json", self.plan(state)
        model, is_alias = self.model_folder, self.settings.index in state.aliases
        if path.is_file():
            self.report(f"the run in {self.folder} has finished: there is nothing to resume")
            found = orjson.loads(path.read_bytes())
            scores = found["comparison"]
            ndcg, recall = PairedDifference(**scores["ndcg"]), PairedDifference(**scores["recall"])
            comparison = ModelComparison(scores["documents"], ndcg, recall)
            return AdaptResult(comparison, model, found["fingerprint"], plan, found["trained"], is_alias, self.settings)
        documents = self.read_corpus(plan)
        split = self.split(documents)
        self.write_examples(plan, documents, split)
        fingerprint = self.train(plan)
        trained = len((self.work / "train.jsonl").read_bytes().splitlines())
        compared = self.compare(plan, documents, split)
        scores = {"verdict": compared.verdict, "comparison": asdict(compared)}
        write_json(path, scores | {"fingerprint": fingerprint, "trained": trained})
        return AdaptResult(compared, model, fingerprint, plan, trained, is_alias, self.settings)

    def plan(self, state: IndexState) -> AdaptPlan:
        """Choose model and fields, and report the choice; a resumed run uses the recorded choice.

        Raises:
            ModelNotFound: the model of the index is not on this machine.
            IndexMismatch: no field is suitable.
            CheckpointInvalid: the model has changed since the run was started.
        """
        path = self.work / "plan.json"
        if path.is_file():
            found = orjson.loads(path.read_bytes())
            fields = FieldChoice(found["fields"]["title"], tuple(found["fields"]["body"]))
            plan = AdaptPlan(**found | {"fields": fields})
            if hash_model(Path(plan.model)) != plan.model_hash:
                raise CheckpointInvalid(
                    f"the model in {plan.model} has changed since the run was started", "Start a new run."
                )
        else:
            plan = make_plan(self.engine, state, self.settings, self.report, self.retrying)
            write_json(path, asdict(plan))
        self.report(plan.describe())
        return plan

    def read_corpus(self, plan: AdaptPlan) -> list[PairDocument]:
        """Read the documents of the index as pairs, in random order; from the run's folder if they were read before."""
        path = self.work / "documents.jsonl"
        if path.is_file():
            return [PairDocument(**orjson.loads(line)) for line in path.read_bytes().splitlines()]
        settings = self.settings
        embedded = TextTemplate.parse(plan.embedded)
        selection = DocumentSelection(settings.index, settings.filter, settings.documents, settings.seed)
        fields = list(dict.fromkeys([*plan.fields.fields, *embedded.fields]))
        found = read_documents(self.engine, selection, fields, retrying=self.retrying)
        # The documents that queries are labeled with are rarely in the sample.
        sampled = {document.key[0] for document in found}
        for part in batched(sorted(self.inputs.document_ids() - sampled), _IDS_PER_REQUEST):
            labeled = DocumentSelection(settings.index, and_query({"ids": {"values": part}}, settings.filter))
            found += read_documents(self.engine, labeled, fields, retrying=self.retrying)
        documents, left_out = build_corpus(found, plan.fields, embedded)
        _write_lines(path, [asdict(document) for document in documents])
        pairs = pluralize(sum(document.query is not None for document in documents), "pair")
        reasons = "".join(f"; {count:,} {reason}" for reason, count in left_out.items())
        self.report(f"Read {pluralize(len(found), 'document')}: {pairs}{reasons}")
        return documents

    def split(self, documents: Sequence[PairDocument]) -> QuerySplit:
        """Split the pairs.

        Raises:
            SourceError: there are too few pairs.
        """
        for option, labeled in (("queries", self.inputs.evaluated or ()), ("train_queries", self.inputs.trained)):
            if labeled:
                self.report(f"{option}: {labeled_summary(labeled, documents)}")
        split = split_queries(
            documents,
            held_out=self.settings.held_out,
            most_trained=self.settings.most_trained,
            labeled=self.inputs.evaluated,
            extra=labeled_pairs(self.inputs.trained, documents),
        )
        dropped = (
            f"; {pluralize(split.dropped, 'pair')} dropped because their query or text (nearly) occurs in another part"
        )
        self.report(
            f"Training on {pluralize(len(split.train), 'pair')}, {len(split.dev):,} choose the checkpoint, "
            f"{pluralize(len(split.held_out), 'query', 'queries')} held out{dropped if split.dropped else ''}"
        )
        return split

    def write_examples(self, plan: AdaptPlan, documents: Sequence[PairDocument], split: QuerySplit) -> None:
        """Write the training pairs with their negatives, and the dev pairs."""
        train, dev = self.work / "train.jsonl", self.work / "dev.jsonl"
        if train.is_file():
            return
        texts = first_passages([document.text for document in documents], plan, self.settings.train_tokens)
        with Encoder(plan.model, device=self.device, threads=self.threads, called=plan.model_name) as encoder:
            self.report(f"Embedding {pluralize(len(texts), 'text')} with {plan.model_name}")
            queries = encoder.encode([pair.query for pair in split.train], "query")
            vectors = queries, encoder.encode(texts, "document")
        negatives = self._mine_negatives(plan, documents, split, texts, vectors)  # (pairs, negatives)
        rows = [
            {"query": pair.query, "text": texts[pair.row]}
            | {f"negative{number}": texts[row] for number, row in enumerate(negative_rows, 1)}
            for pair, negative_rows in zip(split.train, negatives.tolist(), strict=True)
        ]
        _write_lines(dev, [{"query": pair.query, "text": texts[pair.row]} for pair in split.dev])
        _write_lines(train, rows)

    def _mine_negatives(
        self,
        plan: AdaptPlan,
        documents: Sequence[PairDocument],
        split: QuerySplit,
        passages: Sequence[str],
        vectors: tuple[NDArray[np.float32], NDArray[np.float32]],
    ) -> NDArray[np.int64]:
        """Mine the negatives of each training pair; return their rows, *shape* ``(pairs, negatives)``.

        Args:
            passages: The passage of each document that training reads.
            vectors: Vectors of the queries of the training pairs, and of all passages.
        """
        settings = self.settings
        if not settings.negatives:
            return np.empty((len(split.train), 0), np.int64)
        keys = [normalized_text(passage) for passage in passages]
        pool: dict[str, int] = {}  # passage → the first row that has it
        for row, key in enumerate(keys):
            if row not in split.excluded:
                pool.setdefault(key, row)
        rows = np.array(list(pool.values()), np.int64)  # place in the pool → row
        places = {key: place for place, key in enumerate(pool)}
        texts, queries = [passages[row] for row in rows], [pair.query for pair in split.train]
        vectors = vectors[0], vectors[1][rows]
        self.report(
            f"Mining negatives among {pluralize(len(texts), 'text')}: kNN of {plan.model_name}, and BM25 of the index"
        )
        nearest, _ = search_exact(*vectors, max(_RANK_DEPTH, settings.ranks[1]))
        by_id = {document.id: places[key] for document, key in zip(documents, keys, strict=True) if key in places}
        bm25 = rank_by_bm25(
            self.engine,
            DocumentSelection(settings.index, settings.filter),
            queries,
            plan.fields.body,
            by_id,
            depth=nearest.shape[1],
            retrying=self.retrying,
        )
        relevant = relevant_rows(queries, [places[keys[pair.row]] for pair in split.train], texts)
        spec = HardNegativesSpec(
            model=plan.model,
            count=settings.negatives,
            ranks=settings.ranks,
            margin=settings.margin,
            seed=settings.seed,
        )
        chosen = choose_negatives([nearest, bm25], relevant, vectors, spec)
        negatives: NDArray[np.int64] = rows[chosen]
        return negatives

    def train(self, plan: AdaptPlan) -> str:
        """Train the model, or resume its training; return its fingerprint."""
        resume = (self.model_folder / "training" / "run.json").is_file()
        with _torch_threads(self.threads):
            trained = train_model(
                training_recipe(self.settings, plan),
                self.model_folder,
                data_folder=self.work,
                device=self.device,
                resume=resume,
                report=self.report,
            )
        assert trained.fingerprint is not None, "recipes of adaptations export the model"
        return trained.fingerprint

    def compare(self, plan: AdaptPlan, documents: Sequence[PairDocument], split: QuerySplit) -> ModelComparison:
        """Rank the corpus for the held-out queries by both models, each in fp32 on onnxruntime."""
        # Compare real queries with the whole text, but a title or sentence with the text that does not contain it.
        whole = self.inputs.evaluated is not None
        texts = [document.full_text if whole else document.text for document in documents]
        queries, relevant = [query.text for query in split.held_out], [query.rows for query in split.held_out]
        metrics = []
        for model, name in ((plan.model, plan.model_name), (str(self.model_folder), self.settings.name)):
            self.report(
                f"Ranking {pluralize(len(texts), 'text')} for "
                f"{pluralize(len(queries), 'held-out query', 'held-out queries')} by {name}"
            )
            with Encoder(model, device=self.device, threads=self.threads, precision="fp32") as encoder:
                vectors = encoder.encode(queries, "query"), encoder.encode(texts, "document")
            metrics.append(query_metrics(*vectors, relevant))
        return compare_metrics(metrics[0], metrics[1], len(texts), self.settings.seed)


@check_arguments
@spell_out(AdaptSettings, AdaptOptions)
def adapt_model(
    index: str,
    output: str | Path,
    engine: EngineOrClient = None,
    *,
    name: str | None = None,
    queries: str | Path | Sequence[LabeledQuery] | None = None,
    train_queries: str | Path | Sequence[LabeledQuery] = (),
    register: bool = False,
    body_fields: Sequence[str] | str = (),
    report: Callable[[str], None] = no_report,
    **settings: Any,
) -> AdaptResult:
    """Tune a model on the documents of an index, and compare it with the model that it started from.

    This is what `es-sbert adapt` does. It needs the extra `train`. Nothing is written to the index.

    Usage:
        ```python
        result = adapt_model("docs", "docs-tuned", "http://localhost:9200", report=print)
        print(result.comparison.verdict, result.model)
        ```

    Args:
        index: Index, or alias of one.
        output: Folder; new or empty, except with `resume`. It gets `adapt` (documents, pairs, result) and `model`, a
            bundle.
        engine: As for `SemanticIndex`.
        name: Name of the tuned model; by default INDEX-tuned.
        queries: Labeled queries to compare the models with, instead of held-out titles or sentences: a file (JSON Lines
            of `{"query": "…", "ids": ["…"]}`, or a judgement list), or a list.
        train_queries: Labeled queries to train on as well, such as those of a search log with the documents that were
            opened.
        register: Register the model under its name if it is better.
        body_fields: Field or fields of the text; by default the text that the index embeds, without the title.
        report: Called with progress messages.
        settings: See `AdaptSettings` and `AdaptOptions`.

    Returns:
        The result. Unless the tuned model is better or `keep` is set, its model is deleted.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist, or has no suitable fields.
        SourceError: there are too few pairs, or a file of queries cannot be read.
        ModelError, EngineError, TrainingError, OutputError: see `train_model`.
        UsageError, CheckpointInvalid: options are invalid; see `Adaptation.begin`.
    """
    refuse_several_processes()
    folder, body = Path(output), (body_fields,) if isinstance(body_fields, str) else tuple(body_fields)
    running: Any = with_defaults(AdaptOptions, settings)
    chosen = {each: settings[each] for each in settings.keys() - running}
    # Without characters that names of models cannot have.
    default = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', index).strip('._-') or 'index'}-tuned"
    wanted = AdaptSettings(index=index, name=name or default, body_fields=body, **chosen)
    inputs = AdaptInputs(labeled_queries("queries", queries), labeled_queries("train_queries", train_queries))
    policy = RetryPolicy(running["retry_seconds"])
    retrying = make_retrier(policy, lambda reason: report(f"waiting for the engine: {reason}"))
    with connected(engine) as opened:
        run = Adaptation(opened, wanted, inputs, folder, running["device"], running["threads"], report, retrying)
        result = _adapt(run, resume=running["resume"])
    is_better = result.comparison.verdict is Verdict.BETTER
    if not is_better and not running["keep"]:
        shutil.rmtree(run.model_folder, ignore_errors=True)
    if is_better and register:
        try_register_model(run.model_folder, result.fingerprint, name=wanted.name)
    return result if run.model_folder.is_dir() else replace(result, model=None)


def _adapt(run: Adaptation, *, resume: bool) -> AdaptResult:
    folder = run.folder
    state = run.retrying(lambda: require_index(run.engine, run.settings.index))
    busy = UsageError(f"another `es-sbert adapt` is writing to {folder}", "Wait for it, or use another folder.")
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock", busy):
        run.begin(resume=resume)
        try:
            result = run.finish(state)
        except (IndexMismatch, ModelError, SourceError, UsageError):
            # The options do not fit the index: others may be tried in the same folder.
            if not resume and not run.model_folder.exists():
                shutil.rmtree(run.work)
            raise
    return result


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use this number of threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_lines(path: Path, rows: Sequence[Json]) -> None:
    """Write JSON Lines completely or not at all."""
    with translate_disk_errors(path.parent), open_output(path) as file:
        file.writelines(orjson.dumps(row) + b"\n" for row in rows)
