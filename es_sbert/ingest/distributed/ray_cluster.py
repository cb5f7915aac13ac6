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
from es_sbert.encoder.onnx_session import CUDA_WORKERS
from es_sbert.errors import ClusterError, EsSbertError, UsageError, error_summary
from es_sbert.messages import log_event

# Starts a cluster of this machine alone, for as long as the load takes.
LOCAL_CLUSTER = "local"
_CURRENT_CLUSTER = "auto"  # the one that this machine belongs to
_CONNECT_SECONDS = 10.0


class _RayOutputLogger(io.TextIOBase):
    """Takes what Ray prints, which is about its own processes: an event a line, nothing on standard output."""

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            log_event("ray", line, text="")
        return len(text)


@contextmanager
def ray_connection(address: str) -> Iterator[None]:
    """Be a driver of the cluster at an address: `host:port`, `auto` for the one that this machine belongs to, `local`.

    Raises:
        UsageError: an address of a Ray client's server.
        ClusterError: there is no cluster.
    """
    if address.startswith("ray://"):
        raise UsageError(
            "the state of a load stands on a machine of the cluster, which a Ray client is not",
            "Run the command on a machine that belongs to the cluster, with --ray auto.",
        )
    if address not in (LOCAL_CLUSTER, _CURRENT_CLUSTER):
        _check_port_open(address)
    # What concerns the load comes as an exception, and is then said in our words.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
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
        with redirect_stdout(_RayOutputLogger()):
            yield
    finally:
        ray.shutdown()


