"""Connection settings, read from options, `ES_SBERT_…` environment variables and secret files.

Settings are frozen and validated once. An empty environment variable counts as unset. The module also locates the
user's home folder and the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from es_sbert.arguments import check_range
from es_sbert.errors import UsageError, about_setting, error_summary
from es_sbert.messages import setting


def expand_home(path: str) -> Path:
    """Expand `~` and `~user` in a path if the home folder is known."""
    return Path(os.path.expanduser(path))


def home_folder(variable: str) -> Path:
    """The home folder of this user.

    Args:
        variable: Environment variable that could set the folder instead, for the message.

    Raises:
        UsageError: HOME is not set, and the system does not know the user.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("this user has no home folder", f"Set HOME, or {variable} to a folder to write to.") from error


def cache_folder() -> Path:
    """`$ES_SBERT_CACHE`, or `$XDG_CACHE_HOME/es-sbert`, or `~/.cache/es-sbert`.

    Raises:
        UsageError: neither variable is set, and the home folder is unknown.
    """
    if base := os.environ.get("ES_SBERT_CACHE"):
        return Path(base)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else home_folder("ES_SBERT_CACHE") / ".cache") / "es-sbert"


# Maximum size of a secret file. A secret is one line; a longer file is something else.
_MAX_SECRET_BYTES = 64 << 10


def read_secret_file(path: Path, what: str) -> str:
    """Read a secret from a file, without the line feed at the end.

    Args:
        path: The file.
        what: `password`, `API key` or `token`, for messages.

    Raises:
        UsageError: the file is missing, empty, too long, or not text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the file {path} with the {what} cannot be read: {error.strerror}",
            "Check the path, and that this user may read it.",
        ) from error
    # Invalid bytes are replaced, because an exception from decode would contain the secret.
    secret = data.decode(errors="replace").rstrip("\r\n")
    if not secret or "\n" in secret or "\ufffd" in secret or len(data) > _MAX_SECRET_BYTES:
        raise UsageError(
            f"the file {path} with the {what} must contain one line of UTF-8 text", "Write only the secret into it."
        )
    return secret


DEFAULT_URL = "http://localhost:9200"
DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_VECTOR_FIELD = "embedding"
TOP_K = 10  # hits of a search
MAX_TIMEOUT = 86_400  # seconds; all systems have some limit
# Settings of earlier versions → what to do instead. They are refused, because without them a command would do less.
REMOVED_SETTINGS = {
    "fingerprint": "Remove it, and set ca_certs to the CA that signed the certificate (for Elasticsearch "
    "config/certs/http_ca.crt).",
    "sniff": "Remove it, and set url to the addresses of several nodes, separated by commas.",
    "keyring": "Remove it, and name a file with the secret: password_file, api_key_file or token_file.",
}
_OFF = frozenset({"false", "0", "no", "off"})
_SECRETS = {"api_key": "API key", "password": "password", "token": "token"}
# A comma separates two addresses only before an address, another comma or the end: a password may contain commas.
_BETWEEN_ADDRESSES = re.compile(r",(?=\s*(?:[A-Za-z][A-Za-z0-9+.-]*://|,|$))")


def split_addresses(url: str) -> list[str]:
    """Split the setting `url` into its addresses, which are separated by commas."""
    return [part.strip() for part in _BETWEEN_ADDRESSES.split(url)]


class UsageErrorModel(BaseModel):
    """Settings whose validators can raise `UsageError`, a ValueError that pydantic would otherwise wrap.

    Raises:
        UsageError: a validator raised it, or pydantic's own checks failed.
    """

    def __init__(self, **values: Any) -> None:
        with _usage_errors():
            super().__init__(**values)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        with _usage_errors():
            return super().model_validate(obj, **options)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Raise the UsageError of a validator, or else that for the first problem. It never shows a secret."""
    try:
        yield
    except ValidationError as error:
        for problem in error.errors():
            context = problem.get("ctx", {})
            if isinstance(context.get("error"), UsageError):
                raise context["error"] from None
            check_range(".".join(map(str, problem["loc"])), problem["input"], context)
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        value = None if name in _SECRETS else problem["input"]
        raise UsageError(error_summary(error), "Correct the name or the value.").about(name, value) from None


class FrozenSettings(UsageErrorModel):
    """Immutable settings. Unknown names are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(UsageErrorModel, BaseSettings):
    """Address and credentials of the search engine. All nodes get the same credentials and TLS settings. Times are in
    seconds.

    Usage:
        ```python
        settings = EngineSettings(url="http://localhost:9200", timeout=30)
        with SemanticIndex("docs", settings) as index:
            print(index.count())
        ```

    Attributes:
        url: Address of the engine; several nodes of one cluster are separated by commas.
        api_key: Encoded API key (Elasticsearch).
        username: User name; set its password in ES_SBERT_PASSWORD or a file.
        password: Password of this user.
        token: Bearer token: a service account's, OAuth's or a JSON Web Token.
        api_key_file: File that holds an API key.
        password_file: File that holds the password.
        token_file: File that holds a bearer token.
        ca_certs: PEM file of a private CA.
        timeout: Timeout of one request.
    """

    model_config = SettingsConfigDict(
        env_prefix="ES_SBERT_", frozen=True, extra="ignore", hide_input_in_errors=True, env_ignore_empty=True
    )

    url: str = DEFAULT_URL
    api_key: SecretStr | None = None
    username: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    api_key_file: Path | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    ca_certs: Path | None = None
    timeout: float = Field(default=60.0, gt=0, le=MAX_TIMEOUT)

    @field_validator("url", mode="before")
    @classmethod
    def _join_addresses(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Read the secrets from files into their settings."""
        data = dict(data)
        for name, remedy in REMOVED_SETTINGS.items():
            variable = f"{cls.model_config['env_prefix']}{name.upper()}"
            given = (data.get(name), os.environ.get(variable))
            # Without the setting, a command does what it did with the former default.
            if any(value and str(value).lower() not in _OFF for value in given):
                raise UsageError(f"there is no setting {name} ({variable}) any more", remedy).about(name)
        for name, what in _SECRETS.items():
            file = data.get(f"{name}_file")
            if file is None:
                continue
            if data.get(name) is not None:
                raise UsageError(f"the {what} is set twice, once by a file", "Leave one of the two out.").about(name)
            with about_setting(f"{name}_file", file, UsageError):
                data[name] = read_secret_file(Path(file), what)
        return data

    @model_validator(mode="after")
    def _check_authentication(self) -> EngineSettings:
        credentials = {"an API key": self.api_key, "a user name": self.username, "a token": self.token}
        methods = [name for name, value in credentials.items() if value is not None]
        if len(methods) > 1:
            raise UsageError(f"{' and '.join(methods)} cannot be combined", "Use one of them.")
        if (self.username is None) != (self.password is None):
            raise UsageError(
                "a user name and a password must be given together",
                f"Set {setting('username')} with the password in ES_SBERT_PASSWORD or a {setting('password_file')}, or "
                "an API key in ES_SBERT_API_KEY.",
            ).about("username")
        return self
