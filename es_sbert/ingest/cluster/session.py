"""A connection to a Ray cluster, and its failures in our own words."""

from __future__ import annotations

import io
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import ray
from ray.data import DataContext
from ray.exceptions import RayError, RayTaskError

from es_sbert.errors import ClusterError, EsSbertError, UsageError, first_line
from es_sbert.events import record

# Starts a cluster of this machine alone, for as long as the load takes.
LOCAL = "local"
_OWN = "auto"  # the one that this machine belongs to
_SECONDS = 10.0


class _Recorded(io.TextIOBase):
    """Takes what Ray prints, which is about its own processes: an event a line, nothing on standard output."""

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            record("ray", line, text="")
        return len(text)


@contextmanager
def connected(address: str) -> Iterator[None]:
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
    if address not in (LOCAL, _OWN):
        _check_that_something_listens(address)
    # What concerns the load comes as an exception, and is then said in our words.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        ray.init(
            address=None if address == LOCAL else address, logging_level=logging.CRITICAL, log_to_driver=False,
            include_dashboard=False if address == LOCAL else None,
        )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise _no_cluster(address, error) from error
    try:
        with redirect_stdout(_Recorded()):
            yield
    finally:
        ray.shutdown()


def _check_that_something_listens(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"there is no Ray cluster at {address}: {first_line(error)}",
        "Start one (`ray start --head`, then `ray start --address HOST:6379` on each machine), or use --ray local.",
    )


def fetched(reference: Any) -> Any:
    """The answer behind a reference.

    Raises:
        EsSbertError: the remote call raised it.
        ClusterError: the process that should answer is gone.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise own_error(error) or error from None
    except RayError as error:
        raise ClusterError(
            f"a process of the load on the Ray cluster ended: {reason_of(error)}",
            "Look at the cluster (`ray status`) and run the same command again: it goes on where it was.",
        ) from error


def reason_of(error: Exception) -> str:
    """What went wrong, in one line: behind the frames of the first traceback, which Ray puts into its messages."""
    lines = str(error).splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    behind = lines[frames[0] :] if frames else []
    return next((line for line in behind if line and not line[0].isspace()), first_line(error))


def own_error(error: BaseException) -> EsSbertError | None:
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
