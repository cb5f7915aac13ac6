"""The API answers as its own description says, whatever is sent (schemathesis)."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode

from es_sbert.gateway.openai_api import EmbeddingsRequest
from es_sbert.gateway.settings import EmbeddingsApiSettings
from tests.gateway import patient

OPERATIONS = ("embed", "listModels", "getModel", "describe", "live", "ready", "metrics")


@pytest.fixture(scope="module")
def operations(embeddings_url: str) -> dict[str, Any]:
    """The API's operations by name."""
    document = patient.get(f"{embeddings_url}/v1/openapi.json").json()
    # How long vectors are depends on the model; the description cannot know it.
    document["components"]["schemas"]["EmbeddingsRequest"]["properties"]["dimensions"]["enum"] = [*range(1, 17), None]
    schema = schemathesis.openapi.from_dict(document)
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


@pytest.mark.parametrize(
    # Nothing can be wrong about requests without a body or parameters.
    ("name", "mode"),
    [*((name, GenerationMode.POSITIVE) for name in OPERATIONS), ("embed", GenerationMode.NEGATIVE)],
)
def test_responses_match_openapi_schema(operations: dict[str, Any], embeddings_url: str, name: str, mode: Any) -> None:
    """Of requests that the description allows and of those that it does not."""

    @settings(max_examples=60 if name == "embed" else 5, suppress_health_check=list(HealthCheck))
    @given(case=operations[name].as_strategy(generation_mode=mode))
    def answered_as_described(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=embeddings_url, timeout=60)

    answered_as_described()


def test_every_operation_is_tested(operations: dict[str, Any]) -> None:
    assert set(operations) == set(OPERATIONS)


def test_openapi_schema_matches_code_limits(embeddings_url: str) -> None:
    document = patient.get(f"{embeddings_url}/v1/openapi.json").json()
    request = document["components"]["schemas"]["EmbeddingsRequest"]
    read = EmbeddingsRequest.model_json_schema()["properties"]
    assert request["properties"].keys() == read.keys()
    assert set(request["properties"]["input_type"]["enum"]) == {*read["input_type"]["anyOf"][0]["enum"], None}
    assert request["properties"]["input"]["anyOf"][1]["maxItems"] == EmbeddingsApiSettings().max_texts
    for part in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(part)
