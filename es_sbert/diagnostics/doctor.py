"""Checks of `es-sbert doctor` for the model, the GPU and the cluster, as findings with a remedy each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import onnxruntime

from es_sbert.encoder.cuda_session import (
    CudaLibraryStatus,
    cuda_major,
    install_remedy,
    load_libraries,
    provider_problem,
)
from es_sbert.encoder.device import INSTALL_CUDA_COMMAND, NvidiaDriver, cuda_driver
from es_sbert.encoder.encoder import Encoder, EncoderInfo, LoadOptions
from es_sbert.engines.protocol import Engine, EngineType, Json
from es_sbert.errors import AccessDenied, EsSbertError
from es_sbert.index.privileges import INDEX_TASKS, granted_privileges, missing_privileges, privileges_remedy
from es_sbert.index.vector_field import VectorField


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but not as well or not for long
    ERROR = "error"  # does not work


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        level: How bad.
        about: What was looked at: `model`, `device`, `cuda`, `engine`, `licence`, `permissions`, `disk`, `index`, ….
        message: What was found.
        remedy: What to do; empty where there is nothing to do.
    """

    level: Severity
    about: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, about: str, error: EsSbertError, level: Severity = Severity.ERROR) -> Finding:
        """An error as a finding."""
        return cls(level, about, error.message, error.remedy)

    def as_json(self) -> Json:
        return asdict(self)


def ok(about: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(Severity.OK, about, message)


def warning(about: str, message: str, remedy: str) -> Finding:
    """Works, but not as well or not for long."""
    return Finding(Severity.WARNING, about, message, remedy)


def failure(about: str, message: str, remedy: str) -> Finding:
    """Does not work."""
    return Finding(Severity.ERROR, about, message, remedy)


_TEST_SENTENCE = "Does this machine embed a sentence?"


def check_encoder(
    name: str | None, device: str, precision: str, threads: int | None, field: VectorField | None = None
) -> tuple[EncoderInfo | None, list[Finding]]:
    """Open the model and embed a sentence with it.

    Args:
        name: Of the model; None for that of the field, or the default one.
        device, precision, threads: As for `Encoder`.
        field: A field whose model is needed.

    Returns:
        What really ran, None where nothing did; and the findings.
    """
    options: LoadOptions = {"device": device, "precision": precision, "threads": threads}
    try:
        if field is None:
            opened = Encoder(name, **options)
        else:
            meta = field.meta
            opened = Encoder.for_index(field.index, meta.model, meta.fingerprint, model=name, **options)
        with opened as encoder:
            vectors = encoder.encode([_TEST_SENTENCE])  # (1, dimensions)
            return encoder.info, list(_encoder_findings(encoder.info, vectors))
    except EsSbertError as error:
        return None, [Finding.of("model", error)]


def _encoder_findings(
    info: EncoderInfo, vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]
) -> Iterator[Finding]:
    length = float(np.linalg.norm(vectors[0]))
    if abs(length - 1) > 1e-3:
        yield failure(
            "model", f"{info.model} gives a vector of length {length:.4f}, not 1", "Export it anew: `es-sbert export`."
        )
    else:
        yield ok(
            "model",
            f"{info.model} ({info.fingerprint[:12]}), {info.dimensions} dimensions, reads {info.max_tokens} tokens",
        )
    threads = f", {info.threads} threads" if info.threads else ""
    yield ok("device", f"{info.precision} by {info.provider} on {info.device}{threads}")
    for message in info.warnings:
        yield warning("device", message, "See `es-sbert encode --help` for --device and --precision.")


_ONNXRUNTIME_PACKAGES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class CudaState:
    """What there is of CUDA on a machine.

    Attributes:
        packages: Installed packages of onnxruntime.
        version: Of the onnxruntime that is imported.
        major: The CUDA major version that it was built for; None where it has no CUDA provider.
        driver: The NVIDIA driver; None where there is none.
        problem: Why the CUDA provider does not load; None where it does, or was not tried.
    """

    packages: tuple[str, ...]
    version: str
    major: int | None
    driver: NvidiaDriver | None
    problem: str | None = None

    @property
    def cards(self) -> int:
        return 0 if self.driver is None else len(self.driver.cards)


