"""Secrets from where they are safe: the environment, a file, or the keyring; never from a command line, which any user
of the machine can read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from es_sbert.errors import UsageError

# A secret is one line; a file that is longer is something else.
_LONGEST = 64 << 10
API_KEY_ENTRY = "api-key"


def read_secret_file(path: Path, what: str) -> str:
    """The secret that a file holds: its text without the line feed at the end.

    Args:
        path: The file.
        what: `password`, `API key` or `token`, for messages.

    Raises:
        UsageError: the file is missing, empty, too long, or not text.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise UsageError(
            f"the file of the {what} {path} cannot be read: {error.strerror}",
            "Check the path, and that this user may read it.",
        ) from error
    # Not by an exception of decode: it would carry the secret along.
    secret = data.decode(errors="replace").rstrip("\r\n")
    if "\ufffd" in secret:
        raise UsageError(f"the file of the {what} {path} is not UTF-8 text", "Write the bare secret into it.")
    if not secret or "\n" in secret or len(data) > _LONGEST:
        raise UsageError(f"the file of the {what} {path} does not hold one line", "Write the bare secret into it.")
    return secret


def read_keyring(service: str, entry: str) -> str:
    """A secret from the system's keyring, by the `keyring` package.

    Args:
        service: Name under which it was stored (`keyring set SERVICE ENTRY`).
        entry: The user name, or `api-key`.

    Raises:
        UsageError: the package is missing, there is no keyring, or it has no such entry.
    """
    if importlib.util.find_spec("keyring") is None:
        raise UsageError("the keyring needs the package keyring", "Install it: pip install 'es-sbert[keyring]'")
    import keyring
    from keyring.errors import KeyringError

    try:
        secret = keyring.get_password(service, entry)
    except KeyringError as error:
        raise UsageError(
            f"the keyring cannot be read: {error}", "Unlock it, or keep the secret in a file or the environment."
        ) from error
    if not secret:
        raise UsageError(f"the keyring has no entry {entry} of {service}", f"Add it: keyring set {service} {entry}")
    return secret
