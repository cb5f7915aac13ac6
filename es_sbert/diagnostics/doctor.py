"""Checks of `es-sbert doctor`: the model, the processor, the engine and an index. Each problem comes with a remedy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from es_sbert.bundle.file_hashes import forget_hashes
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder, open_index_encoder
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.address import parse_addresses
from es_sbert.engines.connect import connect
from es_sbert.engines.detection import detect_cluster
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, write_index
from es_sbert.engines.rest import Json, is_index_expression
from es_sbert.errors import AccessDenied, EngineError, EsSbertError, IndexMismatch
from es_sbert.index.index_summary import FieldSummary, describe_index
from es_sbert.index.mapping import plain_vector_fields, sparser_graph, vector_fields
from es_sbert.index.privileges import INDEX_TASKS, granted_privileges, missing_privileges, privileges_remedy
from es_sbert.index.source_mode import check_can_hold_vectors, check_source_is_whole
from es_sbert.index.text_template import format_vector_field_option
from es_sbert.index.vector_field import (
    VectorField,
    adopt_command,
    did_you_mean,
    embed_command,
    has_vector_field,
    vector_field_from_state,
)
from es_sbert.installation import installed_runtimes, runtime_collision
from es_sbert.messages import be, pluralize, setting
from es_sbert.migration.migration_state import find_begun, replaced_error
from es_sbert.runtime.device import cuda_driver
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.search.search_scope import SearchScope
from es_sbert.settings import LoadOptions

_TEST_SENTENCE = "Does this machine embed a sentence?"
# The engines' default watermarks, in percent of a disk.
_NO_SHARDS, _READ_ONLY = 85, 95


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but not as well or not for long
    ERROR = "error"  # does not work


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        level: The severity.
        about: The checked part: `model`, `device`, `runtime`, `engine`, `permissions`, `disk`, `index`, ….
        message: The result of the check.
        remedy: The remedy; empty if nothing has to be done.
    """

    level: Severity
    about: str
    message: str
    remedy: str = ""

    @classmethod
    def from_error(cls, about: str, error: EsSbertError) -> Finding:
        """Convert an error to a finding."""
        return cls(Severity.ERROR, about, error.with_notes(), error.remedy)


def ok(about: str, message: str) -> Finding:
    """A finding that needs no action."""
    return Finding(Severity.OK, about, message)


def warning(about: str, message: str, remedy: str) -> Finding:
    """A finding about something that works, but not as well as it could or not for long."""
    return Finding(Severity.WARNING, about, message, remedy)


def failure(about: str, message: str, remedy: str) -> Finding:
    """A finding about something that does not work."""
    return Finding(Severity.ERROR, about, message, remedy)


def run_checks(settings: EngineSettings, index: str | None, model: str | None, options: LoadOptions) -> list[Finding]:
    """Run all checks. An engine that cannot be reached is a finding.

    Args:
        index: Index or alias, a list of them, or a pattern; None checks none.
        model: The model; None for the models of the index, or the default model.
        options: The options of the encoder.

    Raises:
        UsageError: an address is not a URL, or credentials conflict.
    """
    try:
        opened = connect(settings)
    except EngineError as error:
        return [*check_encoder(model, options)[1], *check_runtime(), Finding.from_error("engine", error)]
    with closing(opened) as engine:
        states: list[IndexState] = []
        fields: list[VectorField] = []
        of_index = [] if index is None else inspect_index(engine, index, states, fields)
        # Check the model that a search of the index would open: that of its vectors, unless an option names another.
        stored = {field.meta.fingerprint: field for field in reversed(fields)}
        checked = [check_encoder(model, options, field) for field in (stored.values() if model is None else ())]
        checked = checked or [check_encoder(model, options)]
        models = {made_by: checked[number % len(checked)][0] for number, made_by in enumerate(stored)}
        findings = [finding for _, found in checked for finding in found]
        findings += [*check_runtime(), *check_engine(engine, settings, index), *of_index]
        for state in states:
            findings += check_index(engine, state, fields, models)
    # Several checks read the mapping of an index, and each reports what is wrong with it.
    return list(dict.fromkeys(findings))


