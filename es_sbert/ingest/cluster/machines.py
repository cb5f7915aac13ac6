"""What is installed on the machines of a cluster, looked at before a load writes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from es_sbert import __version__
from es_sbert.errors import ClusterError, EsSbertError
from es_sbert.ingest.cluster.session import fetched, reason_of
from es_sbert.ingest.cluster.workers import Workers

# Of a large cluster where nothing is as it should be.
_MOST_NAMED = 5

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
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


def check_machines(nodes: Sequence[Node], workers: Workers, wanted: Wanted) -> None:
    """Make sure that every machine that may get a worker has the same es-sbert and the same model.

    Args:
        nodes: The machines that are alive, as `ray.nodes()` describes them.
        workers: What a worker takes of its machine.
        wanted: What they must have.

    Raises:
        ClusterError: some have another version, another model or none, or do not answer.
    """
    look = ray.remote(_looking(wanted.version))
    asked = [
        (node["NodeManagerHostname"], look.options(num_cpus=0, scheduling_strategy=_only(node)).remote(wanted.model))
        for node in nodes
        if workers.fit(node["Resources"])
    ]
    found = [(machine, _problem(answer, wanted)) for machine, answer in asked]
    problems = [f"{machine} {problem}" for machine, problem in found if problem is not None]
    if problems:
        more = f"; and {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
        raise ClusterError(
            f"machines of the Ray cluster have not what this one has, es-sbert {wanted.version} and "
            f"{wanted.fingerprint[:12]} under the name {wanted.model}: {'; '.join(problems[:_MOST_NAMED])}{more}",
            "Install one version of es-sbert and one model on all machines, or give --model a folder that they share, "
            "and run the same command again.",
        )


def _only(node: Node) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)


def _problem(answer: Any, wanted: Wanted) -> str | None:
    """What is wrong with a machine by its answer."""
    try:
        version, fingerprint = fetched(answer)
    except ClusterError:
        raise
    except EsSbertError as error:
        return f"cannot open the model: {error.message}"
    except RayTaskError as error:
        return f"cannot run es-sbert: {reason_of(error)}"
    return wanted.problem(version, fingerprint)


def _looking(wanted: str) -> Callable[[str], tuple[str | None, str | None]]:
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
        from es_sbert.bundle.checkpoint import read_model
        from es_sbert.bundle.resolve import resolve_model

        return found, read_model(resolve_model(model)).fingerprint

    return look
