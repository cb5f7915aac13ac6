"""The configuration file gives defaults of connection options and --model, and no credentials to other addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from es_sbert.cli.config_profile import read_profile
from es_sbert.cli.options import connection_options, model_option
from es_sbert.errors import UsageError

FILE = """
model = "a-model"

[profiles.production]
url = "https://search.example:9200"
api_key_file = "keys/production"
timeout = 5

[profiles.local]
model = "/models/tuned"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ES_SBERT_URL", "ES_SBERT_MODEL", "ES_SBERT_PROFILE", "ES_SBERT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    monkeypatch.setenv("ES_SBERT_CONFIG", str(path))
    return path


def options_of(*args: str, profile: str | None = None) -> dict[str, Any]:
    """What a command sees of its options."""
    seen: dict[str, Any] = {}

    @click.command()
    @connection_options
    @model_option
    def command(**given: Any) -> None:
        seen.update(given)

    result = CliRunner().invoke(command, args, obj=read_profile(profile), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def test_profile_gives_defaults_with_paths_relative_to_the_file(file: Path) -> None:
    given = options_of(profile="production")
    assert (given["url"], given["model"], given["timeout"]) == ("https://search.example:9200", "a-model", 5.0)
    assert given["api_key_file"] == file.parent / "keys/production"
    assert given["username"] is None


def test_profile_overrides_top_level_settings(file: Path) -> None:
    assert options_of()["model"] == "a-model"
    assert options_of()["url"] == "http://localhost:9200"
    assert options_of(profile="local")["model"] == "/models/tuned"


def test_command_line_and_environment_override_the_profile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_MODEL", "of-the-environment")
    monkeypatch.setenv("ES_SBERT_TIMEOUT", "7")
    given = options_of("--model", "typed", profile="production")
    assert (given["model"], given["timeout"]) == ("typed", 7.0)
    assert options_of(profile="production")["model"] == "of-the-environment"


@pytest.mark.parametrize("in_environment", [False, True])
def test_profile_credentials_are_not_used_with_another_url(
    file: Path, in_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "http://elsewhere.example:9200"
    if in_environment:
        monkeypatch.setenv("ES_SBERT_URL", other)
    # Wherever the address stands among the options.
    given = options_of(*([] if in_environment else ["--model", "m", "--url", other]), profile="production")
    assert (given["url"], given["api_key_file"], given["timeout"]) == (other, None, 60.0)
    same = options_of("--url", "https://search.example:9200", profile="production")
    assert same["api_key_file"] == file.parent / "keys/production"


def test_profile_lists_the_addresses_of_a_cluster(file: Path) -> None:
    file.write_text('url = ["http://a:9200", "http://b:9200"]\nusername = "anna"')
    given = options_of()
    assert (given["url"], given["username"]) == ("http://a:9200,http://b:9200", "anna")
    # Each of them is the profile's address, in any order; another one is not.
    assert options_of("--url", "http://b:9200")["username"] == "anna"
    assert options_of("--url", "http://b:9200,http://a:9200")["username"] == "anna"
    assert options_of("--url", "http://a:9200,http://c:9200")["username"] is None


def test_password_in_any_typed_address_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="a command line is public") as refused:
        options_of("--url", "http://a:9200,http://anna:hunter2@b:9200")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("modl = 'x'", "Did you mean model?"),
        ("api_key = 'k3y'", 'api_key_file = "FILE"'),
        ("keyring = 'search'", "api_key_file"),
        ("sniff = true", "set `url` to the addresses of several nodes"),
        ("timeout = -1", "timeout"),
        ("url = 1", "url"),
        ("url = []", "url"),
        ("url = [1]", "url"),
        ("profiles = 1", "profiles must be tables"),
        ("url =", "cannot be read"),
        ("\udcff", "cannot be read"),
    ],
)
def test_invalid_profile_file_is_rejected(file: Path, content: str, said: str) -> None:
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as refused:
        read_profile(None)
    assert said in str(refused.value)
    assert "k3y" not in str(refused.value)


def test_missing_profile_error_lists_existing_ones(file: Path) -> None:
    with pytest.raises(UsageError, match="has no profile staging") as refused:
        read_profile("staging")
    assert refused.value.remedy == "It has local, production."


def test_configuration_file_is_optional_unless_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ES_SBERT_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_profile(None).model_dump(exclude_none=True) == {}
    with pytest.raises(UsageError, match="no configuration file"):
        read_profile("production")
    (tmp_path / "es-sbert").mkdir()
    (tmp_path / "es-sbert/config.toml").write_text(FILE)
    assert read_profile("local").model == "/models/tuned"
    monkeypatch.setenv("ES_SBERT_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(UsageError, match=r"gone\.toml"):
        read_profile(None)
