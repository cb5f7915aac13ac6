"""Headers of a request or an answer on their way to the next connection."""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict

from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.wire.incoming import Headers

# What belongs to one connection, or is set anew for the next one (RFC 9110, 7.6.1).
_OF_THE_CONNECTION = frozenset({
    b"connection", b"expect", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without those that belong to one connection."""
    kept = list(headers)
    named = {
        token.strip().lower() for name, value in kept if name.lower() == b"connection" for token in value.split(b",")
    }
    return [
        (name, value) for name, value in kept if (low := name.lower()) not in _OF_THE_CONNECTION and low not in named
    ]


def decoded(headers: Headers) -> CIMultiDict[str]:
    """Headers as the client library takes them.

    Raises:
        BadRequest: a value in another encoding than UTF-8.
    """
    try:
        return CIMultiDict([(name.decode("ascii"), value.decode()) for name, value in headers])
    except UnicodeDecodeError:
        raise BadRequest("a header of the request is not UTF-8", "Write it in ASCII or UTF-8.") from None
