"""The addresses of an engine: URLs, credentials and TLS settings, read from `EngineSettings`."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import SecretStr

from es_sbert.config import DEFAULT_URL, EngineSettings, split_addresses
from es_sbert.errors import UsageError
from es_sbert.messages import setting

if TYPE_CHECKING:
    from elastic_transport import NodeConfig

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_CONNECTIONS = 16


@dataclass(frozen=True)
class Address:
    """The address of an engine, with its credentials and TLS settings.

    Attributes:
        scheme: `http` or `https`.
        host: Name or IP address, without brackets.
        port: TCP port.
        path: Prefix of all paths (`/engine` on a reverse proxy), without a slash at the end; often empty.
        authorization: Value of the Authorization header, or None.
        ssl_context: Set if the scheme is https.
        timeout: Seconds for one request.
    """

    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None = field(repr=False)
    ssl_context: ssl.SSLContext | None = field(repr=False)
    timeout: float

    @property
    def url(self) -> str:
        """The address without credentials: safe to print."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.authorization is None else {"authorization": self.authorization}

    def node_config(self) -> NodeConfig:
        """Return the address as a node configuration of elastic-transport.

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
            request_timeout=self.timeout,
            connections_per_node=MAX_CONNECTIONS,
        )


def join_urls(addresses: Sequence[Address]) -> str:
    """Join the addresses, without credentials, by commas: safe to print."""
    return ",".join(address.url for address in addresses)


def parse_address(settings: EngineSettings) -> Address:
    """Parse the only address of these settings; see `parse_addresses`.

    Raises:
        UsageError: see `parse_addresses`; or the settings have several addresses.
    """
    addresses = parse_addresses(settings)
    if len(addresses) > 1:
        raise UsageError(f"exactly one address is required, not {len(addresses)}", "Use one of them.").about("url")
    return addresses[0]


def parse_addresses(settings: EngineSettings) -> tuple[Address, ...]:
    """Return the distinct addresses of these settings, in their order.

    A user name and password inside a URL are removed from it and used for all addresses.

    Raises:
        UsageError: a URL cannot be read, credentials conflict, an API key or token has characters that a header cannot
            contain, or the CA file is missing or broken.
    """
    urls = split_addresses(settings.url)
    single = len(urls) == 1
    parts = [
        _split_url(url, "the address" if single else f"address {number} of {len(urls)}")
        for number, url in enumerate(urls, 1)
    ]
    signed = [each for each in parts if each.username is not None]
    if len({(each.username, each.password) for each in signed}) > 1:
        raise UsageError(
            "the addresses of the engine contain different user names or passwords",
            "All nodes of a cluster accept the same ones: set them once, in ES_SBERT_USERNAME and ES_SBERT_PASSWORD.",
        ).about("url")
    user, password = (signed[0].username, signed[0].password) if signed else (None, None)
    authorization = _authorization(settings, user, password)
    ssl_context = _ssl_context(settings) if any(each.scheme == "https" for each in parts) else None
    addresses = [
        Address(
            scheme=each.scheme,
            host=str(each.hostname),
            port=DEFAULT_PORTS[each.scheme] if each.port is None else each.port,
            path=each.path.rstrip("/"),
            authorization=authorization,
            ssl_context=ssl_context if each.scheme == "https" else None,
            timeout=settings.timeout,
        )
        for each in parts
    ]
    # Duplicates are removed: a node that is named twice would get twice the requests, and the clients refuse it.
    return tuple({address.url: address for address in addresses}.values())


def _split_url(url: str, which: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")  # an empty or too long part between two dots is a ValueError too
        is_valid = parts.scheme in DEFAULT_PORTS and (parts.port is None or parts.port >= 0)
    except ValueError:
        is_valid, host = False, ""
    if not is_valid or not host or not host.isprintable() or " " in host or parts.query or parts.fragment:
        # The URL itself may hold a password, so it is not repeated here.
        raise UsageError(
            f"{which} of the engine is not a URL that begins with http:// or https://",
            f"Write it like {DEFAULT_URL}. Several addresses are separated by commas.",
        ).about("url")
    return parts


def _authorization(settings: EngineSettings, url_user: str | None, url_password: str | None) -> str | None:
    if url_user is not None:
        if any(given is not None for given in (settings.username, settings.api_key, settings.token)):
            raise UsageError(
                "a URL with a user name cannot be combined with other credentials",
                "Remove the user name from the URL.",
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
            f"Set the {what} exactly as the engine returned it; for an API key, that is the field encoded.",
        ).about("api_key" if scheme == "ApiKey" else "token")
    return f"{scheme} {value}"


def _basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _ssl_context(settings: EngineSettings) -> ssl.SSLContext:
    """Create a context that checks certificates and host names, with the given CA or the system's."""
    try:
        return ssl.create_default_context(cafile=settings.ca_certs)
    except (OSError, ssl.SSLError) as error:
        reason = "is not a PEM file of certificates" if isinstance(error, ssl.SSLError) else "cannot be read"
        raise UsageError(
            f"the CA file {settings.ca_certs} {reason}",
            f"Set {setting('ca_certs')} to the engine's CA file, for Elasticsearch config/certs/http_ca.crt.",
        ).about("ca_certs", settings.ca_certs) from error
