"""Addresses of files elsewhere, and what of them may be shown."""

from __future__ import annotations

import re

# `s3://…`, or several filesystems one inside the other: `zip://inner.csv::s3://…`. One letter is a Windows drive.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
# A user alone may be something else: Azure writes container@account.
_USER_AND_PASSWORD = re.compile(r"(?<=//)[^/\s@:]*:[^/\s]*@")
_HTTP_USER = re.compile(r"(?<=http://|ttps://)[^/\s]*@")
# Signed addresses carry their signature there.
_HTTP_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")


def is_address(argument: str) -> bool:
    """Whether a FILE argument is written as an address rather than a path."""
    return _ADDRESS.match(argument) is not None


def protocol_of(address: str) -> str:
    """What stands in front: `s3`, `https`, …."""
    return re.split("://|::", address)[0].lower()


def without_secrets(text: str) -> str:
    """An address, or a message that repeats one, without passwords and without the queries of HTTP."""
    text = _HTTP_USER.sub("", _USER_AND_PASSWORD.sub("", text))
    return _HTTP_QUERY.sub(r"\1?…", text)
