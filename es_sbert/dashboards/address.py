"""Where Kibana or OpenSearch Dashboards is, and how to sign in there."""

from __future__ import annotations

from pydantic_settings import SettingsConfigDict

from es_sbert.config import EngineSettings
from es_sbert.engines.address import Address, read_address
from es_sbert.errors import UsageError

DEFAULT_KIBANA_URL = "http://localhost:5601"
_CREDENTIALS = ("username", "password", "api_key", "token")


class KibanaSettings(EngineSettings):
    """As of an engine; what is not given comes from `ES_SBERT_KIBANA_URL`, `ES_SBERT_KIBANA_API_KEY`, ….

    Both products check credentials with their engine, so the engine's own serve here where no others are given.
    """

    model_config = SettingsConfigDict(
        env_prefix="ES_SBERT_KIBANA_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    url: str = DEFAULT_KIBANA_URL

    @classmethod
    def beside(cls, engine: EngineSettings, **given: object) -> KibanaSettings:
        """Settings with the engine's credentials where there are no others.

        Raises:
            UsageError: contradictory ways to sign in, or an address without a scheme.
        """
        own = cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        if any(getattr(own, name) is not None for name in _CREDENTIALS):
            return own
        lent = {name: getattr(engine, name) for name in _CREDENTIALS}
        return own.model_copy(update={"timeout": engine.timeout, **lent})


def kibana_address(settings: KibanaSettings) -> Address:
    """The address with everything that a client needs.

    Raises:
        UsageError: no URL, two ways to sign in, a CA file that cannot be read, or a fingerprint.
    """
    if settings.fingerprint is not None:
        raise UsageError(
            "a fingerprint cannot stand in for the certificate authority of Kibana or OpenSearch Dashboards",
            "Give --kibana-ca-certs the authority that signed its certificate.",
        )
    return read_address(settings)
