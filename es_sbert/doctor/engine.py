"""Whether the engine is there, fit and has room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from es_sbert.doctor.findings import Finding, failure, ok, warning
from es_sbert.engines.protocol import Engine, Flavour, Json
from es_sbert.errors import AccessDenied, EsSbertError
from es_sbert.index.privileges import TASKS, granted, missing, remedy

_WATERMARKS = {
    "cluster.routing.allocation.disk.watermark.low": 85.0,
    "cluster.routing.allocation.disk.watermark.high": 90.0,
    "cluster.routing.allocation.disk.watermark.flood_stage": 95.0,
}
_LOW, _HIGH, _FLOOD = _WATERMARKS


@dataclass(frozen=True)
class Disk:
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
    return [ok("engine", f"{engine.info.label} at {engine.info.url}"), *_guarded("health", engine, _health),
            *_guarded("licence", engine, _licence), *_guarded("disk", engine, _disks)]  # fmt: skip


def check_permissions(engine: Engine, index: str) -> list[Finding]:
    """What the user may do with the index; nothing on engines that do not tell."""
    return list(_guarded("permissions", engine, lambda engine: _permissions(engine, index)))


def _guarded(about: str, engine: Engine, check: Callable[[Engine], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check(engine)
    except AccessDenied as error:
        yield warning(about, f"this user may not look: {error.message}", error.remedy)
    except EsSbertError as error:
        yield Finding.of(about, error)


def _health(engine: Engine) -> Iterator[Finding]:
    answer = engine.ask("/_cluster/health")
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


def _licence(engine: Engine) -> Iterator[Finding]:
    if engine.info.flavour is Flavour.OPENSEARCH:
        yield ok("licence", "Apache 2.0: nothing is paid")
        return
    answer = engine.ask("/_license")
    licence = answer.get("license", {}) if answer else {}
    if licence.get("status", "active") != "active":
        yield failure(
            "licence", f"the licence {licence.get('type')} is {licence.get('status')}", "`POST _license/start_basic`."
        )
    else:
        yield ok("licence", f"{licence.get('type', 'not told')}; the free one is enough for all that es-sbert does")


def _disks(engine: Engine) -> Iterator[Finding]:
    answer = engine.ask("/_nodes/stats/fs", {"filter_path": "nodes.*.name,nodes.*.fs.total"}) or {}
    disks = [
        Disk(str(node.get("name")), int(node["fs"]["total"]["total_in_bytes"]),
             int(node["fs"]["total"]["available_in_bytes"]))
        for node in answer.get("nodes", {}).values()
        if "total_in_bytes" in node.get("fs", {}).get("total", {})
    ]  # fmt: skip
    settings = engine.ask("/_cluster/settings", {"include_defaults": "true", "flat_settings": "true"}) or {}
    merged: Json = {}
    for part in ("defaults", "persistent", "transient"):
        merged |= settings.get(part, {})
    guarded = str(merged.get("cluster.routing.allocation.disk.threshold_enabled", "true")) == "true"
    yield from judge_disks(disks, merged, guarded=guarded)


def judge_disks(disks: list[Disk], settings: Json, *, guarded: bool) -> Iterator[Finding]:
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
    elif _beyond(fullest, settings, _FLOOD):
        yield failure(
            "disk", f"{state}: beyond the flood stage, indices turn read-only",
            "Free space; then the engine takes the block away, or set index.blocks.read_only_allow_delete to null.",
        )  # fmt: skip
    elif _beyond(fullest, settings, _HIGH):
        yield warning("disk", f"{state}: shards are moved away from it", "Free space or add a node before a load.")
    elif _beyond(fullest, settings, _LOW):
        yield warning("disk", f"{state}: no new shards are placed on it", "Free space or add a node before a load.")
    else:
        yield ok("disk", state)


def _beyond(disk: Disk, settings: Json, name: str) -> bool:
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


def _permissions(engine: Engine, index: str) -> Iterator[Finding]:
    if engine.info.flavour is Flavour.OPENSEARCH:
        yield ok("permissions", "OpenSearch does not tell a user what it may do; what it refuses names the permission")
        return
    has = granted(engine, index, {name for task in TASKS for name in task.privileges})
    if has is None:
        yield ok("permissions", "security is switched off: everybody may do everything")
        return
    allowed = [task.words for task in TASKS if not missing(task, has)]
    if allowed:
        yield ok("permissions", f"this user or API key may {', '.join(allowed)} {index}")
    for task in TASKS:
        lacking = missing(task, has)
        if lacking:
            yield warning(
                "permissions", f"it may not {task.words} {index}: it lacks {' and '.join(lacking)}",
                remedy(lacking, index),
            )  # fmt: skip
