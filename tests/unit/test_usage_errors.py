"""Bad arguments are `ValueError`s too, as Python programs expect, and no `except ValueError` of es-sbert hides one."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert import SemanticIndex, adapt_model, calibrate_index, errors, evaluate_index, load_files
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import encode_json
from es_sbert.errors import EsSbertError, ModelNotFound, RecipeInvalid, RequestFailed, UsageError, WrongArgument
from es_sbert.exporters import export_model
from es_sbert.gateway.settings import GatewaySettings, Limits, ListenSettings, SemanticSettings, check_index_name
from es_sbert.gateway.upstream import Upstream
from tests.raised import raises, raises_as_recorded


def test_only_usage_errors_are_value_errors() -> None:
    with raises(ValueError, "device", "gpu") as raised:
        Encoder("all-MiniLM-L6-v2", device="gpu")
    assert isinstance(raised.value, EsSbertError)
    assert not issubclass(RecipeInvalid, ValueError)
    assert not issubclass(ModelNotFound, ValueError)


def test_a_usage_error_survives_copying_and_pickling_with_its_notes_and_data() -> None:
    letters = (letter for letter in "ab")
    for value, kept in ((["a", 3], ["a", 3]), (math.cos, math.cos), (letters, repr(letters))):
        error = WrongArgument("wrong", "Do it right.", setting="k", value=value)
        error.add_note("twice")
        for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (type(other), other.with_notes(), other.remedy) == (WrongArgument, "wrong (twice)", "Do it right.")
            assert (other.code, other.setting, other.value) == ("wrong_argument", "k", kept)


def test_each_error_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EsSbertError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert (errors.TlsFailed.code, RequestFailed("m", "r", 404).code) == ("tls_failed", "request_failed")


@pytest.mark.parametrize(
    ("build", "setting"),
    [
        (lambda: EngineSettings(username="me"), "username"),
        (lambda: EngineSettings(api_key="a", token="b"), None),
        (lambda: GatewaySettings.model_validate({"upstream": {"username": "me"}}), "username"),
        (lambda: SemanticSettings(virtual_field="a b"), "virtual_field"),
        (lambda: ListenSettings(allowed_hosts=("search.example/ui",)), "allowed_hosts"),
        (lambda: ListenSettings(key=Path("key.pem")), "key"),
        (lambda: encode_json({"query": {"term": {"id": 2**64}}}), None),
        (lambda: export_model("all-MiniLM-L6-v2", "bundle", []), "variants"),
        (lambda: check_index_name("Searches"), "search_log"),
    ],
)
def test_usage_errors_are_not_wrapped(build: Callable[[], object], setting: str | None) -> None:
    with raises(UsageError, setting) as raised:
        build()
    assert type(raised.value) is UsageError


@pytest.mark.parametrize(
    ("call", "setting", "value"),
    [
        (lambda: SemanticIndex("docs", "localhost:9200"), "engine", None),  # it may hold a password
        (lambda: SemanticIndex("docs", EngineSettings(url="localhost:9200")), "url", None),
        (lambda: load_files("docs", "/nope"), "files", "/nope"),
        (lambda: load_files("docs", "no-*.csv", delimiter=";"), "files", "no-*.csv"),
        (lambda: load_files("docs", (), delimiter=";"), "delimiter", ";"),
        (lambda: load_files("docs", retry="letters.jsonl", encoding="latin-1"), "encoding", "latin-1"),
        (lambda: calibrate_index("docs", queries="/nope"), "queries", "/nope"),
        (lambda: evaluate_index("docs", "/nope"), "judgements", "/nope"),
        (lambda: adapt_model("docs", "/nope", train_queries="/no"), "train_queries", "/no"),
        (lambda: EngineSettings(timeout="x"), "timeout", "x"),
        (lambda: EngineSettings(password=["x"]), "password", None),  # it is secret
        (lambda: EngineSettings(token_file="/nope"), "token_file", "/nope"),
        (lambda: Encoder("/"), "model", "/"),
        (lambda: Encoder("all-MiniLM-L6-v2", device="cpu").embed_query("\ud800"), "text", "\ud800"),
        (lambda: Encoder("all-MiniLM-L6-v2", device="cpu", precision="fp16"), "precision", "fp16"),
    ],
)
def test_an_error_names_the_keyword_of_its_caller(call: Callable[[], object], setting: str, value: object) -> None:
    with raises(EsSbertError, setting, value):
        call()


def test_the_gateway_takes_no_bad_request_for_a_bad_response() -> None:
    upstream = Upstream(EngineSettings(url="http://localhost:9200"), Limits())
    with raises_as_recorded(UsageError), upstream.parsing("GET /docs"):
        raise UsageError("not such a search", "Use another.")
