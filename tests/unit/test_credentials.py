"""Secrets from the environment and files; none of them ever in a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.errors import UsageError
from tests.raised import raises_as_recorded

SECRET = "hunter2-öß"


@pytest.fixture(autouse=True)
def no_connection_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EngineSettings.model_fields:
        monkeypatch.delenv(f"ES_SBERT_{name.upper()}", raising=False)


@pytest.mark.parametrize(("name", "ending"), [("api_key", ""), ("password", "\n"), ("token", "\r\n")])
def test_secret_file_is_stripped_of_line_ends_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ending: str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes((SECRET + ending).encode())
    more: dict[str, Any] = {"username": "anna"} if name == "password" else {}
    settings = EngineSettings(**{f"{name}_file": file}, **more)
    assert getattr(settings, name).get_secret_value() == SECRET
    assert SECRET not in repr(settings)
    monkeypatch.setenv(f"ES_SBERT_{name.upper()}_FILE", str(file))
    assert getattr(EngineSettings(**more), name).get_secret_value() == SECRET
    with raises_as_recorded(UsageError) as caught:
        EngineSettings(**{name: SECRET}, **more)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("data", [b"\n", b"hunter2\nhunter3\n", b"hunter2\xff", None])
def test_invalid_secret_file_is_rejected_without_echo(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "secret"
    if data is not None:
        file.write_bytes(data)
    with raises_as_recorded(UsageError) as caught:
        EngineSettings(api_key_file=file)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "given",
    [
        {"api_key": SECRET, "username": "anna", "password": SECRET},
        {"api_key": SECRET, "token": SECRET},
        {"username": "anna"},
        {"password": SECRET},
    ],
    ids=str,
)
def test_conflicting_credentials_are_rejected(given: dict[str, str]) -> None:
    with raises_as_recorded(UsageError) as caught:
        EngineSettings(**given)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_empty_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EngineSettings.model_fields:
        monkeypatch.setenv(f"ES_SBERT_{name.upper()}", "")
    settings = EngineSettings(username="anna", password=SECRET)
    assert (settings.api_key, settings.token, settings.timeout) == (None, None, 60.0)


def test_a_setting_of_an_earlier_version_is_refused_unless_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_as_recorded(UsageError):
        EngineSettings(sniff="x")  # type: ignore[call-arg]
    for value in ("false", "0", "no", ""):
        monkeypatch.setenv("ES_SBERT_SNIFF", value)
        assert EngineSettings(url="http://localhost:9200").url == "http://localhost:9200"
    monkeypatch.setenv("ES_SBERT_SNIFF", "x")
    with raises_as_recorded(UsageError):
        EngineSettings()
