"""Connect to a Ray cluster, choose its worker pool, and check that every node has the same es-sbert and model."""

from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from es_sbert import __version__
from es_sbert.errors import ClusterError, EsSbertError, UsageError, error_summary
from es_sbert.messages import log_event
from es_sbert.runtime.onnx_session import CUDA_WORKERS

# Starts a cluster on this machine for the duration of the load.
LOCAL_CLUSTER = "local"
_CURRENT_CLUSTER = "auto"  # the cluster that this machine belongs to
_CONNECT_SECONDS = 10.0


class _RayOutputLogger(io.TextIOBase):
    """Turns what Ray prints into log events, one per line, and keeps standard output clean."""

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            log_event("ray", line, text="")
        return len(text)


@contextmanager
def ray_connection(address: str) -> Iterator[None]:
    """Connect to the cluster at an address: `host:port`, `auto` for the one that this machine belongs to, or `local`.

    Raises:
        UsageError: the address is that of a Ray Client server.
        ClusterError: there is no cluster at the address.
    """
    if address.startswith("ray://"):
        raise UsageError(
            "Ray Client addresses (ray://) are not supported: the checkpoint file must be on a node of the cluster",
            'Run the command on a machine that belongs to the cluster, with `ray="auto"`.',
        )
    if address not in (LOCAL_CLUSTER, _CURRENT_CLUSTER):
        _check_port_open(address)
    # Ray's own logging is silenced: its failures are raised as ClusterError.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A thread of Ray prints messages about lost nodes; the shutdown prints the remaining ones.
    with redirect_stdout(_RayOutputLogger()):
        try:
            ray.init(
                address=None if address == LOCAL_CLUSTER else address,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                include_dashboard=False if address == LOCAL_CLUSTER else None,
            )
        except (ConnectionError, ValueError, RuntimeError, RayError) as error:
            raise _no_cluster_error(address, error) from error
        try:
            yield
        finally:
            ray.shutdown()


def _check_port_open(address: str) -> None:
    """Check that the cluster accepts connections: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_cluster_error(address, error) from error


def _no_cluster_error(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"there is no Ray cluster at {address}: {error_summary(error)}",
        'Start one (`ray start --head`, then `ray start --address HOST:6379` on each machine), or use `ray="local"`.',
    )


def get_result(reference: Any) -> Any:
    """Wait for a remote call and return its result.

    Raises:
        EsSbertError: the remote call raised it.
        ClusterError: the process that runs the call has ended.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise find_own_error(error) or error from None
    except RayError as error:
        raise ClusterError(
            f"a process of the load on the Ray cluster ended: {remote_error_summary(error)}",
            "Check the cluster (`ray status`) and run the same command again: it resumes.",
        ) from error


def remote_error_summary(error: Exception) -> str:
    """Return the error as one line: the line after the first traceback's frames in Ray's message."""
    lines = str(error).splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    rest = lines[frames[0] :] if frames else []
    return next((line for line in rest if line and not line[0].isspace()), error_summary(error))


def find_own_error(error: BaseException) -> EsSbertError | None:
    """Find the EsSbertError that a remote call raised and Ray wrapped; None if the call raised another error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        # Ray makes a class that is both its own and the original's; the original is in `cause`.
        if isinstance(current, EsSbertError) and not isinstance(current, RayTaskError):
            return current
        waiting += [getattr(current, "cause", None), current.__cause__, current.__context__]
    return None


# Cores of an actor without a GPU. More cores share one model in memory, but scale a little worse than more actors.
_CORES_PER_WORKER = 4


@dataclass(frozen=True)
class RayWorkerPool:
    """The actors of a load.

    Attributes:
        count: Number of actors.
        threads: Threads of each encoder; on CUDA, concurrent batches.
        cpus, gpus: Resources of each actor.
    """

    count: int
    threads: int
    cpus: float
    gpus: float

    def fits(self, node: Mapping[str, float]) -> bool:
        """Whether an actor fits on a node with these resources."""
        return node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus

    def actor_pool(self, partitions: int) -> ActorPoolStrategy:
        """Create Ray Data's pool: an actor takes one partition at a time, so that fast actors take more of them."""
        return ActorPoolStrategy(size=min(self.count, max(partitions, 1)), max_tasks_in_flight_per_actor=1)


