"""Every error that es-sbert reports to a user, in one tree.

    EsSbertError
    ├── UsageError                 contradictory or invalid settings, or a missing extra; also a ValueError
    │   ├── WrongArgument          an argument of another type, or an unknown keyword; also a TypeError
    │   └── RequestTooLarge        a request body above the gateway's limit
    ├── ModelError
    │   ├── ModelNotFound          no folder, installed package, registered model or hub repository with that name
    │   ├── BundleInvalid          a model folder that is incomplete, unsafe or was edited by hand
    │   ├── RegistryInvalid        the file of registered models cannot be read
    │   ├── UnsupportedArchitecture
    │   ├── UnsupportedSetting     a setting of a model folder that may change vectors and is not applied
    │   └── ParityFailed           an exported graph does not reproduce the model's vectors
    ├── DeviceError                the requested device is not available
    ├── EngineError
    │   ├── EngineUnreachable      no answer at the URL
    │   │   ├── HostUnknown        the host name cannot be resolved
    │   │   └── TlsFailed          an untrusted certificate, or a server without TLS
    │   ├── AccessDenied           401 or 403
    │   ├── UnsupportedEngine      neither Elasticsearch nor OpenSearch
    │   │   ├── EngineTooOld       a version that es-sbert does not support
    │   │   └── FeatureMissing     the engine lacks a module that the request needs (also a RequestFailed)
    │   ├── RequestFailed          the engine responded with an error, or only for some of the shards
    │   │   └── PointInTimeLost    a point in time is gone; its reader opens another one
    │   └── LocalEngineError       `es-sbert engine` cannot install, start or stop a server
    ├── VectorIndexError
    │   ├── IndexMissing           also a NotFoundError (HTTP 404)
    │   ├── IndexMismatch          other dimensions, another model, or no vector field
    │   │   └── CosinesOverlap     a minimum cosine would not separate relevant documents from others
    │   └── DocumentsAltered       the engine stores documents that differ from what was sent
    ├── TrainingError
    │   ├── RecipeInvalid          unknown or contradictory settings in a recipe
    │   ├── TrainingDiverged       the loss or a gradient is not a finite number
    │   ├── OutOfMemory            a batch does not fit into memory
    │   └── CheckpointInvalid      no checkpoint to resume from, or one of another recipe
    ├── ClusterError               a Ray cluster cannot be used
    ├── DownloadFailed             a package cannot be fetched, or is not the file that it should be
    ├── Overloaded                 the gateway receives more than it can handle
    ├── SourceError                input that cannot be read at all
    └── OutputError                an output file that cannot be written

Programs read the class or its `code`, and `setting` and `value` of what is wrong. Errors of an engine carry its
response, too: `status`, `type`, `body` and `request`. For people, each error has a `remedy`: what to do next, in one or
two sentences. The command line prints message and remedy and exits with code 2; these errors are never shown as a
traceback.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self


class EsSbertError(Exception):
    """Base of all errors that a user can fix.

    Usage:
        ```python
        try:
            SemanticIndex("no-such-index", "http://localhost:9200")
        except EsSbertError as error:
            print(error.code, error.message, error.remedy)
        ```

    Attributes:
        code: The class in snake case, such as `index_missing`; it does not change with the words of the message.
        message: The problem, naming the file, index, setting or address concerned.
        remedy: Advice on what to do next.
        setting: The keyword argument that is wrong; None if no single one is.
        value: What was given for it.
    """

    code: ClassVar[str] = "es_sbert_error"
    message: str
    remedy: str
    setting: str | None
    value: object

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, remedy: str, *, setting: str | None = None, value: object = None) -> None:
        """`es_sbert.messages.setting` spells the settings in message and remedy."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.setting = setting
        self.value = value

    def about(self, setting: str | None, value: object = None) -> Self:
        """Add setting and value, like `with_traceback` of exceptions: `raise UsageError(…).about("k", k)`."""
        self.setting, self.value = setting, value
        return self

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}"

    def with_notes(self) -> str:
        """The message, followed by notes from `add_note` in parentheses."""
        notes = getattr(self, "__notes__", [])
        return f"{self.message} ({'; '.join(notes)})" if notes else self.message

    def __reduce__(self) -> tuple[type[EsSbertError], tuple[str, str], dict[str, object]]:
        # Exceptions with two required arguments do not survive pickling (worker processes) by default.
        state = vars(self)
        try:
            pickle.dumps(self.value)
        except Exception:  # of any class; the error matters more than an open file that was given
            state = state | {"value": repr(self.value)}
        return type(self), (self.message, self.remedy), state


@contextmanager
def renamed_setting(inside: str, outside: str) -> Iterator[None]:
    """Errors of the block, or of a function that this decorates, name the keyword of its caller."""
    try:
        yield
    except EsSbertError as error:
        error.setting = outside if error.setting == inside else error.setting
        raise


@contextmanager
def about_setting(setting: str, value: object, kind: type[EsSbertError]) -> Iterator[None]:
    """Errors of this kind in the block are about a setting, unless they name one themselves."""
    try:
        yield
    except kind as error:
        if not error.setting:
            error.about(setting, value)
        raise


def error_summary(error: Exception) -> str:
    """The message of another library's exception on one line; its type if it has no message."""
    from pydantic import ValidationError  # most programs see no such error

    if isinstance(error, ValidationError):  # its first line says only how many problems there are
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc'])) or 'the object'}: {problem['msg']}"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class UsageError(EsSbertError, ValueError):
    """Settings are invalid, contradict each other or make no sense together."""


