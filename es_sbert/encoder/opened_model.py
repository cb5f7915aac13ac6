"""`OpenedModel`: opens a model again in a forked process and as the copy of a pickle, for `Encoder` and `Reranker`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from es_sbert.bundle.bundle import EncoderBundle, RerankerBundle
from es_sbert.config import expand_home
from es_sbert.encoder.model_loading import SelectedVariant
from es_sbert.errors import DeviceError, ModelError
from es_sbert.forks import leave_to_parent, renew_after_fork
from es_sbert.messages import log_event
from es_sbert.runtime.inference_pool import InferencePool, model_closed

BundleT = TypeVar("BundleT", bound=EncoderBundle | RerankerBundle)
ModelT = TypeVar("ModelT", bound="OpenedModel")


class OpenedModel:
    """A model, with the threads and sessions that run it."""

    def _hold(self, opening: Callable[[], Self], selected: SelectedVariant[BundleT], pool: InferencePool) -> None:
        """Hold an opened variant.

        Args:
            opening: Opens the model again, in the same way.
        """
        self._opening = opening
        self._selected = selected
        self._pool = pool
        self.is_closed = self._is_inherited = False
        self._reopening = threading.Lock()
        renew_after_fork(self, OpenedModel._inherit)

    def _inherit(self) -> None:
        self._is_inherited = True
        self._reopening = threading.Lock()
        leave_to_parent(self._pool)

    def _own_pool(self) -> InferencePool:
        """Return a pool of this process, which opens the model again if it was forked since.

        Raises:
            UsageError: the model is closed.
            DeviceError: the model runs on CUDA, which a forked process cannot use, or only on OpenVINO.
            ModelError: the model cannot be opened again.
        """
        if self._is_inherited:
            with self._reopening:
                if self._is_inherited:
                    self._open_again()
        return self._pool

    def _open_again(self) -> None:
        if self.is_closed:
            raise model_closed()
        device, warnings = self._selected.device, self._selected.warnings
        if device.kind == "cuda":
            raise DeviceError(
                f"the model was opened on {device} before this process was forked, and CUDA cannot be used in it",
                "Open the model after the fork (gunicorn without preloading), or start processes with `spawn`.",
            )
        vars(self).update(vars(_open_same(self._opening, self._fingerprint, "this process was forked")))
        for warning in set(self._selected.warnings) - set(warnings):
            log_event("model_opened_again", warning, logging.WARNING)

    @property
    def _fingerprint(self) -> str:
        return self._selected.bundle.model.fingerprint

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Callable[[], Self], str, str]]:
        return _open_same, (self._opening, self._fingerprint, "it was pickled")

    def close(self) -> None:
        """End the worker threads."""
        self.is_closed = True
        if not self._is_inherited:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lasting_path(model: str | Path) -> str | Path:
    """Return a model so that another process, in another working directory, finds it."""
    folder = expand_home(str(model))
    return folder.absolute() if isinstance(model, Path) or (model and folder.is_dir()) else model


def _open_same(opening: Callable[[], ModelT], fingerprint: str, event: str) -> ModelT:
    """Open a model again.

    Args:
        fingerprint: Its fingerprint when it was opened.
        event: What happened since: `it was pickled`.

    Raises:
        ModelError: there is another model of that name now, or none.
        DeviceError, UsageError: as when it was opened.
    """
    opened = opening()
    model = opened._selected.bundle.model
    if opened._fingerprint != fingerprint:
        raise ModelError(
            f"{model.name} is another model here than where {event}: its fingerprint is {opened._fingerprint}, not "
            f"{fingerprint}",
            f"Copy the model to this machine, in place of {model.folder}.",
        )
    return opened
