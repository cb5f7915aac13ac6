"""Why a document gets no vector: the error that the caller sees, and the details for the log.

Names, paths and fingerprints of models come from mappings that the caller may not be allowed to read.
"""

from __future__ import annotations

from es_sbert.errors import EngineError, EsSbertError, ModelError, Overloaded


class UnknownTextError(ModelError):
    """The mapping does not say which text a vector field is made of."""

    def __init__(self) -> None:
        super().__init__(
            "the text of a vector field of the index is not known, so its vector cannot be made",
            "State the text by `es-sbert index create INDEX --text-field FIELD`, load documents once by `es-sbert "
            "ingest`, or send documents with their vectors.",
        )

    def __reduce__(self) -> tuple[type[UnknownTextError], tuple[()]]:  # type: ignore[override]
        return type(self), ()


def public_model_error(error: EsSbertError) -> EsSbertError:
    """What the caller is told of a model that cannot be used."""
    return _without_details(error, "the model of the vector field cannot be loaded by the gateway")


def public_mapping_error(error: EsSbertError) -> EsSbertError:
    """What the caller is told of a mapping that cannot be read."""
    return _without_details(error, "the mapping of the index does not describe its vector fields correctly")


def log_detail(error: EsSbertError) -> str:
    """The whole of an error for the log."""
    told = error.__cause__ if isinstance(error.__cause__, EsSbertError) else error
    return f"{told.message}. {told.remedy}"


def _without_details(error: EsSbertError, message: str) -> EsSbertError:
    # Clients send the same again after 429, 502 and 503: nothing is wrong with what they sent.
    if isinstance(error, Overloaded | EngineError):
        return error
    refusal = ModelError(message, "The gateway's log says why.")
    refusal.__cause__ = error
    return refusal
