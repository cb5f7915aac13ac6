"""`load_files`: embed documents of files and load them into an index, or embed the documents that the index holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from pydantic import NonNegativeInt

from es_sbert.arguments import check_arguments, spell_out, with_defaults
from es_sbert.encoder.encoder import Encoder, ModelOptions, chosen_encoder
from es_sbert.engines.connect import EngineOrClient, address_settings, connected
from es_sbert.engines.engine import Engine
from es_sbert.engines.retry import wait_for_engine
from es_sbert.errors import UsageError, require_extra
from es_sbert.ingest.check_first_records import DryRun, dry_run
from es_sbert.ingest.ingest_settings import ErrorLimit, IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import LoadPlan, plan_load, resolve_sources
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressOutput, as_meter
from es_sbert.ingest.reconcile import ConfirmPrune, PruneCandidates
from es_sbert.messages import setting
from es_sbert.settings import Count, RetryOptions, TextOptions, VectorFieldName


class LoadFilesOptions(ModelOptions, VectorFieldName, TextOptions, RetryOptions, total=False):
    """Keyword arguments of `load_files` and `preview_files`; all may be left out. See `IngestSettings`.

    Attributes:
        max_errors: A number (`100`), a percentage of the documents read (`5%`) or `off`.
    """

    format: str | None
    delimiter: str | None
    encoding: str | None
    strip_html: bool
    id_field: str | None
    routing_field: str | None
    vectors: Sequence[str]
    passages: Count | None
    passage_overlap: NonNegativeInt | None
    index_type: str | None
    batch_window: Count | None
    bulk_bytes: int
    dead_letters: str | Path | None
    prune: bool
    retry: str | Path | None
    watch_seconds: float | None
    state: str | Path | None
    max_errors: str | int | None
    ray: str | None
    ray_workers: Count | None


@check_arguments
@spell_out(LoadFilesOptions, defaults=IngestSettings)
def load_files(
    index: str,
    files: str | Path | Sequence[str | Path] = (),
    engine: EngineOrClient = None,
    *,
    progress: ProgressOutput | None = None,
    confirm: ConfirmPrune | None = None,
    control: LoadControl | None = None,
    **options: Unpack[LoadFilesOptions],
) -> LoadReport:
    """Embed the documents of files and load them into an index, as `es-sbert ingest` does.

    The index is created if it does not exist. Documents are embedded again only if their text changed. The same call
    resumes a load that was stopped or killed. Events are logged by the logger `es_sbert`.

    Usage:
        ```python
        report = load_files("docs", "docs.jsonl.gz", "http://localhost:9200", id_field="id")
        print(report.indexed, report.dead)
        ```

    Args:
        index: Index, or alias of one.
        files: One or several paths, patterns or `-` (JSON Lines, CSV, TSV, text or Parquet, also compressed). Without
            any, the documents of the index that lack a current vector are embedded.
        engine: An address, a list of addresses of one cluster, settings, a client, or an engine, as for
            `SemanticIndex`.
        progress: Called several times a second, from one thread.
        confirm: Decides whether `prune` removes documents; by default it does.
        control: Stops the load from another thread: `LoadControl.interrupt`. A watch (`watch_seconds`) has no other
            end.
        options: See `LoadFilesOptions`.

    Returns:
        The report; `stopped` is the reason if the load ended early.

    Raises:
        UsageError: options are invalid or conflict, or another process is loading the same files into the index.
        SourceError: a file does not exist, or the first documents cannot be loaded; nothing was written then.
        IndexMismatch: the index holds vectors of another model or text, or was deleted during the load.
        ModelError, DeviceError: as for `Encoder`.
        EngineError: the engine failed before the first document was sent.
        ClusterError: the Ray cluster cannot be used.
        OutputError: the dead letters or the checkpoint cannot be written.
    """
    settings, control, connection = load_settings(index, files, options), control or LoadControl(), None
    if settings.ray is not None:
        connection = address_settings(engine)
        if settings.watch_seconds is not None or settings.retry is not None:
            raise UsageError(
                f"{setting('ray')} cannot be combined with {setting('watch_seconds')} or {setting('retry')}",
                f"Leave out {setting('ray')}, or the other one.",
            ).about("ray", settings.ray)
        if connection is None or options.get("encoder") is not None:
            raise UsageError(
                "the workers of a Ray cluster open the engine and the model themselves",
                "Pass an address or EngineSettings as engine, and a model instead of an encoder.",
            )
        require_extra("ray", "ray")
    with _planned(engine, settings, settings.retry_seconds) as (opened, plan):
        if connection is None:
            with _encoder(plan, options) as encoder:
                control.on_start()
                return run_load(opened, encoder, plan, control, as_meter(progress), confirm or _always)
        from es_sbert.ingest.ray_runner import open_ray_runner

        loading: Any = with_defaults(ModelOptions, options)
        del loading["encoder"], loading["report"]
        with open_ray_runner(str(settings.ray), plan, connection, count=settings.ray_workers, **loading) as runner:
            control.on_start()
            return runner.run_load(opened, plan, control, as_meter(progress), confirm or _always)


@check_arguments
@spell_out(LoadFilesOptions, defaults=IngestSettings)
def preview_files(
    index: str,
    files: str | Path | Sequence[str | Path] = (),
    engine: EngineOrClient = None,
    *,
    count: Count = 5,
    **options: Unpack[LoadFilesOptions],
) -> DryRun:
    """Return the texts of the first documents as `load_files` would embed them; nothing is written.

    Usage:
        ```python
        for line in preview_files("docs", "docs.jsonl.gz", "http://localhost:9200", count=3).lines():
            print(line)
        ```

    Args:
        index, files, engine, options: As for `load_files`.
        count: Number of documents.

    Raises:
        As for `load_files`.
    """
    settings = load_settings(index, files, {**options, "dry_run": count})
    with _planned(engine, settings, 0) as (opened, plan), _encoder(plan, options) as encoder:
        return dry_run(opened, encoder, plan, count)


def load_settings(
    index: str, files: str | Path | Sequence[str | Path], options: Mapping[str, Any] | LoadFilesOptions
) -> IngestSettings:
    """Convert the arguments of `load_files` to the settings of a load.

    Raises:
        UsageError: an option is invalid.
    """
    values: dict[str, Any] = {name: value for name, value in options.items() if name in IngestSettings.model_fields}
    for name, value in (("files", files), ("text_fields", values.get("text_fields", ()))):
        values[name] = tuple(map(str, [value] if isinstance(value, str | Path) else value))
    if values.get("max_errors") is not None:
        values["max_errors"] = ErrorLimit.parse(str(values["max_errors"]))
    if values.get("format") == "auto":
        del values["format"]
    return IngestSettings(index=index, **values)


def _always(candidates: PruneCandidates) -> bool:
    return True


@contextmanager
def _planned(
    engine: EngineOrClient, settings: IngestSettings, retry_seconds: float
) -> Iterator[tuple[Engine, LoadPlan]]:
    # Find the sources before waiting for the engine, so that a misspelled file name is reported at once.
    sources = resolve_sources(settings)
    with connected(engine, retry_seconds) as opened:
        yield opened, wait_for_engine(partial(plan_load, opened, settings, sources), retry_seconds)


def _encoder(plan: LoadPlan, options: ModelOptions) -> AbstractContextManager[Encoder]:
    stored = plan.stored
    known = None if stored is None else (plan.settings.index, stored.model, stored.fingerprint)
    return chosen_encoder(options, known)
