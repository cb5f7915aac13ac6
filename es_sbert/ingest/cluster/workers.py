"""How many actors a cluster gives a load, and what each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ray.data import ActorPoolStrategy

from es_sbert.encoder.encoder import CUDA_WORKERS
from es_sbert.errors import ClusterError, UsageError

# Cores of an actor without a GPU: more share one model in memory, and scale a little worse than more actors.
_CORES = 4


@dataclass(frozen=True)
class Workers:
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


def choose_workers(nodes: list[Mapping[str, float]], device: str, threads: int | None, count: int | None) -> Workers:
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
        return Workers(_checked(count, fitting, f"a GPU and {cores} CPUs"), cores, cores, 1)
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    cores = threads or max(1, min(_CORES, most))
    fitting = sum(int(node.get("CPU", 0) // cores) for node in nodes)
    return Workers(_checked(count, fitting, f"{cores} CPUs"), cores, cores, 0)


def _checked(asked: int | None, fitting: int, what: str) -> int:
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
