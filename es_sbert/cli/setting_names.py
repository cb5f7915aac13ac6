"""Translate settings in the library's messages to options of the command line.

The library's messages say `device` and `device="cuda"`, as a Python program writes them. The command line shows
`--device` and `--device cuda` in their place.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from es_sbert.messages import escape_unprintable

# Settings that messages name and whose option is `--` followed by the name with dashes.
_SAME_NAME = frozenset({
    "api_key_file", "ca_certs", "data", "dead_letters",
    "delimiter", "device", "dimensions", "documents", "dry_run", "encoding", "exact", "filter",
    "force", "format", "heap", "host", "id_field", "index", "index_type", "keep", "kibana", "limit",
    "max_errors", "max_unrelated", "max_write_block", "min_cosine", "min_recall", "model", "name",
    "num_candidates", "output", "pairs", "passage_overlap", "passages", "password_file",
    "port", "precision", "prune", "queries", "ray", "ray_workers", "replace_index", "replace_view",
    "replicas", "resume", "retry", "retry_seconds", "routing_field", "runtime", "sample",
    "shards", "state", "strip_html", "tenant", "text_field", "text_template", "texts", "threads",
    "timeout", "title_field", "token_file", "url", "username", "vector_field",
})  # fmt: skip

# Settings whose option has another name.
_OTHER_NAME = {
    "body_bytes": "--max-body",
    "body_fields": "--body-field",
    "certificate": "--tls-certificate",
    "files": "--file",
    "ignore_settings": "--ignore-setting",
    "key": "--tls-key",
    "kind": "--as",
    "overrides": "--set",
    "source": "--from",
    "text_fields": "--text-field",
    "trained": "--train-queries",
    "variants": "--precision",
    "vectors": "--vector",
    "watch_seconds": "--watch",
}

# Settings with several values whose option takes them in one value, separated by commas.
_IN_ONE_VALUE = frozenset({"variants"})

# A setting alone or with a value; a quoted value may hold backticks.
_SETTING = re.compile(r"""`([a-z][a-z0-9_]*)(?:=("(?:[^"\\]|\\.)*"|[^`"]*|[\[{][^`]*[\]}]))?`""")


def option_of(setting: str) -> str | None:
    """Return the option of a setting, such as `--device` for `device`; None if it has no option."""
    if setting in _SAME_NAME:
        return f"--{setting.replace('_', '-')}"
    return _OTHER_NAME.get(setting)


def known_settings() -> list[str]:
    """Return the names of all settings that have a command-line option."""
    return sorted(_SAME_NAME | _OTHER_NAME.keys())


def as_options(text: str) -> str:
    """Replace settings in a text by options; other names in backticks, and commands, are kept."""
    return _SETTING.sub(_as_option, text) if "`" in text else text


# Entries of reports and of logged events that hold sentences of the library. The others hold data of the user, such as
# texts and ids, which are not changed.
_SENTENCES = frozenset({"message", "notes", "problem", "reason", "remedy", "stopped", "warnings"})


def with_options(report: Any) -> Any:
    """Apply `as_options` to the library's sentences in a value that can be converted to JSON."""
    if isinstance(report, dict):
        return {
            key: _sentences_with_options(value) if key in _SENTENCES else with_options(value)
            for key, value in report.items()
        }
    if isinstance(report, list | tuple):
        return [with_options(value) for value in report]
    return report


def _sentences_with_options(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_sentences_with_options(each) for each in value]
    return as_options(value) if isinstance(value, str) else with_options(value)


def _as_option(match: re.Match[str]) -> str:
    option = option_of(match[1])
    if option is None:
        return match[0]
    if match[2] is None or match[2] == "True":
        return option
    if match[2] == "False":
        return match[0]
    try:
        value = json.loads(match[2])  # as `setting_text` writes it
    except ValueError:
        value = match[2]  # a placeholder such as FILE
    values = value if isinstance(value, list) else [value]
    if isinstance(value, dict):
        values = [f"{name}={each}" for name, each in value.items()]
    if match[1] in _IN_ONE_VALUE:
        values = [",".join(map(str, values))]
    # Reading the value has turned escapes back into control characters, which must not reach a terminal.
    return " ".join(f"{option} {shlex.quote(escape_unprintable(str(each)))}" for each in values)
