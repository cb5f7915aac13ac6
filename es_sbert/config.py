"""Settings, frozen and validated once at the edge; everything inside takes these objects.

Connection settings also come from the environment (`ES_SBERT_URL`, `ES_SBERT_API_KEY`, …) so that secrets
need not stand on a command line, where any user of the machine can read them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from es_sbert.errors import UsageError

DEFAULT_URL = "http://localhost:9200"
DEFAULT_MODEL = "all-MiniLM-L6-v2"
DEFAULT_VECTOR_FIELD = "embedding"


class EngineSettings(BaseSettings):
    """Where the search engine is and how to sign in.

    Attributes:
        url: Base address, `http://host:port` or `https://…`.
        api_key: Encoded API key (Elasticsearch).
        username, password: Basic authentication.
        ca_certs: PEM file of the certificate authority that signed the server's certificate.
        timeout: Seconds for one request.
    """

    model_config = SettingsConfigDict(env_prefix="ES_SBERT_", frozen=True, extra="ignore")

    url: str = DEFAULT_URL
    api_key: SecretStr | None = None
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    timeout: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _one_way_to_sign_in(self) -> EngineSettings:
        if self.api_key is not None and self.username is not None:
            raise UsageError("both an API key and a user name are given", "Give one of the two.")
        if (self.username is None) != (self.password is None):
            raise UsageError(
                "a user name and a password belong together",
                "Give --username with the password in ES_SBERT_PASSWORD, or an API key in ES_SBERT_API_KEY.",
            )
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(
                f"the address {self.url!r} has no http:// or https:// in front",
                f"Write it as {DEFAULT_URL} is written.",
            )
        return self