class WrongArgument(UsageError, TypeError):
    """An argument of a function has the wrong type, or a keyword is unknown."""


class RequestTooLarge(UsageError):
    """The body of a request is larger than the gateway accepts."""


class ModelError(EsSbertError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """No folder, installed model package, registered model or hub repository has that name."""


class BundleInvalid(ModelError):
    """A model folder is incomplete, broken, unsafe (pickle) or was edited by hand."""


class RegistryInvalid(ModelError):
    """The file of registered models is broken, or not accessible to this user."""


class UnsupportedArchitecture(ModelError):
    """No graph can be built from the weights of this transformer."""


class UnsupportedSetting(ModelError):
    """A model folder has a setting that may change vectors, and that es-sbert does not apply."""


class ParityFailed(ModelError):
    """An exported graph does not reproduce the model's vectors within its thresholds."""


class DeviceError(EsSbertError):
    """The requested device is not available."""


class _EngineResponse(EsSbertError):
    """An error with the engine's response, if there was one.

    Attributes:
        status: HTTP status of the response, also of one item of a bulk request; 0 without a response.
        type: The engine's name for the error, such as `index_not_found_exception`; empty if it gave none.
        body: The response, parsed if it is JSON.
        request: Method and path, such as `POST /docs/_search`.
    """

    status: int = 0
    type: str = ""
    body: Any = None
    request: str = ""

    @property
    def status_code(self) -> int:
        """`status`, as elasticsearch-py calls it."""
        return self.status

    @property
    def error(self) -> str:
        """`type`, as elasticsearch-py calls it."""
        return self.type


class NotFoundError(_EngineResponse):
    """There is no index or document with that name, as in elasticsearch-py."""

    status = 404


class EngineError(_EngineResponse):
    """A search engine cannot be used."""


class EngineUnreachable(EngineError):
    """Nothing answers at the address."""


class HostUnknown(EngineUnreachable):
    """The host name of the address cannot be resolved."""


class TlsFailed(EngineUnreachable):
    """The server's certificate is not trusted, or the server does not speak TLS."""


class AccessDenied(EngineError):
    """The engine refused the credentials (401) or the action (403)."""


class UnsupportedEngine(EngineError):
    """The server is neither Elasticsearch nor OpenSearch, or lacks a required feature."""


class EngineTooOld(UnsupportedEngine):
    """The version of the server is too old."""


class RequestFailed(EngineError):
    """The engine responded to a request with an error."""

    def __init__(self, message: str, remedy: str, status: int = 0) -> None:
        super().__init__(message, remedy)
        self.status = status


class PointInTimeLost(RequestFailed):
    """A point in time has expired, or was lost with its node."""


class FeatureMissing(UnsupportedEngine, RequestFailed):
    """The engine was built without a module that the request needs.

    Attributes:
        module: Name of the module, as `GET _nodes/plugins` lists it.
    """

    module: str

    def __init__(self, message: str, remedy: str, status: int = 0, module: str = "") -> None:
        super().__init__(message, remedy, status)
        self.module = module


class LocalEngineError(EngineError):
    """`es-sbert engine` cannot install, start or stop a server."""


class VectorIndexError(EsSbertError):
    """An index does not fit the request."""


class IndexMissing(VectorIndexError, NotFoundError):
    """There is no index or alias with that name."""

    type = "index_not_found_exception"


class IndexMismatch(VectorIndexError):
    """The index has other dimensions, another model's vectors, or no vector field."""


class CosinesOverlap(IndexMismatch):
    """No minimum cosine separates relevant documents of an index from others.

    Attributes:
        calibration: The figures, a `Calibration`.
    """

    calibration: Any = None


class DocumentsAltered(VectorIndexError):
    """The engine stores documents that differ from what was sent, by an ingest pipeline for example."""


class TrainingError(EsSbertError):
    """A training run cannot start or continue."""


class RecipeInvalid(TrainingError):
    """A recipe has unknown, missing or contradictory settings."""


class TrainingDiverged(TrainingError):
    """The loss or a gradient is not a finite number."""


class OutOfMemory(TrainingError):
    """A batch does not fit into the device's memory."""


class CheckpointInvalid(TrainingError):
    """There is no checkpoint to resume from, it is damaged, or it belongs to another recipe."""


class DownloadFailed(EsSbertError):
    """A package cannot be fetched from its registry, or is not the file that it should be."""


class ClusterError(EsSbertError):
    """A Ray cluster cannot be used."""


class Overloaded(EsSbertError):
    """The gateway receives more requests than it can handle; retry later."""


class SourceError(EsSbertError):
    """Input that cannot be read at all (a single bad document is a dead letter, not an error)."""


class OutputError(EsSbertError):
    """An output file (dead letters, vectors, temporary data) cannot be written."""


def require_extra(extra: str, *modules: str) -> None:
    """Check that the modules of an extra are installed, before a command needs them.

    Args:
        extra: Name of the extra in pyproject.toml.
        modules: Top-level modules of the extra.

    Raises:
        UsageError: a module is missing.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        # Imported here because most commands do not need it.
        from es_sbert.installation import install_extra_command

        raise UsageError(
            f"this needs {', '.join(missing)}, which a plain installation does not include",
            f"Install it: {install_extra_command(extra)}",
        )


_OWN = {name: value for name, value in globals().items() if getattr(value, "__module__", "") == __name__}
__all__ = [name for name, value in _OWN.items() if isinstance(value, type) and not name.startswith("_")]