def check_cuda(device: str) -> list[Finding]:
    """What is there of CUDA, and what is missing.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`, as the user asks for it.
    """
    installed = tuple(name for name in _ONNXRUNTIME_PACKAGES if _is_installed(name))
    state = CudaState(installed, onnxruntime.__version__, cuda_major(), cuda_driver())
    matters = state.cards > 0 or device.startswith("cuda")
    if not matters or state.major is None:
        return list(cuda_findings(state, CudaLibraryStatus(), device))
    libraries = load_libraries()
    return list(cuda_findings(replace(state, problem=provider_problem()), libraries, device))


def cuda_findings(state: CudaState, libraries: CudaLibraryStatus, device: str) -> Iterator[Finding]:
    """The findings; one line suffices where there is no card and none is asked for.

    Args:
        state: What there is.
        libraries: Which of CUDA's libraries were found.
        device: As for `check_cuda`.
    """
    asked = device.startswith("cuda")
    package = " and ".join(state.packages) or "onnxruntime"
    built = "without CUDA" if state.major is None else f"for CUDA {state.major}"
    if len(state.packages) > 1:
        yield warning(
            "cuda", f"{package} are both installed, and have overwritten each other's files", f"{INSTALL_CUDA_COMMAND}."
        )
    if not state.cards and not asked:
        yield ok("cuda", f"no NVIDIA GPU; {package} {state.version}, built {built}, runs on the CPU")
        return
    # What stops a GPU that was asked for is an error; under `auto` the CPU does its work.
    level = Severity.ERROR if asked else Severity.WARNING
    if state.major is None:
        yield Finding(level, "cuda", f"{package} {state.version} was built {built}", f"{INSTALL_CUDA_COMMAND}.")
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
        yield failure("cuda", "there is no NVIDIA driver", "Install it; in a container, start it with `--gpus all`.")
        return
    if not driver.cards:
        why = f" ({driver.problem})" if driver.problem else ""
        yield failure("cuda", f"the NVIDIA driver offers no GPU{why}", "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES.")
    for number, card in enumerate(driver.cards):
        yield ok("cuda", f"cuda:{number} is {card}")
    if driver.cuda is not None and state.major is not None and driver.cuda[0] < state.major:
        yield warning(
            "cuda",
            "the NVIDIA driver runs CUDA up to {}.{}, ".format(*driver.cuda) + f"onnxruntime needs {state.major}",
            "Update the driver; inside a container, that of the host.",
        )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


_WATERMARKS = {
    "cluster.routing.allocation.disk.watermark.low": 85.0,
    "cluster.routing.allocation.disk.watermark.high": 90.0,
    "cluster.routing.allocation.disk.watermark.flood_stage": 95.0,
}
_LOW_WATERMARK, _HIGH_WATERMARK, _FLOOD_WATERMARK = _WATERMARKS


@dataclass(frozen=True)
class NodeDisk:
    """A node's disk.

    Attributes:
        node: Its name.
        total, free: Bytes.
    """

    node: str
    total: int
    free: int

    @property
    def used(self) -> float:
        """Per cent."""
        return 100 * (1 - self.free / self.total) if self.total else 0.0


def check_engine(engine: Engine) -> list[Finding]:
    """Version, health, licence and disks."""
    return [
        ok("engine", f"{engine.info.label} at {engine.info.url}"),
        *_report_errors("health", engine, _check_health),
        *_report_errors("licence", engine, _check_licence),
        *_report_errors("disk", engine, _check_disks),
    ]


def check_permissions(engine: Engine, index: str) -> list[Finding]:
    """What the user may do with the index; nothing on engines that do not tell."""
    return list(_report_errors("permissions", engine, lambda engine: _check_permissions(engine, index)))