def check_encoder(
    name: str | None, options: LoadOptions, field: VectorField | None = None
) -> tuple[EncoderInfo | None, list[Finding]]:
    """Open the model and embed a sentence with it.

    Args:
        name: The model; None for the model of the field, or the default model.
        options: The options of the encoder.
        field: The field whose model to use, or None.

    Returns:
        The description of the encoder, or None if it did not run, and the findings.
    """
    forget_hashes()  # read all files again, to notice damage to a file that was not rewritten
    try:
        if field is None:
            opened = Encoder(name, **options)
        else:
            meta = field.meta
            opened = open_index_encoder(field.index, meta.model, meta.fingerprint, model=name, **options)
        with opened as encoder:
            encoder.encode([_TEST_SENTENCE], "query")
            return encoder.info, list(_encoder_findings(encoder.info))
    except EsSbertError as error:
        return None, [Finding.from_error("model", error)]


def _encoder_findings(info: EncoderInfo) -> Iterator[Finding]:
    read = f"{info.dimensions} dimensions, reads {info.max_tokens} tokens"
    yield ok("model", f"{info.model} ({info.fingerprint[:12]}), {read}")
    threads = f", {pluralize(info.threads, 'thread')}" if info.threads else ""
    yield ok("device", f"{info.precision} by {info.provider} on {info.device}{threads}")
    for message in info.warnings:
        yield warning(
            "device", message, f"`es-sbert encode --help` has {setting('device')} and {setting('precision')}."
        )


def check_runtime() -> Iterator[Finding]:
    """Name the installed build of onnxruntime and the GPUs. What CUDA lacks is in the finding about the model."""
    driver = cuda_driver()
    cards = () if driver is None else driver.cards
    collision = runtime_collision(len(cards))
    if collision is not None:
        yield warning("runtime", *collision)
    else:
        build = f"{' and '.join(installed_runtimes()) or 'onnxruntime'} {onnxruntime.__version__}"
        yield ok("runtime", ", ".join([build, *(f"cuda:{number} is {card}" for number, card in enumerate(cards))]))


def check_engine(engine: Engine, settings: EngineSettings, index: str | None) -> Iterator[Finding]:
    """Check the addresses, version, health and disks of an engine, and the user's permissions on an index.

    Args:
        index: The index; None skips permissions.
    """
    addresses = parse_addresses(settings)
    for address, error in detect_cluster(addresses)[1].items() if len(addresses) > 1 else ():
        yield warning("address", f"{address.url} does not respond: {error.message}", error.remedy)
    yield ok("engine", f"{engine.info.label} at {engine.info.url}")
    yield from _guarded("health", lambda: _check_health(engine), optional=True)
    yield from _guarded("disk", lambda: _check_disks(engine), optional=True)
    if index is not None:
        yield from _guarded("permissions", lambda: _check_permissions(engine, index), optional=True)


def _guarded(about: str, check: Callable[[], Iterable[Finding]], *, optional: bool = False) -> Iterator[Finding]:
    """Yield the findings of a check, and its error as a finding.

    Args:
        optional: Whether a user without the privilege for this check can load and search nevertheless.
    """
    try:
        yield from check()
    except AccessDenied as error:
        if optional:
            yield warning(about, f"this user may not read this information: {error.message}", error.remedy)
        else:
            yield Finding.from_error(about, error)
    except EsSbertError as error:
        yield Finding.from_error(about, error)


