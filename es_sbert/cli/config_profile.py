"""The configuration file: default values for the connection options and `--model`, by profile.

    model = "all-MiniLM-L6-v2"             # for every profile, and without one

    [profiles.production]
    url = "https://search.example:9200"    # or a list of the nodes of one cluster
    api_key_file = "production.key"        # relative to this file

Command-line options take precedence over environment variables, and those over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from pydantic import BaseModel, Field, ValidationError, field_validator

from es_sbert.config import MAX_TIMEOUT, REMOVED_SETTINGS, expand_home, home_folder, split_addresses
from es_sbert.errors import UsageError

_FILE_SETTINGS = ("password_file", "api_key_file", "token_file", "ca_certs")
_EXPLICIT_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class Profile(BaseModel, frozen=True, extra="forbid", strict=True):
    """Default values of options, by option name with `_` for `-`. A profile names files of secrets, never a secret."""

    url: str | None = None
    username: str | None = None
    password_file: str | None = None
    api_key_file: str | None = None
    token_file: str | None = None
    ca_certs: str | None = None
    fingerprint: str | None = None
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT)
    model: str | None = None

    @field_validator("url", mode="before")
    @classmethod
    def _join_addresses(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)
        return ",".join(value) if is_list else value


class ProfileOption(click.Option):
    """An option whose default may come from the profile of this call.

    If the address is not one of the profile's, only the profile's model is used: its credentials are for its addresses.
    """

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        profile = ctx.find_object(Profile)
        value = None if profile is None or self.name is None else getattr(profile, self.name, None)
        if profile is None or value is None:
            return super().get_default(ctx, call=call)
        addresses = split_addresses(profile.url or "")
        explicit = split_addresses(ctx.params.get("url") or "")
        is_elsewhere = ctx.get_parameter_source("url") in _EXPLICIT_SOURCES and not set(explicit) <= set(addresses)
        if self.name not in ("url", "model") and is_elsewhere:
            return super().get_default(ctx, call=call)
        return value


def read_profile(name: str | None) -> Profile:
    """Read the profile of that name in the configuration file; without a name, the settings outside of profiles.

    Raises:
        UsageError: there is no such profile, or the file cannot be read or has an invalid setting.
    """
    file = config_file()
    if file is None:
        if name is not None:
            raise UsageError(
                f"--profile {name}: there is no configuration file",
                f"Add [profiles.{name}] to ~/.config/es-sbert/config.toml, or set ES_SBERT_CONFIG to your file.",
            )
        return Profile()
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the configuration file {file} cannot be read: {reason}", "Correct or remove it.") from error
    profiles = content.pop("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(profile, dict) for profile in profiles.values()):
        raise UsageError(f"{file}: profiles must be tables", "Write [profiles.NAME] above the settings of a profile.")
    if name is not None and name not in profiles:
        remedy = f"It has {', '.join(sorted(profiles))}." if profiles else f"Add [profiles.{name}]."
        raise UsageError(f"{file} has no profile {name}", remedy)
    return _validate(file, content | (profiles[name] if name is not None else {}))


def config_file() -> Path | None:
    """Find `$ES_SBERT_CONFIG`, or `es-sbert/config.toml` in `$XDG_CONFIG_HOME` or `~/.config`; None if there is none.

    Raises:
        UsageError: the file that `$ES_SBERT_CONFIG` names does not exist.
    """
    if named := os.environ.get("ES_SBERT_CONFIG"):
        if not Path(named).exists():
            raise UsageError(f"there is no configuration file {named}", "Correct ES_SBERT_CONFIG.")
        return Path(named)
    shared = os.environ.get("XDG_CONFIG_HOME")
    try:
        folder = Path(shared) if shared else home_folder("ES_SBERT_CONFIG") / ".config"
    except UsageError:
        return None  # a service without a home
    file = folder / "es-sbert/config.toml"
    return file if file.is_file() else None


def _validate(file: Path, settings: Mapping[str, Any]) -> Profile:
    try:
        profile = Profile.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise UsageError(f"{file}: {key}: {problem['msg']}", _remedy(key, problem["type"])) from error
    paths = {
        name: str(file.parent / expand_home(path))
        for name in _FILE_SETTINGS
        if (path := getattr(profile, name)) is not None
    }
    return profile.model_copy(update=paths)


def _remedy(key: str, kind: Literal["extra_forbidden"] | str) -> str:
    if kind != "extra_forbidden":
        return "Correct this setting."
    if key in REMOVED_SETTINGS:
        return REMOVED_SETTINGS[key]
    if key in ("password", "api_key", "token"):
        return f'Keep secrets in separate files: {key}_file = "FILE".'
    if near := get_close_matches(key, Profile.model_fields, 1):
        return f"Did you mean {near[0]}?"
    return f"Settings are: {', '.join(Profile.model_fields)}."