def _report_errors(about: str, engine: Engine, check: Callable[[Engine], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check(engine)
    except AccessDenied as error:
        yield warning(about, f"this user may not look: {error.message}", error.remedy)
    except EsSbertError as error:
        yield Finding.of(about, error)


def _check_health(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_cluster/health")
    if answer is None:
        yield warning("health", "this engine does not tell its health", "Look at it where the engine is managed.")
        return
    status, nodes = str(answer.get("status")), answer.get("number_of_nodes")
    if status == "red":
        yield failure(
            "health", "the cluster is red: some documents cannot be reached", "See `GET _cluster/allocation/explain`."
        )
    else:
        replicas = ", some replicas have no node" if status == "yellow" else ""
        yield ok("health", f"{status}{replicas}; {nodes} nodes")


def _check_licence(engine: Engine) -> Iterator[Finding]:
    if engine.info.engine_type is EngineType.OPENSEARCH:
        yield ok("licence", "Apache 2.0: nothing is paid")
        return
    answer = engine.request_api("/_license")
    licence = answer.get("license", {}) if answer else {}
    if licence.get("status", "active") != "active":
        yield failure(
            "licence", f"the licence {licence.get('type')} is {licence.get('status')}", "`POST _license/start_basic`."
        )
    else:
        yield ok("licence", f"{licence.get('type', 'not told')}; the free one is enough for all that es-sbert does")


def _check_disks(engine: Engine) -> Iterator[Finding]:
    answer = engine.request_api("/_nodes/stats/fs", {"filter_path": "nodes.*.name,nodes.*.fs.total"}) or {}
    disks = [
        NodeDisk(
            str(node.get("name")),
            int(node["fs"]["total"]["total_in_bytes"]),
            int(node["fs"]["total"]["available_in_bytes"]),
        )
        for node in answer.get("nodes", {}).values()
        if "total_in_bytes" in node.get("fs", {}).get("total", {})
    ]
    settings = engine.request_api("/_cluster/settings", {"include_defaults": "true", "flat_settings": "true"}) or {}
    merged: Json = {}
    for part in ("defaults", "persistent", "transient"):
        merged |= settings.get(part, {})
    guarded = str(merged.get("cluster.routing.allocation.disk.threshold_enabled", "true")) == "true"
    yield from disk_findings(disks, merged, guarded=guarded)


def disk_findings(disks: list[NodeDisk], settings: Json, *, guarded: bool) -> Iterator[Finding]:
    """What full disks mean for a load.

    Args:
        disks: Of all nodes.
        settings: Flat cluster settings; watermarks that they lack have their default.
        guarded: Whether the engine minds its watermarks at all.
    """
    if not disks:
        yield warning("disk", "the nodes do not tell how full they are", "Give the user the cluster privilege monitor.")
        return
    fullest = max(disks, key=lambda disk: disk.used)
    state = f"{fullest.node} has {fullest.free / 1e9:,.1f} GB free of {fullest.total / 1e9:,.1f}"
    if not guarded:
        yield ok("disk", f"{state}; watermarks are switched off")
    elif _exceeds_watermark(fullest, settings, _FLOOD_WATERMARK):
        yield failure(
            "disk",
            f"{state}: beyond the flood stage, indices turn read-only",
            "Free space; then the engine takes the block away, or set index.blocks.read_only_allow_delete to null.",
        )
    elif _exceeds_watermark(fullest, settings, _HIGH_WATERMARK):
        yield warning("disk", f"{state}: shards are moved away from it", "Free space or add a node before a load.")
    elif _exceeds_watermark(fullest, settings, _LOW_WATERMARK):
        yield warning("disk", f"{state}: no new shards are placed on it", "Free space or add a node before a load.")
    else:
        yield ok("disk", state)


def _exceeds_watermark(disk: NodeDisk, settings: Json, name: str) -> bool:
    """Whether a disk is fuller than a watermark: `85%`, `0.85`, or bytes that must stay free such as `50gb`."""
    text = str(settings.get(name, "")).strip().lower()
    units = {"tb": 1 << 40, "gb": 1 << 30, "mb": 1 << 20, "kb": 1 << 10, "b": 1}
    try:
        if text.endswith("%"):
            return disk.used >= float(text[:-1])
        for unit, size in units.items():
            if text.endswith(unit):
                return disk.free <= float(text[: -len(unit)]) * size
        return disk.used >= 100 * float(text)
    except ValueError:
        return disk.used >= _WATERMARKS[name]


def _check_permissions(engine: Engine, index: str) -> Iterator[Finding]:
    if engine.info.engine_type is EngineType.OPENSEARCH:
        yield ok("permissions", "OpenSearch does not tell a user what it may do; what it refuses names the permission")
        return
    has = granted_privileges(engine, index, {name for task in INDEX_TASKS for name in task.privileges})
    if has is None:
        yield ok("permissions", "security is switched off: everybody may do everything")
        return
    allowed = [task.action for task in INDEX_TASKS if not missing_privileges(task, has)]
    if allowed:
        yield ok("permissions", f"this user or API key may {', '.join(allowed)} {index}")
    for task in INDEX_TASKS:
        lacking = missing_privileges(task, has)
        if lacking:
            yield warning(
                "permissions",
                f"it may not {task.action} {index}: it lacks {' and '.join(lacking)}",
                privileges_remedy(lacking, index),
            )
