"""The address of an engine: URL, credentials and TLS settings, read from `EngineSettings`."""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from es_sbert.config import DEFAULT_URL, EngineSettings
from es_sbert.errors import UsageError

if TYPE_CHECKING:
    from elastic_transport import NodeConfig

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_CONNECTIONS = 16


@dataclass(frozen=True)
class Address:
    """Where to connect and how to sign in.

    Attributes:
        scheme: `http` or `https`.
        host: Name or IP address, without brackets.
        port: TCP port.
        path: Path before every request (`/engine` behind a reverse proxy), no slash at the end; often empty.
        authorization: Value of the Authorization header, or None.
        ssl_context: Set where the scheme is https.
        fingerprint: SHA-256 of the server's certificate in hex digits; None checks the certificate itself.
        timeout: Seconds for one request.
    """

    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None = field(repr=False)
    ssl_context: ssl.SSLContext | None = field(repr=False)
    timeout: float
    fingerprint: str | None = None

    @property
    def url(self) -> str:
        """The address without credentials: safe to print."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.authorization is None else {"authorization": self.authorization}

    def node_config(self) -> NodeConfig:
        """The address for elastic-transport.

        Requests are not compressed: vectors barely shrink, and gzip would cost a core that the encoder can use.
        """
        from elastic_transport import NodeConfig

        return NodeConfig(
            scheme=self.scheme,
            host=self.host,
            port=self.port,
            path_prefix=self.path,
            headers=self.headers,
            ssl_context=self.ssl_context,
            ssl_assert_fingerprint=self.fingerprint,
            request_timeout=self.timeout,
            connections_per_node=MAX_CONNECTIONS,
        )


def parse_address(settings: EngineSettings) -> Address:
    """The address of these settings; a user name and password inside the URL are honoured and taken out.

    Raises:
        UsageError: a URL that cannot be read, two kinds of credentials, an API key or token that no header takes, or a
            CA file that is missing or broken.
    """
    try:
        parts = urlsplit(settings.url)
        port = parts.port
        host = parts.hostname or ""
        host.encode("idna")  # an empty or too long part between two dots is a ValueError too
    except ValueError:
        parts, port, host = None, None, ""
    if parts is None or not host or not host.isprintable() or " " in host or parts.query or parts.fragment:
        # The URL itself may hold a password, so it is not repeated here.
        raise UsageError("the address of the engine is not a URL", f"Write it as {DEFAULT_URL} is written.")
    return Address(
        scheme=parts.scheme,
        host=host,
        port=DEFAULT_PORTS[parts.scheme] if port is None else port,
        path=parts.path.rstrip("/"),
        authorization=_authorization(settings, parts.username, parts.password),
        ssl_context=_ssl_context(settings) if parts.scheme == "https" else None,
        timeout=settings.timeout,
        fingerprint=_fingerprint(settings, parts.scheme),
    )


def _authorization(settings: EngineSettings, url_user: str | None, url_password: str | None) -> str | None:
    if url_user is not None:
        if any(given is not None for given in (settings.username, settings.api_key, settings.token)):
            raise UsageError(
                "the URL holds a user name and credentials are given as options too",
                "Take the user name out of the URL.",
            )
        return _basic(unquote(url_user), unquote(url_password or ""))
    if settings.api_key is not None:
        return _scheme("ApiKey", settings.api_key, "API key")
    if settings.token is not None:
        return _scheme("Bearer", settings.token, "token")
    if settings.username is not None and settings.password is not None:
        return _basic(settings.username, settings.password.get_secret_value())
    return None


def _scheme(scheme: str, secret: SecretStr, what: str) -> str:
    value = secret.get_secret_value()
    if not re.fullmatch("[!-~]+", value):
        raise UsageError(
            f"the {what} contains a space, a newline or a character that is not allowed in an HTTP header",
            f"Give the {what} as the engine encoded it, and nothing else.",
        )
    return f"{scheme} {value}"


def _basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _fingerprint(settings: EngineSettings, scheme: str) -> str | None:
    if settings.fingerprint is None:
        return None
    if scheme != "https":
        raise UsageError("a fingerprint is checked by TLS alone", "Write https:// in front of the address.")
    return settings.fingerprint.replace(":", "").lower()


def _ssl_context(settings: EngineSettings) -> ssl.SSLContext:
    """The system's authorities, or the given one; certificates and host names are always checked.

    With a fingerprint, the client checks only the hash of the certificate, not its
    issuer or host name.
    """
    if settings.fingerprint is not None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=settings.ca_certs)
    except (OSError, ssl.SSLError) as error:
        reason = "is not a PEM file of certificates" if isinstance(error, ssl.SSLError) else "cannot be read"
        raise UsageError(
            f"the CA file {settings.ca_certs} {reason}",
            "Give --ca-certs the engine's certificate authority, for Elasticsearch config/certs/http_ca.crt.",
        ) from error