def _check_health(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_cluster/health")
    if answer is None:
        yield warning("health", "this engine does not report its health", "Check it in the console of the service.")
    elif answer.get("status") == "red":
        remedy = "See `GET _cluster/allocation/explain`."
        yield failure("health", "the cluster is red: some documents are not available", remedy)
    else:
        replicas = ", some replicas are not assigned" if answer.get("status") == "yellow" else ""
        yield ok("health", f"{answer.get('status')}{replicas}; {answer.get('number_of_nodes')} nodes")


def _check_disks(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_nodes/stats/fs", {"filter_path": "nodes.*.name,nodes.*.fs.total"}) or {}
    disks = [(str(node.get("name")), node.get("fs", {}).get("total", {})) for node in answer.get("nodes", {}).values()]
    sizes = [
        (int(total["available_in_bytes"]) / int(total["total_in_bytes"]), name, int(total["available_in_bytes"]))
        for name, total in disks
        if total.get("total_in_bytes")
    ]
    if not sizes:
        remedy = "Give the user the cluster privilege monitor, or check them in the console of the service."
        yield warning("disk", "the nodes do not report their disk usage", remedy)
        return
    fullest = min(sizes)
    # The settings of a cluster are long, and matter only to a full disk.
    by_default = 100 * (1 - fullest[0]) < _READ_ONLY or has_default_flood_stage(engine)
    yield disk_finding(*fullest, by_default=by_default)


def has_default_flood_stage(engine: Engine) -> bool:
    """Whether the cluster makes indices read-only on a disk that is as full as engines allow by default."""
    answer = engine.request_api("/_cluster/settings", {"include_defaults": "true", "flat_settings": "true"}) or {}
    settings: Json = {}
    for level in ("defaults", "persistent", "transient"):
        settings |= answer.get(level, {})
    prefix = "cluster.routing.allocation.disk"
    is_enabled = str(settings.get(f"{prefix}.threshold_enabled", "true")) == "true"
    return is_enabled and settings.get(f"{prefix}.watermark.flood_stage", "95%") == f"{_READ_ONLY}%"


def disk_finding(free: float, node: str, available: int, *, by_default: bool) -> Finding:
    """Return the finding about the fullest disk.

    Args:
        free: Free share of the disk.
        available: Free bytes.
        by_default: Whether the cluster makes indices read-only as engines do by default.
    """
    used = 100 * (1 - free)
    state = f"{node} has {available / 1e9:,.1f} GB free, {used:.0f} % are used"
    if used < _NO_SHARDS:
        return ok("disk", state)
    message = (
        f"{state}: unless the cluster has its own limits (cluster.routing.allocation.disk), it places no shards on a "
        f"disk above {_NO_SHARDS} %, and makes indices read-only above {_READ_ONLY} %"
    )
    severity = Severity.ERROR if used >= _READ_ONLY and by_default else Severity.WARNING
    return Finding(severity, "disk", message, "Free disk space or add a node before a load.")


def _check_permissions(engine: Engine, index: str) -> Iterator[Finding]:
    needed = {name for task in INDEX_TASKS for name in task.privileges}
    has = dict.fromkeys(needed, True)
    for name in index.split(","):
        # A name with a minus excludes an index, which needs no privileges.
        granted = {} if name.startswith("-") else granted_privileges(engine, name, needed)
        if granted is None:
            message = (
                "Not checked: security is off, or the engine does not report privileges (OpenSearch names a missing "
                "one when it refuses a request)."
            )
            yield ok("permissions", message)
            return
        has = {key: has[key] and granted.get(key, True) for key in has}
    for task in INDEX_TASKS:
        lacking = missing_privileges(task, has)
        if lacking:
            message = f"this user or API key may not {task.action} {index}: it lacks {' and '.join(lacking)}"
            yield warning("permissions", message, privileges_remedy(lacking, index))
        else:
            yield ok("permissions", f"this user or API key may {task.action} {index}")


def inspect_index(engine: Engine, name: str, states: list[IndexState], fields: list[VectorField]) -> list[Finding]:
    """Read the mappings of the indices of a name, and check their vector fields.

    Args:
        name: Index or alias, a list of them, or a pattern.
        states: The indices are added to it.
        fields: The vector fields of all indices that can be loaded and searched are added to it.
    """
    return list(_guarded("index", lambda: _inspect(engine, name, states, fields)))


def _inspect(engine: Engine, name: str, states: list[IndexState], fields: list[VectorField]) -> Iterator[Finding]:
    states += engine.resolve_indices(name)
    if not states:
        remedy = f"{did_you_mean(name, engine)}Check the name, or create the index with `es-sbert ingest`."
        yield warning("index", f"there is no index {name}", remedy)
    is_broken = False
    for finding in chain.from_iterable(_read_fields(engine, state, fields) for state in states):
        is_broken = True
        yield finding
    if len(states) > 1:
        yield from _multi_index_findings(engine, name, states, fields)
    if not fields and not is_broken:
        for state in states:
            yield _no_vector_field_finding(engine, state)


def _read_fields(engine: Engine, state: IndexState, fields: list[VectorField]) -> Iterator[Finding]:
    """Add the vector fields of an index to `fields`, and yield problems of the others."""
    try:
        for name in vector_fields(state.mappings, state.name):
            try:
                fields.append(vector_field_from_state(engine, state, name))
            except IndexMismatch as error:
                yield Finding.from_error(f"field {name}", error)
    except IndexMismatch as error:
        yield Finding.from_error("index", error)


def _multi_index_findings(
    engine: Engine, name: str, states: Sequence[IndexState], fields: Sequence[VectorField]
) -> Iterator[Finding]:
    """Yield findings about searches and loads with a name of several indices.

    One is about indices without a field that others have, such as the newest index after a rollover.
    """
    count = f"{name} names {pluralize(len(states), 'index', 'indices')}, which are searched together"
    try:
        target = None if is_index_expression(name) else write_index(name, states)
        loads = "a load needs the name of one index" if target is None else f"documents are written to {target.name}"
        yield ok("index", f"{count}; {loads}")
    except IndexMismatch as error:
        yield warning("index", f"{count}, and none of them is its write index", error.remedy)
    for field_name in dict.fromkeys(field.name for field in fields):
        about, same = f"field {field_name}", [field for field in fields if field.name == field_name]
        lacking = [state for state in states if not has_vector_field(state, field_name)]
        try:
            for state in lacking:
                check_can_hold_vectors(state)
                check_source_is_whole(state)
            SearchScope(tuple(same))
        except EsSbertError as error:
            yield Finding.from_error(about, error)
            continue
        if lacking:
            commands = ", ".join(embed_command(state, same[-1:]) for state in lacking[:3])
            yield warning(
                about,
                f"missing in {', '.join(state.name for state in lacking[:5])}: searches of {name} miss the documents "
                "there",
                f"Add the field and embed the documents: {commands}. To add it to new indices too, put it into their "
                "index template (docs/commands/index.md, After a rollover).",
            )


def _no_vector_field_finding(engine: Engine, state: IndexState) -> Finding:
    try:
        check_can_hold_vectors(state)
        check_source_is_whole(state)
    except EsSbertError as error:
        return Finding.from_error("index", error)
    plain = plain_vector_fields(engine.info.engine_type, state.mappings, state.name)
    add = f"`es-sbert ingest --index {state.name}` adds a field."
    if not plain:
        return warning("index", f"{state.name} has no vector field", f"To add one: {add}")
    return warning(
        "index",
        f"{state.name} has no vector field of es-sbert, but {', '.join(plain)} of another program",
        f"If you know the model of its vectors: {adopt_command(state.name, plain[0])} checks the model and adopts the "
        f"vectors. Otherwise, {add}",
    )


def check_index(
    engine: Engine, state: IndexState, fields: Sequence[VectorField], models: Mapping[str, EncoderInfo | None]
) -> Iterator[Finding]:
    """Check an index for migrations, blocks, settings that a load did not restore, and vectors of other models.

    Args:
        fields: The vector fields that can be searched, including those of other indices.
        models: Fingerprint in the mapping → the model to search with; None if it could not be opened.
    """
    refuses_writes = False
    try:
        begun, replaced = find_begun(engine, state), replaced_error(engine, state)
        error = begun.error() if begun is not None else replaced
        refuses_writes = begun.refuses_writes if begun is not None else replaced is not None
        if error is not None:
            level = Severity.ERROR if begun is not None and refuses_writes else Severity.WARNING
            yield replace(Finding.from_error("migration", error), level=level)
    except AccessDenied:
        pass  # the user may read this index, but not the other one of a migration
    except EsSbertError as error:
        yield Finding.from_error("migration", error)
    yield from settings_findings(state, by_migration=refuses_writes)
    yield from _guarded("index", lambda: _document_findings(engine, state, fields, models))


def _document_findings(
    engine: Engine, state: IndexState, fields: Sequence[VectorField], models: Mapping[str, EncoderInfo | None]
) -> Iterator[Finding]:
    summary = describe_index(engine, state)
    size = "" if summary.bytes is None else f", {summary.bytes / 1e6:,.1f} MB"
    yield ok("index", f"{summary.name}: {pluralize(summary.documents, 'document')}{size}")
    fit = {field.name for field in fields if field.index == state.name}
    for field in summary.fields:
        if field.name in fit:
            yield from field_findings(summary.name, field, summary.documents, models[field.meta.fingerprint])
            if (sparser := sparser_graph(state.mappings["properties"][field.name])) is not None:
                message = f"its graph was made with {sparser}, so searches may miss more of the nearest vectors"
                index = f"{state.name}{format_vector_field_option(field.name)}"
                remedy = f"Measure recall: `es-sbert index advise {index}`. Build a denser graph: "
                remedy += f"`es-sbert index migrate {index}`."
                yield warning(f"field {field.name}", message, remedy)


def settings_findings(state: IndexState, *, by_migration: bool = False) -> Iterator[Finding]:
    """Yield findings about blocks, and about settings that a killed load did not restore.

    Args:
        by_migration: Whether a migration has blocked writes. Nobody should remove that block by hand.
    """
    for block in ("read_only", "read_only_allow_delete", "write", "read", "metadata"):
        if state.has_setting(f"index.blocks.{block}") and not (block == "write" and by_migration):
            remedy = f"Set it to null: `PUT {state.name}/_settings`."
            if block == "read_only_allow_delete":
                remedy = "A disk was full. Free disk space, then set the block to null."
            yield failure("index", f"{state.name} has index.blocks.{block}", remedy)


def field_findings(index: str, field: FieldSummary, documents: int, model: EncoderInfo | None) -> Iterator[Finding]:
    """Yield findings about documents without a vector, the model of the vectors, truncated texts, and languages."""
    about, meta = f"field {field.name}", field.meta
    command = ["es-sbert", "ingest", "--index", index, "--vector-field", field.name]
    if model is not None and meta.fingerprint != model.fingerprint:
        # No option names an earlier version of a model.
        level = Severity.ERROR if meta.model == model.model else Severity.WARNING
        made_by = f"{meta.model} ({meta.fingerprint[:12]}), not of {model.model} ({model.fingerprint[:12]})"
        remedy = (
            f"Omit {setting('model')} to search with the field's own model (`es-sbert model add FOLDER` registers it), "
        )
        remedy += f"or use another {setting('vector_field')}."
        yield Finding(level, about, f"holds vectors of {made_by}", remedy)
    if field.current < field.vectors:
        message = f"{field.vectors - field.current:,} of {field.vectors:,} vectors may not come from the field's model"
        remedy = f"Embed them again: `{shlex.join(command)}`. If another program wrote them with this model: "
        remedy += f"`es-sbert index adopt {index} --vector-field {field.name}`."
        yield failure(about, message, remedy)
    if field.vectors < documents:
        message = "semantic search does not find documents without an embedding: "
        message += f"{documents - field.vectors:,} of {documents:,}"
        yield warning(about, message, f"Embed them: `{shlex.join(command)}`.")
    else:
        every = "the only document has" if documents == 1 else f"all {documents:,} documents have"
        yield ok(about, f"{every} a vector, {meta.index_type}")
    if field.truncated:
        tokens = 256 if model is None else min(256, model.max_tokens)
        command[-1] += "_passages"
        command += ["--model", meta.model, "--passages", str(tokens)]
        command += [] if meta.text is None else ["--text-template", meta.text]
        share = f"{field.truncated:,} of {pluralize(field.vectors, 'text')} ({field.truncated / field.vectors:.1%})"
        remedy = f"Searches do not cover their ends. Embed passages into another field: `{shlex.join(command)}`."
        yield warning(about, f"{share} {be(field.truncated)} longer than the model reads", remedy)
    if field.language_warning is not None:
        message, remedy = field.language_warning
        yield warning(about, message, f"{remedy}.")