def choose_worker_pool(
    nodes: list[Mapping[str, float]], device: str, threads: int | None, count: int | None
) -> RayWorkerPool:
    """Choose one actor per GPU if the device allows it, else one per group of cores.

    Args:
        nodes: Resources of each live node, as Ray names them (`CPU`, `GPU`).
        device: `auto`, `cpu` or `cuda`.
        threads: Cores of an actor; None for the default.
        count: Number of actors; None for as many as fit.

    Raises:
        UsageError: the device is a numbered GPU, but Ray assigns GPUs.
        ClusterError: no node is large enough for an actor.
    """
    if ":" in device:
        raise UsageError("`device` names a GPU, but Ray assigns GPUs to workers", 'Set `device="cuda"`.')
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if device == "cuda" or (device == "auto" and gpus):
        cores = threads or CUDA_WORKERS
        fitting = sum(min(int(node.get("GPU", 0)), int(node.get("CPU", 0) // cores)) for node in nodes)
        return RayWorkerPool(_check_count(count, fitting, f"a GPU and {cores} CPUs"), cores, cores, 1)
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    cores = threads or max(1, min(_CORES_PER_WORKER, most))
    fitting = sum(int(node.get("CPU", 0) // cores) for node in nodes)
    return RayWorkerPool(_check_count(count, fitting, f"{cores} CPUs"), cores, cores, 0)


def _check_count(requested: int | None, fitting: int, what: str) -> int:
    if not fitting:
        raise ClusterError(
            f"no machine of the Ray cluster has {what} for a worker",
            "Check `ray status`, or set `threads` or `device`.",
        )
    if requested is not None and requested > fitting:
        raise ClusterError(
            f"the Ray cluster can run {fitting} workers of {what}, not {requested}", "Lower `ray_workers` or `threads`."
        )
    return requested or fitting


_MAX_LISTED_NODES = 5


def check_nodes(nodes: Sequence[Mapping[str, Any]], workers: RayWorkerPool, model: str, fingerprint: str) -> None:
    """Check that every node that may get a worker has the same es-sbert and the same model as this machine.

    Args:
        nodes: The live nodes, as `ray.nodes()` describes them.
        workers: Resources of a worker.
        model: The model's folder, hub id or installed name.
        fingerprint: Fingerprint of that model on this machine.

    Raises:
        ClusterError: a node has a different version or model, lacks one of them, or does not respond.
    """
    probe = ray.remote(_make_probe(__version__))
    answers = []
    for node in nodes:
        if workers.fits(node["Resources"]):
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = probe.options(num_cpus=0, scheduling_strategy=on_node).remote(model)
            answers.append((node["NodeManagerHostname"], answer))
    found = [(host, _probe_problem(answer, fingerprint)) for host, answer in answers]
    problems = [f"{host} {problem}" for host, problem in found if problem is not None]
    if problems:
        more = f"; and {len(problems) - _MAX_LISTED_NODES} more" if len(problems) > _MAX_LISTED_NODES else ""
        raise ClusterError(
            f"nodes of the Ray cluster have a different es-sbert or model than this machine (es-sbert {__version__}, "
            f"{model} = {fingerprint[:12]}): {'; '.join(problems[:_MAX_LISTED_NODES])}{more}",
            "Install one version of es-sbert and one model on all machines, or set `model` to a folder that they "
            "share, and run the same command again.",
        )


def _probe_problem(answer: Any, fingerprint: str) -> str | None:
    """Difference between a node and this machine, from the result of the probe; None if there is none."""
    try:
        version, node_fingerprint = get_result(answer)
    except ClusterError:
        raise
    except EsSbertError as error:
        return f"cannot open the model: {error.message}"
    except RayTaskError as error:
        return f"cannot run es-sbert: {remote_error_summary(error)}"
    return node_problem(version, node_fingerprint, fingerprint)


def node_problem(
    version: str | None, fingerprint: str | None, required_fingerprint: str, required_version: str = __version__
) -> str | None:
    """Difference between a node and this machine, as text that follows its name; None if there is none.

    Args:
        version: Version of es-sbert there; None if it is not installed.
        fingerprint: Fingerprint of the model there; None if the version differs.
    """
    if version is None:
        return "has no es-sbert in the Python that Ray uses there"
    if version != required_version:
        return f"has es-sbert {version}"
    return None if fingerprint == required_fingerprint else f"has the model {str(fingerprint)[:12]} under that name"


def _make_probe(required_version: str) -> Callable[[str], tuple[str | None, str | None]]:
    """Make the function that returns a node's es-sbert version and, if it is the required one, the fingerprint.

    A nested function is pickled as code, not by name, so that it runs on nodes without es-sbert; for the same reason it
    uses nothing of this module.
    """

    def probe(model: str) -> tuple[str | None, str | None]:
        try:
            from es_sbert import __version__ as version
        except ImportError:  # the caller names the node that lacks es-sbert
            return None, None
        if version != required_version:
            return version, None
        from es_sbert.bundle.model_lookup import resolve_model
        from es_sbert.bundle.sentence_model import read_sentence_model

        return version, read_sentence_model(resolve_model(model)).fingerprint

    return probe