def _check_port_open(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_cluster_error(address, error) from error


def _no_cluster_error(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"there is no Ray cluster at {address}: {error_summary(error)}",
        "Start one (`ray start --head`, then `ray start --address HOST:6379` on each machine), or use --ray local.",
    )


def get_result(reference: Any) -> Any:
    """The answer behind a reference.

    Raises:
        EsSbertError: the remote call raised it.
        ClusterError: the process that should answer is gone.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise find_own_error(error) or error from None
    except RayError as error:
        raise ClusterError(
            f"a process of the load on the Ray cluster ended: {remote_error_summary(error)}",
            "Look at the cluster (`ray status`) and run the same command again: it goes on where it was.",
        ) from error


def remote_error_summary(error: Exception) -> str:
    """What went wrong, in one line: behind the frames of the first traceback, which Ray puts into its messages."""
    lines = str(error).splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    behind = lines[frames[0] :] if frames else []
    return next((line for line in behind if line and not line[0].isspace()), error_summary(error))


def find_own_error(error: BaseException) -> EsSbertError | None:
    """The error of ours that a remote call raised, wherever Ray has packed it; None where it was another."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        # Ray makes a class that is both its own and the original's; the original stands in `cause`.
        if isinstance(current, EsSbertError) and not isinstance(current, RayTaskError):
            return current
        waiting += [getattr(current, "cause", None), current.__cause__, current.__context__]
    return None


# Cores of an actor without a GPU: more share one model in memory, and scale a little worse than more actors.
_CORES_PER_WORKER = 4


@dataclass(frozen=True)
class RayWorkerPool:
    """The actors of a load.

    Attributes:
        count: How many.
        threads: Threads of each encoder; on CUDA its batches at a time.
        cpus, gpus: What each takes of its machine.
    """

    count: int
    threads: int
    cpus: float
    gpus: float

    def fit(self, node: Mapping[str, float]) -> bool:
        """Whether a machine with such resources may get one of them."""
        return node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus

    def strategy(self, parts: int) -> ActorPoolStrategy:
        """The pool of Ray Data: one part at a time, so that a fast worker takes what a slow one has not begun."""
        return ActorPoolStrategy(size=min(self.count, max(parts, 1)), max_tasks_in_flight_per_actor=1)


def choose_worker_pool(
    nodes: list[Mapping[str, float]], device: str, threads: int | None, count: int | None
) -> RayWorkerPool:
    """One actor a GPU where the device asks for it or may use it, else one a set of cores.

    Args:
        nodes: Resources of each machine that is alive, as Ray names them (`CPU`, `GPU`).
        device: `auto`, `cpu` or `cuda`.
        threads: Cores of an actor; None chooses.
        count: How many actors; None takes all that fit.

    Raises:
        UsageError: a numbered GPU, which is Ray's to choose.
        ClusterError: no machine has what an actor takes.
    """
    if ":" in device:
        raise UsageError("which GPU a worker gets is for Ray to say", "Give --device cuda.")
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if device == "cuda" or (device == "auto" and gpus):
        cores = threads or CUDA_WORKERS
        fitting = sum(min(int(node.get("GPU", 0)), int(node.get("CPU", 0) // cores)) for node in nodes)
        return RayWorkerPool(_check_count(count, fitting, f"a GPU and {cores} CPUs"), cores, cores, 1)
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    cores = threads or max(1, min(_CORES_PER_WORKER, most))
    fitting = sum(int(node.get("CPU", 0) // cores) for node in nodes)
    return RayWorkerPool(_check_count(count, fitting, f"{cores} CPUs"), cores, cores, 0)


def _check_count(asked: int | None, fitting: int, what: str) -> int:
    if not fitting:
        raise ClusterError(
            f"no machine of the Ray cluster has {what} for a worker",
            "Look at `ray status`, or give --threads or --device.",
        )
    if asked is not None and asked > fitting:
        raise ClusterError(
            f"the Ray cluster has room for {fitting} workers of {what}, not for {asked}",
            "Lower --ray-workers or --threads.",
        )
    return asked or fitting


# Of a large cluster where nothing is as it should be.
_MAX_LISTED_NODES = 5

RayNode = Mapping[str, Any]


@dataclass(frozen=True)
class NodeRequirements:
    """What every machine must have, as the machine has it where the command runs.

    Attributes:
        model: The model's folder, hub id or installed name.
        fingerprint: Of the model behind it.
        version: Of es-sbert.
    """

    model: str
    fingerprint: str
    version: str = __version__

    def problem(self, version: str | None, fingerprint: str | None) -> str | None:
        """What is wrong with what a machine has, behind the machine's name; None where nothing is.

        Args:
            version: None where it has no es-sbert.
            fingerprint: None where the version is another one.
        """
        if version is None:
            return "has no es-sbert for the Python that Ray runs there"
        if version != self.version:
            return f"has es-sbert {version}"
        return None if fingerprint == self.fingerprint else f"has the model {str(fingerprint)[:12]} under that name"


def check_nodes(nodes: Sequence[RayNode], workers: RayWorkerPool, wanted: NodeRequirements) -> None:
    """Make sure that every machine that may get a worker has the same es-sbert and the same model.

    Args:
        nodes: The machines that are alive, as `ray.nodes()` describes them.
        workers: What a worker takes of its machine.
        wanted: What they must have.

    Raises:
        ClusterError: some have another version, another model or none, or do not answer.
    """
    look = ray.remote(_make_probe(wanted.version))
    asked = [
        (
            node["NodeManagerHostname"],
            look.options(num_cpus=0, scheduling_strategy=_pin_to_node(node)).remote(wanted.model),
        )
        for node in nodes
        if workers.fit(node["Resources"])
    ]
    found = [(machine, _probe_problem(answer, wanted)) for machine, answer in asked]
    problems = [f"{machine} {problem}" for machine, problem in found if problem is not None]
    if problems:
        more = f"; and {len(problems) - _MAX_LISTED_NODES} more" if len(problems) > _MAX_LISTED_NODES else ""
        raise ClusterError(
            f"machines of the Ray cluster have not what this one has, es-sbert {wanted.version} and "
            f"{wanted.fingerprint[:12]} under the name {wanted.model}: {'; '.join(problems[:_MAX_LISTED_NODES])}{more}",
            "Install one version of es-sbert and one model on all machines, or give --model a folder that they share, "
            "and run the same command again.",
        )


def _pin_to_node(node: RayNode) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)


def _probe_problem(answer: Any, wanted: NodeRequirements) -> str | None:
    """What is wrong with a machine by its answer."""
    try:
        version, fingerprint = get_result(answer)
    except ClusterError:
        raise
    except EsSbertError as error:
        return f"cannot open the model: {error.message}"
    except RayTaskError as error:
        return f"cannot run es-sbert: {remote_error_summary(error)}"
    return wanted.problem(version, fingerprint)


def _make_probe(wanted: str) -> Callable[[str], tuple[str | None, str | None]]:
    """What is run on each machine: the version of es-sbert there and, where it is the wanted one, the fingerprint.

    A function within another travels as code, not as a name, so that it runs where es-sbert lacks it; for the same
    reason it uses nothing of this module.
    """

    def look(model: str) -> tuple[str | None, str | None]:
        try:
            from es_sbert import __version__ as found
        except ImportError:
            return None, None
        if found != wanted:
            return found, None
        from es_sbert.bundle.model_lookup import resolve_model
        from es_sbert.bundle.sentence_model import read_sentence_model

        return found, read_sentence_model(resolve_model(model)).fingerprint

    return look
