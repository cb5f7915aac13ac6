"""Checks of `es-sbert doctor` for the model, the GPU, the cluster and an index. Each problem comes with a remedy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
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
from es_sbert.index.load_checks import check_can_add_vectors
from es_sbert.index.load_settings import unrestored_settings
from es_sbert.index.mapping import plain_vector_fields, vector_fields
from es_sbert.index.privileges import INDEX_TASKS, granted_privileges, missing_privileges, privileges_remedy
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
from es_sbert.index.write_limits import check_can_create
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
from es_sbert.vectors import Vectors

_TEST_SENTENCE = "Does this machine embed a sentence?"


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
            vectors = encoder.encode([_TEST_SENTENCE], "query")  # (1, dimensions)
            return encoder.info, list(_encoder_findings(encoder.info, vectors))
    except EsSbertError as error:
        return None, [Finding.from_error("model", error)]


def _encoder_findings(info: EncoderInfo, vectors: Vectors) -> Iterator[Finding]:
    length = float(np.linalg.norm(vectors[0]))
    if abs(length - 1) > 1e-3:
        message = f"{info.model} returned a vector of length {length:.4f}, not 1"
        yield failure("model", message, "Export it again: `es-sbert export`.")
    else:
        read = f"{info.dimensions} dimensions, reads {info.max_tokens} tokens"
        yield ok("model", f"{info.model} ({info.fingerprint[:12]}), {read}")
    threads = f", {pluralize(info.threads, 'thread')}" if info.threads else ""
    yield ok("device", f"{info.precision} by {info.provider} on {info.device}{threads}")
    figures = _best_speeds(info.fingerprint)
    if info.device == "cpu" and figures:
        listed = ", ".join(f"{variant} {speed:,.0f}" for variant, speed in figures.items())
        yield ok("speed", f"texts per second, measured on this machine: {listed} (`es-sbert model tune`)")
    collision = runtime_collision(cuda_devices())
    for message in info.warnings:
        if collision is None or not message.startswith(collision[0]):  # `check_runtime` reports it
            yield warning("device", message, "See `es-sbert encode --help` for `device` and `precision`.")


def _best_speeds(fingerprint: str) -> dict[str, float]:
    """Read the texts per second of each variant of a model that was measured on this machine, the fastest first."""
    speeds: dict[str, float] = {}
    for measurement in sorted(read_tuning(fingerprint).measured, key=lambda one: -one.texts_per_second):
        speeds.setdefault(measurement.variant, measurement.texts_per_second)
    return speeds


@dataclass(frozen=True)
class CudaState:
    """The state of CUDA on a machine.

    Attributes:
        packages: Installed packages of onnxruntime.
        version: Version of the onnxruntime that is imported.
        major: The CUDA major version that onnxruntime was built for; None if it has no CUDA provider.
        driver: The NVIDIA driver, or None.
        problem: Reason why the CUDA provider does not load; None if it loads or was not tried.
    """

    packages: tuple[str, ...]
    version: str
    major: int | None
    driver: NvidiaDriver | None
    problem: str | None = None

    @property
    def cards(self) -> int:
        return 0 if self.driver is None else len(self.driver.cards)


def check_runtime(device: str) -> list[Finding]:
    """Check the installed build of onnxruntime, and the parts of CUDA that are present or missing.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`, as the user gave it.
    """
    state = CudaState(tuple(installed_runtimes()), onnxruntime.__version__, cuda_major(), cuda_driver())
    libraries = CudaLibraryStatus()
    if state.major is not None and (state.cards or device.startswith("cuda")):
        libraries = load_libraries()
        state = replace(state, problem=provider_problem())
    collision = runtime_collision(state.cards)
    collisions = [] if collision is None else [warning("runtime", *collision)]
    if collisions and not device.startswith("cuda"):
        return collisions  # more findings would not help, because it is a matter of chance which build is imported
    return [*collisions, *cuda_findings(state, libraries, device)]


def cuda_findings(state: CudaState, libraries: CudaLibraryStatus, device: str) -> Iterator[Finding]:
    """Yield findings about CUDA. If it is not requested, a CPU build or a machine without a GPU is only mentioned.

    Args:
        state: The state of CUDA.
        libraries: The CUDA libraries that were found or are missing.
        device: As for `check_runtime`.
    """
    requested = device.startswith("cuda")
    package = " and ".join(state.packages) or "onnxruntime"
    built = "without CUDA" if state.major is None else f"for CUDA {state.major}"
    if state.major is None and not requested:
        yield ok("runtime", f"{package} {state.version}, for CPUs")
        for card in state.driver.cards if state.driver else ():
            yield ok("runtime", f"{card} is not used; `es-sbert doctor --device cuda` shows what is missing for that")
        return
    if not state.cards and not requested:
        yield ok("cuda", f"no NVIDIA GPU; {package} {state.version}, built {built}, runs on the CPU")
        return
    # A problem of a requested GPU is an error; under `auto` the CPU is used instead.
    level = Severity.ERROR if requested else Severity.WARNING
    if state.major is None:
        yield Finding(level, "cuda", f"{package} {state.version} was built {built}", cuda_build_remedy())
    else:
        yield ok("cuda", f"{package} {state.version}, built {built}")
    yield from _driver_findings(state)
    for library, path in libraries.found:
        yield ok("cuda", f"{library.name}: {path}")
    for library in libraries.missing:
        remedy = install_remedy([library], state.major)
        if library.required:
            yield Finding(level, "cuda", f"{library.name}: not found", remedy)
        else:
            yield warning("cuda", f"{library.name}: not found; only some models need it", remedy)
    if state.problem is not None and not any(library.required for library in libraries.missing):
        remedy = "Install CUDA of the version that onnxruntime was built for."
        yield Finding(level, "cuda", f"onnxruntime's CUDA provider does not load: {state.problem}", remedy)


def _driver_findings(state: CudaState) -> Iterator[Finding]:
    driver = state.driver
    if driver is None:
        yield failure(
            "cuda", "there is no NVIDIA driver", "Install it, or start the container with `docker run --gpus all`."
        )
        return
    if not driver.cards:
        why = f" ({driver.problem})" if driver.problem else ""
        yield failure("cuda", f"the NVIDIA driver reports no GPU{why}", "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES.")
    for number, card in enumerate(driver.cards):
        yield ok("cuda", f"cuda:{number} is {card}")
    if driver.cuda is not None and state.major is not None and driver.cuda[0] < state.major:
        message = (
            "the NVIDIA driver supports CUDA up to {}.{}, ".format(*driver.cuda) + f"onnxruntime needs {state.major}"
        )
        yield warning("cuda", message, "Update the driver. For a container, update the driver of the host.")


_DISK_SETTINGS = "cluster.routing.allocation.disk"
_FREE_SPACE = "Free disk space or add a node before a load."
# Settings `watermark.*`, the highest first: default in percent, and the finding for a disk above it.
_WATERMARKS = {
    "flood_stage": (
        95.0,
        Severity.ERROR,
        "indices become read-only above the flood stage",
        "Free disk space. If the engine does not remove the block then, set index.blocks.read_only_allow_delete to "
        "null.",
    ),
    "high": (90.0, Severity.WARNING, "shards are moved away from it", _FREE_SPACE),
    "low": (85.0, Severity.WARNING, "no new shards are placed on it", _FREE_SPACE),
}
_BYTE_UNITS = {"tb": 1 << 40, "gb": 1 << 30, "mb": 1 << 20, "kb": 1 << 10, "b": 1}


@dataclass(frozen=True)
class NodeDisk:
    """The disk of a node.

    Attributes:
        node: Name of the node.
        total, free: Size and free space in bytes.
    """

    node: str
    total: int
    free: int

    @property
    def used(self) -> float:
        """Used space in percent."""
        return 100 * (1 - self.free / self.total) if self.total else 0.0


def check_addresses(settings: EngineSettings) -> Iterator[Finding]:
    """Yield findings about addresses that do not respond, if there are several addresses."""
    addresses = parse_addresses(settings)
    if len(addresses) > 1:
        for address, failure in detect_cluster(addresses).failures.items():
            yield warning("address", f"{address.url} does not respond: {failure.message}", failure.remedy)


def check_engine(engine: Engine, index: str | None) -> Iterator[Finding]:
    """Check the version, health, license and disks of an engine, and the user's permissions on an index.

    Args:
        engine: The engine.
        index: The index; None skips permissions.
    """
    yield ok("engine", f"{engine.info.label} at {engine.info.url}")
    checks = {"health": _check_health(engine), "license": _check_license(engine), "disk": _check_disks(engine)}
    if index is not None:
        checks["permissions"] = _check_permissions(engine, index)
    for about, findings in checks.items():
        try:
            yield from findings
        except AccessDenied as error:
            yield warning(about, f"this user may not read this information: {error.message}", error.remedy)
        except EsSbertError as error:
            yield Finding.from_error(about, error)


def _check_health(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_cluster/health")
    if answer is None:
        yield warning("health", "this engine does not report its health", "Check it in the console of the service.")
        return
    status = str(answer.get("status"))
    if status == "red":
        remedy = "See `GET _cluster/allocation/explain`."
        yield failure("health", "the cluster is red: some documents are not available", remedy)
    else:
        replicas = ", some replicas are not assigned" if status == "yellow" else ""
        yield ok("health", f"{status}{replicas}; {answer.get('number_of_nodes')} nodes")


def _check_license(engine: Engine) -> Iterator[Finding]:
    if engine.info.engine_type is EngineType.OPENSEARCH:
        yield ok("license", "Apache 2.0; no paid license is needed")
        return
    answer = engine.request_api("/_license")
    license = answer.get("license", {}) if answer else {}
    if license.get("status", "active") != "active":
        message = f"the license {license.get('type')} is {license.get('status')}"
        yield failure("license", message, "Start the free license: `POST _license/start_basic`.")
    else:
        yield ok("license", f"{license.get('type', 'unknown')}; es-sbert needs only the free basic license")


def _check_disks(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_nodes/stats/fs", {"filter_path": "nodes.*.name,nodes.*.fs.total"})
    if answer is None:
        yield warning("disk", "this engine does not report its disks", "Check them in the console of the service.")
        return
    totals = [(str(node.get("name")), node.get("fs", {}).get("total", {})) for node in answer.get("nodes", {}).values()]
    disks = [
        NodeDisk(name, int(total["total_in_bytes"]), int(total["available_in_bytes"]))
        for name, total in totals
        if "total_in_bytes" in total
    ]
    settings = engine.request_api("/_cluster/settings", {"include_defaults": "true", "flat_settings": "true"}) or {}
    merged: Json = {**settings.get("defaults", {}), **settings.get("persistent", {}), **settings.get("transient", {})}
    yield from disk_findings(disks, merged)


def disk_findings(disks: list[NodeDisk], settings: Json) -> Iterator[Finding]:
    """Yield the finding about the fullest disk and the highest watermark that it exceeds.

    Args:
        disks: The disks of all nodes.
        settings: Flat cluster settings. Missing ones have their defaults.
    """
    if not disks:
        remedy = "Give the user the cluster privilege monitor."
        yield warning("disk", "the nodes do not report their disk usage", remedy)
        return
    fullest = max(disks, key=lambda disk: disk.used)
    state = f"{fullest.node} has {fullest.free / 1e9:,.1f} GB free of {fullest.total / 1e9:,.1f}"
    if str(settings.get(f"{_DISK_SETTINGS}.threshold_enabled", "true")) != "true":
        yield ok("disk", f"{state}; watermarks are disabled")
        return
    for name, (default, level, effect, remedy) in _WATERMARKS.items():
        if _is_fuller(fullest, settings.get(f"{_DISK_SETTINGS}.watermark.{name}"), default):
            yield Finding(level, "disk", f"{state}: {effect}", remedy)
            return
    yield ok("disk", state)


def _is_fuller(disk: NodeDisk, watermark: object, default: float) -> bool:
    """Whether a disk is fuller than a watermark: `85%`, `0.85`, or bytes that must stay free such as `50gb`."""
    text = str(watermark).strip().lower()
    try:
        if text.endswith("%"):
            return disk.used >= float(text[:-1])
        for unit, size in _BYTE_UNITS.items():
            if text.endswith(unit):
                return disk.free <= float(text.removesuffix(unit)) * size
        return disk.used >= 100 * float(text)
    except ValueError:
        return disk.used >= default


def _check_permissions(engine: Engine, index: str) -> Iterator[Finding]:
    if engine.info.engine_type is EngineType.OPENSEARCH:
        yield ok(
            "permissions",
            "OpenSearch does not report permissions; the error of a rejected request names the missing one",
        )
        return
    needed = {name for task in INDEX_TASKS for name in task.privileges}
    has: Mapping[str, bool] | None = dict.fromkeys(needed, True)
    for name in index.split(","):
        # A name with a minus excludes an index, which needs no privileges.
        granted = {} if name.startswith("-") else granted_privileges(engine, name, needed)
        has = None if granted is None or has is None else {key: has[key] and granted.get(key, True) for key in has}
    if has is None:
        yield ok("permissions", "security is disabled, so requests need no permissions")
        return
    allowed = [task.action for task in INDEX_TASKS if not missing_privileges(task, has)]
    if allowed:
        yield ok("permissions", f"this user or API key may {', '.join(allowed)} {index}")
    for task in INDEX_TASKS:
        lacking = missing_privileges(task, has)
        if lacking:
            remedy = privileges_remedy(lacking, index)
            yield warning(
                "permissions",
                f"this user or API key may not {task.action} {index}: it lacks {' and '.join(lacking)}",
                remedy,
            )


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
        found: dict[str, VectorField] = {}
        for field in self.fields:
            found.setdefault(field.meta.fingerprint, field)
        return found


def inspect_index(engine: Engine, name: str) -> IndexInspection:
    """Read the mappings of the indices of a name, and check their vector fields.

    Args:
        engine: The engine.
        name: Index or alias, a list of them, or a pattern.
    """
    try:
        states = engine.resolve_indices(name)
    except EsSbertError as error:
        return IndexInspection([], [], [Finding.from_error("index", error)])
    fields: list[VectorField] = []
    findings: list[Finding] = []
    if not states:
        remedy = f"{did_you_mean(name, engine)}Check the name, or create the index with `es-sbert ingest`."
        findings.append(warning("index", f"there is no index {name}", remedy))
        try:
            if not is_index_expression(name):
                check_can_create(engine, name)
        except EsSbertError as error:
            findings.append(Finding.from_error("index", error))
    for state in states:
        _read_fields(engine, state, fields, findings)
    if len(states) > 1:
        findings += _multi_index_findings(engine, name, states, fields)
    if not fields and not any(finding.level is Severity.ERROR for finding in findings):
        findings += [_no_vector_field_finding(engine, state) for state in states]
    return IndexInspection(states, fields, findings)


def _multi_index_findings(
    engine: Engine, name: str, states: Sequence[IndexState], fields: Sequence[VectorField]
) -> Iterator[Finding]:
    """Yield findings about searches and loads with a name of several indices."""
    count = f"{name} names {pluralize(len(states), 'index', 'indices')}, which are searched together"
    is_alias = not is_index_expression(name)
    try:
        target = write_index(name, states) if is_alias else None
    except IndexMismatch as error:
        yield warning("index", f"{count}, and none of them is its write index", error.remedy)
    else:
        loads = (
            "a load requires the name of a single index"
            if target is None
            else f"documents are written to {target.name}"
        )
        yield ok("index", f"{count}; {loads}")
    for field_name in dict.fromkeys(field.name for field in fields):
        same = [field for field in fields if field.name == field_name]
        yield from _lacking_field_findings(engine, name, states, same)
        try:
            SearchScope(tuple(same))
        except IndexMismatch as error:
            yield Finding.from_error(f"field {field_name}", error)


def _lacking_field_findings(
    engine: Engine, name: str, states: Sequence[IndexState], same: Sequence[VectorField]
) -> Iterator[Finding]:
    """Yield findings about indices without a field that others have, such as the newest index after a rollover.

    Args:
        name: The name of the indices.
        states: The indices.
        same: The field in the indices that have it.
    """
    field = same[-1]
    others = [state for state in states if state.name not in {each.index for each in same}]
    lacking = [state for state in others if not has_vector_field(state, field.name)]
    unfit = [state.name for state in others if has_vector_field(state, field.name)]
    if unfit:
        remedy = f"Repair the field, or search the other indices: {', '.join(each.index for each in same[:5])}."
        message = f"the field in {', '.join(unfit[:5])} cannot be searched, so {name} cannot be searched either"
        yield failure(f"field {field.name}", message, remedy)
    for state in lacking:
        try:
            check_can_add_vectors(engine, state)
        except EsSbertError as error:
            yield Finding.from_error(f"field {field.name}", error)
            return
    if lacking:
        commands = ", ".join(embed_command(state, [field]) for state in lacking[:3])
        yield warning(
            f"field {field.name}",
            f"missing in {', '.join(state.name for state in lacking[:5])}: searches of {name} miss the documents there",
            f"Add the field and embed the documents: {commands}. To add it to new indices too, put it into their index "
            f"template: `es-sbert index template {field.index}`.",
        )


def _read_fields(engine: Engine, state: IndexState, fields: list[VectorField], findings: list[Finding]) -> None:
    """Add the vector fields of an index to `fields`, and problems of the others to `findings`."""
    try:
        names = vector_fields(state.mappings, state.name)
    except IndexMismatch as error:
        findings.append(Finding.from_error("index", error))
        return
    for name in names:
        try:
            fields.append(vector_field_from_state(engine, state, name))
        except IndexMismatch as error:
            findings.append(Finding.from_error(f"field {name}", error))
    try:
        check_not_being_removed(state)
    except IndexMismatch as error:
        findings.append(Finding.from_error("index", error))


def _no_vector_field_finding(engine: Engine, state: IndexState) -> Finding:
    try:
        check_mapping_was_copied(state)
        check_can_add_vectors(engine, state)
    except EsSbertError as error:
        return Finding.from_error("index", error)
    plain = plain_vector_fields(engine.info.engine_type, state.mappings, state.name)
    if not plain:
        return warning(
            "index", f"{state.name} has no vector field", f"To add one: `es-sbert ingest --index {state.name}`."
        )
    return warning(
        "index",
        f"{state.name} has no vector field of es-sbert, but {', '.join(plain)} of another program",
        f"If you know the model of its vectors: {adopt_command(state.name, plain[0])} checks the model and adopts the "
        f"vectors. Otherwise, `es-sbert ingest --index {state.name}` adds a field.",
    )


def check_index(
    engine: Engine, state: IndexState, fields: Sequence[VectorField], models: Mapping[str, EncoderInfo | None]
) -> Iterator[Finding]:
    """Check an index for migrations, blocks, settings that a load did not restore, and vectors of other models.

    Args:
        engine: The engine.
        state: The index.
        fields: The vector fields that can be searched, including those of other indices.
        models: Fingerprint in the mapping → the model to search with; None if it could not be opened.
    """
    migration = _migration_finding(engine, state)
    if migration is not None:
        yield migration[0]
    yield from settings_findings(state, by_migration=migration is not None and migration[1])
    try:
        summary = describe_index(engine, state)
    except EsSbertError as error:
        yield Finding.from_error("index", error)
        return
    size = "" if summary.bytes is None else f", {summary.bytes / 1e6:,.1f} MB"
    yield ok("index", f"{summary.name}: {pluralize(summary.documents, 'document')}{size}")
    fit = {field.name for field in fields if field.index == state.name}
    for field in summary.fields:
        if field.name in fit:
            yield from field_findings(summary.name, field, summary.documents, models[field.meta.fingerprint])


def _migration_finding(engine: Engine, state: IndexState) -> tuple[Finding, bool] | None:
    """Find a migration or rollback that is not finished, or that has replaced the index.

    Returns:
        The finding, and whether it explains that the index refuses writes; None if there is no such migration.
    """
    try:
        begun, replaced = find_begun(engine, state), replaced_error(engine, state)
    except AccessDenied:
        return None  # the user may read this index, but not the other one
    except EsSbertError as error:
        return Finding.from_error("migration", error), False
    if begun is not None:
        level = Severity.ERROR if begun.refuses_writes else Severity.WARNING
        return replace(Finding.from_error("migration", begun.error()), level=level), begun.refuses_writes
    if replaced is not None:
        return replace(Finding.from_error("migration", replaced), level=Severity.WARNING), True
    return None


def settings_findings(state: IndexState, *, by_migration: bool = False) -> Iterator[Finding]:
    """Yield findings about blocks, and about settings that a killed load did not restore.

    Args:
        by_migration: Whether a migration has blocked writes. Nobody should remove that block by hand.
    """
    for block in ("read_only", "read_only_allow_delete", "write", "read", "metadata"):
        if block == "write" and by_migration:
            continue
        if state.has_setting(f"index.blocks.{block}"):
            remedy = f"Set it to null: `PUT {state.name}/_settings`."
            if block == "read_only_allow_delete":
                remedy = "A disk was full. Free disk space, then set the block to null."
            yield failure("index", f"{state.name} has index.blocks.{block}", remedy)
    before = unrestored_settings(state)
    if before is not None:
        remedy = f"If no load is running: `es-sbert index repair {state.name}`."
        yield warning("index", f"a load did not restore {' and '.join(before)} of {state.name}", remedy)


def field_findings(index: str, field: FieldSummary, documents: int, model: EncoderInfo | None) -> Iterator[Finding]:
    """Yield findings about documents without a vector, the model of the vectors, truncated texts, and languages."""
    about = f"field {field.name}"
    if model is not None and field.meta.fingerprint != model.fingerprint and field.meta.model == model.model:
        yield failure(
            about,
            f"the index was embedded with a different version of {field.meta.model} ({field.meta.fingerprint[:12]}) "
            f"than the installed one ({model.fingerprint[:12]})",
            "Register the folder of the earlier version (`es-sbert model add FOLDER`), or embed with the installed one "
            "into another `vector_field`.",
        )
    elif model is not None and field.meta.fingerprint != model.fingerprint:
        yield warning(
            about,
            f"holds vectors of {field.meta.model} ({field.meta.fingerprint[:12]}), not of {model.model}",
            "Leave `model` out to search the field with its own model, or use another `vector_field`.",
        )
    if field.current < field.vectors:
        named = f"{index} --vector-field {field.name}"  # arguments of the commands
        yield failure(
            about,
            f"{field.vectors - field.current:,} of {field.vectors:,} vectors may not come from the field's model",
            f"Embed them again: `es-sbert ingest --index {named}`. If another program wrote them with this model: "
            f"`es-sbert index adopt {named}`.",
        )
    if field.vectors < documents:
        yield warning(
            about,
            f"semantic search does not find documents without an embedding: {documents - field.vectors:,} of "
            f"{documents:,}",
            f"Embed them: `es-sbert ingest --index {index} --vector-field {field.name}`.",
        )
    else:
        every = "the only document has" if documents == 1 else f"all {documents:,} documents have"
        yield ok(about, f"{every} a vector, {field.meta.index_type}")
    if field.truncated:
        tokens = 256 if model is None else min(256, model.max_tokens)
        command = ["es-sbert", "ingest", "--index", index, "--vector-field", f"{field.name}_passages"]
        command += ["--model", field.meta.model, "--passages", str(tokens)]
        command += [] if field.meta.text is None else ["--text-template", field.meta.text]
        remedy = f"Searches do not cover their ends. Embed passages into another field: `{shlex.join(command)}`."
        yield warning(
            about,
            f"{field.truncated:,} of {pluralize(field.vectors, 'text')} ({field.truncated / field.vectors:.1%}) "
            f"{be(field.truncated)} longer than the model reads",
            remedy,
        )
    if field.language_warning is not None:
        yield warning(about, field.language_warning.message, f"{field.language_warning.remedy}.")
