"""Secrets from the environment and files; none of them ever in a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.errors import UsageError

SECRET = "hunter2-öß"


@pytest.fixture(autouse=True)
def no_connection_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EngineSettings.model_fields:
        monkeypatch.delenv(f"ES_SBERT_{name.upper()}", raising=False)


def value(secret: Any) -> str | None:
    return None if secret is None else secret.get_secret_value()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
@pytest.mark.parametrize("name", ["api_key", "password", "token"])
def test_secret_file_is_stripped_of_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ending: str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes((SECRET + ending).encode())
    more = {"username": "anna"} if name == "password" else {}
    assert value(getattr(EngineSettings(**{f"{name}_file": file}, **more), name)) == SECRET
    monkeypatch.setenv(f"ES_SBERT_{name.upper()}_FILE", str(file))
    assert value(getattr(EngineSettings(**more), name)) == SECRET


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must contain one line of UTF-8 text"),
        (b"\n", "must contain one line of UTF-8 text"),
        (b"hunter2\nhunter3\n", "must contain one line of UTF-8 text"),
        (b"x" * 100_000, "must contain one line of UTF-8 text"),
        (b"hunter2\xff", "one line of UTF-8 text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_invalid_secret_file_is_rejected_without_echo(tmp_path: Path, data: bytes | None, message: str) -> None:
    file = tmp_path / "secret"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(UsageError, match=message) as caught:
        EngineSettings(api_key_file=file)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in repr(error)
        error = error.__cause__ or error.__context__


def test_secret_given_twice_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with pytest.raises(UsageError, match="set twice") as caught:
        EngineSettings(token=SECRET, token_file=tmp_path / "secret")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"api_key": SECRET, "username": "anna", "password": SECRET},
        {"api_key": SECRET, "token": SECRET},
        {"token": SECRET, "username": "anna", "password": SECRET},
        {"username": "anna"},
        {"password": SECRET},
    ],
    ids=str,
)
def test_conflicting_credentials_are_rejected(given: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        EngineSettings(**given)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_empty_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EngineSettings.model_fields:
        monkeypatch.setenv(f"ES_SBERT_{name.upper()}", "")
    settings = EngineSettings(username="anna", password=SECRET)
    assert (settings.api_key, settings.token, settings.timeout) == (None, None, 60.0)


@pytest.mark.parametrize("name", ["sniff", "keyring", "fingerprint"])
def test_a_setting_of_an_earlier_version_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"no setting {name}"):
        EngineSettings(**{name: "x"})
    monkeypatch.setenv(f"ES_SBERT_{name.upper()}", "x")
    with pytest.raises(UsageError, match=f"ES_SBERT_{name.upper()}"):
        EngineSettings()


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    for given in ({"api_key": SECRET}, {"token": SECRET}, {"username": "anna", "password": SECRET}):
        assert SECRET not in repr(EngineSettings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["false", "False", "0", "no", "off", ""])
def test_removed_settings_that_are_off_are_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ES_SBERT_SNIFF", value)
    assert EngineSettings(url="http://localhost:9200").url == "http://localhost:9200"
