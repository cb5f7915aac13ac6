"""From an fsspec address, or a pattern of them, to the files that it names."""

from __future__ import annotations

import glob
from typing import Any
from urllib.parse import urlsplit

from es_sbert.errors import SourceError, UsageError, first_line
from es_sbert.extras import require
from es_sbert.ingest.sources.addresses import protocol_of, without_secrets
from es_sbert.ingest.sources.remote import RemoteFile, real_error

_HTTP = ("http", "https")
_REACH = (
    "Check the address, the network and the credentials, which the filesystem's own environment or configuration holds "
    "(AWS_ACCESS_KEY_ID and the like, or fsspec's conf.json)."
)


def find_remote(address: str) -> tuple[list[tuple[RemoteFile, str]], list[str]]:
    """The files that an address names.

    Args:
        address: With a protocol in front; may be a pattern.

    Returns:
        Files elsewhere, each with the name that tells its format, and paths of files on this machine (`file://`).

    Raises:
        SourceError: there is no such file, nothing matches, or the filesystem cannot be reached.
        UsageError: the library of the protocol is not installed, or there is none.
    """
    shown = without_secrets(address)
    filesystem, location = _filesystem(address, shown)
    try:
        locations = _locations(filesystem, location)
        if not locations:
            raise SourceError(f"no file matches {shown}", "Check the pattern; ** stands for any folders in between.")
        if "file" in _protocols(filesystem):
            return [], locations
        return [_file(filesystem, each, shown if each == location else None) for each in locations], []
    except SourceError:
        raise
    # Each filesystem raises errors of its own library. Not chained: they may hold the address with its secrets.
    except Exception as raised:
        error = real_error(raised)
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{shown} cannot be read: no such file", "Check the address.") from None
        reason = without_secrets(first_line(error)).replace(location, shown)
        raise SourceError(f"{shown} cannot be read: {reason}", _REACH) from None


def _filesystem(address: str, shown: str) -> tuple[Any, str]:
    """The filesystem, and what it calls the address."""
    require("remote", "fsspec")
    import fsspec

    protocol = protocol_of(address)
    try:
        filesystem, location = fsspec.url_to_fs(address, **_options(protocol))
        return filesystem, location
    except ImportError as error:
        raise UsageError(
            f"{protocol}:// needs a package that is not installed ({first_line(error)})",
            "For s3 and http(s), install: pip install 'es-sbert[remote]'; for others, the package named.",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{shown} cannot be read: {without_secrets(first_line(error))}",
            "Write an address that fsspec knows, such as s3://bucket/docs/*.jsonl.gz, or a path.",
        ) from None


def _options(protocol: str) -> dict[str, Any]:
    """Options of the filesystem that its users would not think of."""
    if protocol not in _HTTP:
        return {}
    require("remote", "aiohttp")
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    # aiohttp ends a request after five minutes, however well it goes; a load may take a file slowly.
    patient = {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=60)}
    return {"client_kwargs": patient | conf.get(protocol, {}).get("client_kwargs", {})}


def _locations(filesystem: Any, location: str) -> list[str]:
    if not glob.has_magic(location):
        return [location]
    try:
        # A name may hold brackets, and most addresses of HTTP with a query hold a question mark.
        filesystem.info(location)
    except FileNotFoundError as error:
        if real_error(error) is not error:
            raise
        found = filesystem.glob(location, detail=True)
        return sorted(each for each, info in found.items() if info.get("type") != "directory")
    return [location]


def _file(filesystem: Any, location: str, shown: str | None) -> tuple[RemoteFile, str]:
    info = filesystem.info(location)
    name = shown or without_secrets(filesystem.unstrip_protocol(location))
    if info.get("type") == "directory":
        raise SourceError(f"{name} is a folder", f"Name the files in it, e.g. '{name.rstrip('/')}/*.jsonl'.")
    is_http = any(protocol in _HTTP for protocol in _protocols(filesystem))
    told_by = urlsplit(location).path if is_http else location
    return RemoteFile(name, filesystem, location, info.get("size")), told_by


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
