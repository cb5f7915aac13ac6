"""Bad arguments are `ValueError`s too, as Python programs expect, and no `except ValueError` of es-sbert hides one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import EsSbertError, ModelNotFound, RecipeInvalid, UsageError
from es_sbert.gateway.settings import GatewaySettings, Limits, SemanticSettings
from es_sbert.gateway.upstream import Upstream


def test_only_usage_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="is not a device") as raised:
        Encoder("all-MiniLM-L6-v2", device="gpu")
    assert isinstance(raised.value, EsSbertError)
    assert not issubclass(RecipeInvalid, ValueError)
    assert not issubclass(ModelNotFound, ValueError)


def test_a_usage_error_survives_copying_and_pickling_with_its_notes() -> None:
    error = UsageError("wrong", "Do it right.")
    error.add_note("twice")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), other.with_notes(), other.remedy) == (UsageError, "wrong (twice)", "Do it right.")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EngineSettings(username="me"), "must be given together"),
        (lambda: EngineSettings(api_key="a", token="b"), "cannot be combined"),
        (lambda: GatewaySettings.model_validate({"upstream": {"username": "me"}}), "must be given together"),
        (lambda: SemanticSettings(virtual_field="a b"), "virtual field"),
    ],
)
def test_usage_errors_of_validators_are_not_wrapped(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        build()
    assert type(raised.value) is UsageError


def test_the_gateway_takes_no_bad_request_for_a_bad_response() -> None:
    upstream = Upstream(EngineSettings(url="http://localhost:9200"), Limits())
    with pytest.raises(UsageError, match="not such a search"), upstream.parsing("GET /docs"):
        raise UsageError("not such a search", "Use another.")
