"""Renew what a forked process cannot use: it lacks its parent's threads, and shares its parent's sockets."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_renewals: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def renew_after_fork(owner: T, renew: Callable[[T], None]) -> None:
    """Call `renew(owner)` in each process that is forked from now on, before any other code runs there.

    Servers fork after they have opened a model (`gunicorn --preload`), and so do Celery and `multiprocessing`.

    Args:
        owner: Held weakly.
        renew: Replaces locks, threads and connections. It must not wait for anything, nor hold `owner`.
    """
    _renewals[owner] = renew


def leave_to_parent(inherited: object) -> None:
    """Never end an object that a forked process has from its parent.

    The destructors of OpenVINO and CUDA wait for threads that do not exist in the forked process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew_all)
