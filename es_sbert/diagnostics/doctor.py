"""Checks of `es-sbert doctor`: the model, the processor, the engine and an index. Each problem comes with a remedy."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from es_sbert.bundle.file_hashes import forget_hashes
from es_sbert.config import EngineSettings
from es_sbert.diagnostics.finding import Finding, Severity, failure, ok, warning
from es_sbert.encoder.encoder import Encoder, EncoderInfo, LoadOptions
from es_sbert.encoder.tuning import read_tuning
from es_sbert.engines.address import parse_addresses
from es_sbert.engines.detection import detect_cluster
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState, write_index
from es_sbert.engines.rest import Json, is_index_expression
from es_sbert.errors import AccessDenied, EsSbertError, IndexMismatch
from es_sbert.index.index_summary import FieldSummary, describe_index
from es_sbert.index.load_checks import settings_of_killed_load
from es_sbert.index.mapping import plain_vector_fields, vector_fields
from es_sbert.index.privileges import INDEX_TASKS, granted_privileges, missing_privileges, privileges_remedy
from es_sbert.index.source_mode import check_can_hold_vectors, check_source_is_whole
from es_sbert.index.vector_field import (
    VectorField,
    adopt_command,
    check_mapping_was_copied,
    check_not_being_removed,
    did_you_mean,
    embed_command,
    has_vector_field,
    vector_field_from_state,
)
from es_sbert.installation import installed_runtimes, runtime_collision
from es_sbert.messages import be, pluralize
from es_sbert.migration.migration_state import find_begun, replaced_error
from es_sbert.runtime.cuda_session import (
    CudaLibraryStatus,
    cuda_major,
    install_remedy,
    load_libraries,
    provider_problem,
)
from es_sbert.runtime.device import NvidiaDriver, cuda_build_remedy, cuda_devices, cuda_driver
from es_sbert.runtime.onnx_runtime import onnxruntime
from es_sbert.search.search_scope import SearchScope

_TEST_SENTENCE = "Does this machine embed a sentence?"
# The engines' default watermarks, in percent of a disk.
_NO_SHARDS, _READ_ONLY = 85, 95


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
            opened = Encoder.for_index(field.index, meta.model, meta.fingerprint, model=name, **options)
        with opened as encoder:
            length = float(np.linalg.norm(encoder.encode([_TEST_SENTENCE], "query")))
            return encoder.info, list(_encoder_findings(encoder.info, length))
    except EsSbertError as error:
        return None, [Finding.from_error("model", error)]


def _encoder_findings(info: EncoderInfo, length: float) -> Iterator[Finding]:
    if abs(length - 1) > 1e-3:
        message = f"{info.model} returned a vector of length {length:.4f}, not 1"
        yield failure("model", message, "Export it again: `es-sbert export`.")
    else:
        read = f"{info.dimensions} dimensions, reads {info.max_tokens} tokens"
        yield ok("model", f"{info.model} ({info.fingerprint[:12]}), {read}")
    threads = f", {pluralize(info.threads, 'thread')}" if info.threads else ""
    yield ok("device", f"{info.precision} by {info.provider} on {info.device}{threads}")
    speeds: dict[str, float] = {}
    for measured in read_tuning(info.fingerprint).measured:
        speeds[measured.variant] = max(measured.texts_per_second, speeds.get(measured.variant, 0.0))
    if info.device == "cpu" and speeds:
        listed = ", ".join(f"{name} {speeds[name]:,.0f}" for name in sorted(speeds, key=speeds.__getitem__)[::-1])
        yield ok("speed", f"texts per second, measured on this machine: {listed} (`es-sbert model tune`)")
    collision = runtime_collision(cuda_devices())
    for message in info.warnings:
        if collision is None or not message.startswith(collision[0]):  # `check_runtime` reports it
            yield warning("device", message, "See `es-sbert encode --help` for `device` and `precision`.")


def check_runtime(device: str) -> Iterator[Finding]:
    """Check the installed build of onnxruntime, and what CUDA needs if there is a GPU or the device asks for one.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`, as the user gave it.
    """
    driver, major, requested = cuda_driver(), cuda_major(), device.startswith("cuda")
    cards = 0 if driver is None else len(driver.cards)
    collision = runtime_collision(cards)
    if collision is not None:
        yield warning("runtime", *collision)
    build = f"{' and '.join(installed_runtimes()) or 'onnxruntime'} {onnxruntime.__version__}"
    if requested or (major is not None and cards):
        libraries = CudaLibraryStatus() if major is None else load_libraries()
        problem = None if major is None else provider_problem()
        yield from cuda_findings(build, major, driver, libraries, problem, requested=requested)
    elif collision is None:  # otherwise it is a matter of chance which build is imported
        unused = "; the GPU is not used (`es-sbert doctor --device cuda` says why)" if cards else ""
        yield ok("runtime", f"{build}, runs on the CPU{unused}")


def cuda_findings(
    build: str,
    major: int | None,
    driver: NvidiaDriver | None,
    libraries: CudaLibraryStatus,
    problem: str | None,
    *,
    requested: bool,
) -> Iterator[Finding]:
    """Yield findings about the parts of CUDA.

    Args:
        build: Name and version of the installed onnxruntime.
        major: The CUDA major version that it was built for; None if it has no CUDA provider.
        driver: The NVIDIA driver, or None.
        libraries: The CUDA libraries that were found or are missing.
        problem: Reason why the CUDA provider does not load; None if it loads or was not tried.
        requested: Whether the user wants to run on a GPU. Otherwise the CPU is used instead, which is a warning.
    """
    level = Severity.ERROR if requested else Severity.WARNING
    if major is None:
        yield Finding(level, "cuda", f"{build} was built without CUDA", cuda_build_remedy())
    else:
        yield ok("cuda", f"{build}, built for CUDA {major}")
    if driver is None or not driver.cards:
        why = "there is no NVIDIA driver" if driver is None else f"the NVIDIA driver reports no GPU {driver.problem}"
        remedy = "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES; start a container with `docker run --gpus all`."
        yield failure("cuda", why.rstrip(), remedy)
    else:
        yield from (ok("cuda", f"cuda:{number} is {card}") for number, card in enumerate(driver.cards))
        if driver.cuda is not None and major is not None and driver.cuda[0] < major:
            message = f"the NVIDIA driver supports CUDA up to {driver.cuda[0]}, onnxruntime needs {major}"
            yield warning("cuda", message, "Update the driver. For a container, update the driver of the host.")
    yield from (ok("cuda", f"{library.name}: {path}") for library, path in libraries.found)
    for library in libraries.missing:
        use = "" if library.required else "; only some models need it"
        severity = level if library.required else Severity.WARNING
        yield Finding(severity, "cuda", f"{library.name}: not found{use}", install_remedy([library], major))
    if problem is not None and not any(library.required for library in libraries.missing):
        message = f"onnxruntime's CUDA provider does not load: {problem}"
        yield Finding(level, "cuda", message, "Install CUDA of the version that onnxruntime was built for.")


def check_engine(engine: Engine, settings: EngineSettings, index: str | None) -> Iterator[Finding]:
    """Check the addresses, version, health, license and disks of an engine, and the user's permissions on an index.

    Args:
        index: The index; None skips permissions.
    """
    addresses = parse_addresses(settings)
    for address, error in detect_cluster(addresses).failures.items() if len(addresses) > 1 else ():
        yield warning("address", f"{address.url} does not respond: {error.message}", error.remedy)
    yield ok("engine", f"{engine.info.label} at {engine.info.url}")
    yield from _guarded("health", lambda: _check_health(engine), optional=True)
    yield from _guarded("license", lambda: _check_license(engine), optional=True)
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


def _check_license(engine: Engine) -> Iterator[Finding]:
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    license = {} if is_opensearch else (engine.request_api("/_license") or {}).get("license", {})
    if license.get("status", "active") != "active":
        message = f"the license {license.get('type')} is {license.get('status')}"
        yield failure("license", message, "Start the free license: `POST _license/start_basic`.")
    else:
        yield ok("license", f"{license.get('type', 'free')}; es-sbert needs no paid license")


def _check_disks(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_nodes/stats/fs", {"filter_path": "nodes.*.name,nodes.*.fs.total"}) or {}
    disks = [(str(node.get("name")), node.get("fs", {}).get("total", {})) for node in answer.get("nodes", {}).values()]
    sizes = [
        (int(total["available_in_bytes"]) / int(total["total_in_bytes"]), name, total)
        for name, total in disks
        if total.get("total_in_bytes")
    ]
    if not sizes:
        remedy = "Give the user the cluster privilege monitor, or check them in the console of the service."
        yield warning("disk", "the nodes do not report their disk usage", remedy)
        return
    free, name, total = min(sizes, key=lambda size: size[0])
    # The settings of a cluster are long, and matter only to a full disk.
    by_default = 100 * (1 - free) < _NO_SHARDS or has_default_watermarks(engine)
    yield disk_finding(name, int(total["available_in_bytes"]), free, by_default=by_default)


def has_default_watermarks(engine: Engine) -> bool:
    """Whether the cluster makes indices read-only on a disk that is as full as engines allow by default."""
    answer = engine.request_api("/_cluster/settings", {"include_defaults": "true", "flat_settings": "true"}) or {}
    settings: Json = {}
    for level in ("defaults", "persistent", "transient"):
        settings |= answer.get(level, {})
    prefix = "cluster.routing.allocation.disk"
    is_enabled = str(settings.get(f"{prefix}.threshold_enabled", "true")) == "true"
    return is_enabled and settings.get(f"{prefix}.watermark.flood_stage", "95%") == f"{_READ_ONLY}%"


def disk_finding(node: str, available: int, free: float, *, by_default: bool) -> Finding:
    """Return the finding about the fullest disk.

    Args:
        available: Free bytes.
        free: Free share of the disk.
        by_default: Whether the cluster reacts to full disks as engines do by default.
    """
    used = 100 * (1 - free)
    state = f"{node} has {available / 1e9:,.1f} GB free, {used:.0f} % are used"
    if used < _NO_SHARDS:
        return ok("disk", state)
    remedy = "Free disk space or add a node before a load."
    if not by_default:
        return warning("disk", f"{state}; this cluster has its own limits (cluster.routing.allocation.disk)", remedy)
    message = (
        f"{state}: engines place no shards on a disk above {_NO_SHARDS} %, and make indices read-only above "
        f"{_READ_ONLY} %"
    )
    return Finding(Severity.ERROR if used >= _READ_ONLY else Severity.WARNING, "disk", message, remedy)


def _check_permissions(engine: Engine, index: str) -> Iterator[Finding]:
    if engine.info.engine_type is EngineType.OPENSEARCH:
        message = "OpenSearch does not report permissions; the error of a rejected request names the missing one"
        yield ok("permissions", message)
        return
    needed = {name for task in INDEX_TASKS for name in task.privileges}
    has = dict.fromkeys(needed, True)
    for name in index.split(","):
        # A name with a minus excludes an index, which needs no privileges.
        granted = {} if name.startswith("-") else granted_privileges(engine, name, needed)
        if granted is None:
            yield ok("permissions", "security is disabled, so requests need no permissions")
            return
        has = {key: has[key] and granted.get(key, True) for key in has}
    allowed = [task.action for task in INDEX_TASKS if not missing_privileges(task, has)]
    if allowed:
        yield ok("permissions", f"this user or API key may {', '.join(allowed)} {index}")
    for task in INDEX_TASKS:
        lacking = missing_privileges(task, has)
        if lacking:
            message = f"this user or API key may not {task.action} {index}: it lacks {' and '.join(lacking)}"
            yield warning("permissions", message, privileges_remedy(lacking, index))


@dataclass(frozen=True)
class IndexInspection:
    """The indices of a name, and their vector fields.

    Attributes:
        states: The indices.
        fields: The vector fields of all indices that can be loaded and searched.
        findings: Problems that were found.
    """

    states: list[IndexState]
    fields: list[VectorField]
    findings: list[Finding]

    @property
    def first_field_by_model(self) -> dict[str, VectorField]:
        """Fingerprint of each model that made vectors → the first field that holds its vectors."""
        return {field.meta.fingerprint: field for field in reversed(self.fields)}


def inspect_index(engine: Engine, name: str) -> IndexInspection:
    """Read the mappings of the indices of a name, and check their vector fields.

    Args:
        name: Index or alias, a list of them, or a pattern.
    """
    inspection = IndexInspection([], [], [])
    inspection.findings.extend(_guarded("index", lambda: _inspect(engine, name, inspection)))
    return inspection


def _inspect(engine: Engine, name: str, inspection: IndexInspection) -> Iterator[Finding]:
    states = engine.resolve_indices(name)
    inspection.states.extend(states)
    if not states:
        remedy = f"{did_you_mean(name, engine)}Check the name, or create the index with `es-sbert ingest`."
        yield warning("index", f"there is no index {name}", remedy)
    is_broken = False
    for state in states:
        for finding in _read_fields(engine, state, inspection.fields):
            is_broken = True
            yield finding
    if len(states) > 1:
        yield from _multi_index_findings(engine, name, states, inspection.fields)
    if not inspection.fields and not is_broken:
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
        check_not_being_removed(state)
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
        check_mapping_was_copied(state)
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
    if (left := settings_of_killed_load(state)) is not None:
        yield warning("index", *left)


def field_findings(index: str, field: FieldSummary, documents: int, model: EncoderInfo | None) -> Iterator[Finding]:
    """Yield findings about documents without a vector, the model of the vectors, truncated texts, and languages."""
    about, meta = f"field {field.name}", field.meta
    command = ["es-sbert", "ingest", "--index", index, "--vector-field", field.name]
    if model is not None and meta.fingerprint != model.fingerprint:
        # No option names an earlier version of a model.
        level = Severity.ERROR if meta.model == model.model else Severity.WARNING
        made_by = f"{meta.model} ({meta.fingerprint[:12]}), not of {model.model} ({model.fingerprint[:12]})"
        remedy = "Leave `model` out to search the field with its own model (`es-sbert model add FOLDER` registers an "
        remedy += "earlier version), or use another `vector_field`."
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
        yield warning(about, field.language_warning.message, f"{field.language_warning.remedy}.")
