"""Settings, frozen and validated once at the edge; everything inside takes these objects.

Connection settings also come from the environment (`ES_SBERT_URL`, `ES_SBERT_API_KEY`, …) so that secrets
need not stand on a command line, where any user of the machine can read them. A variable that is set to nothing, as
Compose and CI do with those that are not filled in, is one that is not set.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from es_sbert.credentials import API_KEY_ENTRY, read_keyring, read_secret_file
from es_sbert.errors import UsageError

DEFAULT_URL = "http://localhost:9200"
DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_VECTOR_FIELD = "embedding"
LONGEST_TIMEOUT = 86_400  # seconds; no system takes any number
_SECRETS = {"api_key": "API key", "password": "password", "token": "token"}


class EngineSettings(BaseSettings):
    """Where the search engine is and how to sign in.

    Attributes:
        url: Base address, `http://host:port` or `https://…`.
        api_key: Encoded API key (Elasticsearch).
        username, password: Basic authentication.
        token: Bearer token: a service account's, OAuth's or a JSON Web Token.
        api_key_file, password_file, token_file: Files that hold them; read once, here.
        keyring: Service of the system's keyring that holds the user's password, or the API key as `api-key`.
        ca_certs: PEM file of the certificate authority that signed the server's certificate.
        fingerprint: SHA-256 of the server's certificate in hex digits, which then is all that is checked.
        timeout: Seconds for one request.
    """

    model_config = SettingsConfigDict(env_prefix="ES_SBERT_", frozen=True, extra="ignore", hide_input_in_errors=True,
                                      env_ignore_empty=True)  # fmt: skip

    url: str = DEFAULT_URL
    api_key: SecretStr | None = None
    username: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    api_key_file: Path | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    keyring: str | None = None
    ca_certs: Path | None = None
    fingerprint: str | None = None
    timeout: float = Field(default=60.0, gt=0, le=LONGEST_TIMEOUT)

    @model_validator(mode="before")
    @classmethod
    def _fetch_secrets(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Secrets that stand in files or the keyring, as if they had been given."""
        data = dict(data)
        for name, what in _SECRETS.items():
            file = data.get(f"{name}_file")
            if file is None:
                continue
            if data.get(name) is not None:
                raise UsageError(f"the {what} is given twice, once by a file", "Leave one of the two out.")
            data[name] = read_secret_file(Path(file), what)
        if data.get("keyring") is not None and all(data.get(name) is None for name in _SECRETS):
            user = data.get("username")
            data["api_key" if user is None else "password"] = read_keyring(str(data["keyring"]), user or API_KEY_ENTRY)
        return data

    @model_validator(mode="after")
    def _one_way_to_sign_in(self) -> EngineSettings:
        ways = [way for way, given in (("an API key", self.api_key), ("a user name", self.username),
                                       ("a token", self.token)) if given is not None]  # fmt: skip
        if len(ways) > 1:
            raise UsageError(f"both {' and '.join(ways)} are given", "Give one of them.")
        if (self.username is None) != (self.password is None):
            raise UsageError(
                "a user name and a password belong together",
                "Give --username with the password in ES_SBERT_PASSWORD or a --password-file, or an API key in "
                "ES_SBERT_API_KEY.",
            )
        if not self.url.lower().startswith(("http://", "https://")):
            # The address may hold a password, so it is not repeated here.
            raise UsageError(
                "the address of the engine has no http:// or https:// in front",
                f"Write it as {DEFAULT_URL} is written.",
            )
        if self.fingerprint is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", self.fingerprint.replace(":", "")):
            raise UsageError(
                "the fingerprint is not a SHA-256 in hex digits",
                "Take it from: openssl x509 -noout -fingerprint -sha256 -in CERTIFICATE.",
            )
        if self.fingerprint is not None and self.ca_certs is not None:
            raise UsageError("a fingerprint and a CA file exclude each other", "Give one of the two.")
        return self
