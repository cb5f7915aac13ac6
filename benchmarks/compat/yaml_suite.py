"""Tests of a YAML REST suite, read from the jar that publishes them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.compat.api_spec import Api, read_apis

_TESTS, _APIS = "rest-api-spec/test/", "rest-api-spec/api/"
_Version = tuple[int, int, int]
_NEVER: _Version = (10**6, 0, 0)

# What the runner can do beyond the operators that every runner has.
FEATURES = frozenset({
    "allowed_warnings", "allowed_warnings_regex", "arbitrary_key", "catch_unauthorized", "close_to", "contains",
    "default_shards", "embedded_stash_key", "headers", "node_selector", "stash_in_key", "stash_in_path", "warnings",
    "warnings_regex", "yaml",
})  # fmt: skip

Step = tuple[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML as the official runner reads it: only true and false are booleans, and dates are text."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*\.[0-9]*([eE][-+]?[0-9]+)?$"), list("-+0123456789")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""])


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    """An object, whose keys are always text."""
    return {
        key.value
        if isinstance(key, yaml.ScalarNode)
        else str(loader.construct_object(key, deep=True)): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_yaml(text: str | bytes) -> Any:
    """The first document of a text."""
    return next(iter(yaml.load_all(text, _Loader)), None)


@dataclass(frozen=True)
class YamlTest:
    """One test.

    Attributes:
        name: File and title: `search/10_source_filtering.yml: _source: true`.
        setup, steps, teardown: Pairs of an operator and its argument.
        skip: Arguments of `skip`, of the file and of the test.
    """

    name: str
    setup: tuple[Step, ...]
    steps: tuple[Step, ...]
    teardown: tuple[Step, ...]
    skip: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class YamlSuite:
    """The tests of a jar and the APIs that they call."""

    tests: tuple[YamlTest, ...]
    apis: Mapping[str, Api]


def read_suite(jar: Path) -> YamlSuite:
    """Tests and APIs of a jar."""
    with zipfile.ZipFile(jar) as archive:
        names = sorted(archive.namelist())
        apis = {name: archive.read(name) for name in names if name.startswith(_APIS) and name.endswith(".json")}
        files = [name for name in names if name.startswith(_TESTS) and name.endswith(".yml")]
        tests = [test for name in files for test in read_tests(name.removeprefix(_TESTS), archive.read(name))]
    return YamlSuite(tuple(tests), read_apis(apis))


def read_tests(file: str, text: str | bytes) -> Iterator[YamlTest]:
    """Tests of one file."""
    sections: dict[str, list[Mapping[str, Any]]] = {}
    for document in yaml.load_all(text, _Loader):
        sections |= document or {}
    setup, setup_skips = _steps(sections.pop("setup", None))
    teardown, teardown_skips = _steps(sections.pop("teardown", None))
    for title, entries in sections.items():
        steps, skips = _steps(entries)
        yield YamlTest(f"{file}: {title}", setup, steps, teardown, (*setup_skips, *teardown_skips, *skips))


def _steps(entries: Sequence[Mapping[str, Any]] | None) -> tuple[tuple[Step, ...], tuple[Mapping[str, Any], ...]]:
    """Steps and arguments of `skip` of one section."""
    pairs = [pair for entry in entries or () for pair in entry.items()]
    skips = tuple(argument for operator, argument in pairs if operator == "skip")
    return tuple(pair for pair in pairs if pair[0] != "skip"), skips


def skip_reason(test: YamlTest, product: str, version: str) -> str | None:
    """Why a test is not for this server or this runner; None if it is to be run."""
    for skip in test.skip:
        if "version" in skip and in_range(version, str(skip["version"]), product):
            return "not for this version"
        features = skip.get("features") or []
        for feature in [features] if isinstance(features, str) else features:
            for each in feature.split(","):
                if each.strip() not in FEATURES:
                    return f"feature {each.strip()}"
    return None


def in_range(version: str, ranges: str, product: str) -> bool:
    """Whether a version is in one of the ranges, `all` or `- 2.0.99, 2.4.0 -`.

    Versions 5 to 7 in OpenSearch's tests are those of Elasticsearch, which are older than any of OpenSearch.
    """
    if ranges.strip() == "all":
        return True
    for each in ranges.split(","):
        low, _, high = (part.strip() for part in each.partition("-"))
        first = _number(low, product) if low else (0, 0, 0)
        last = _number(high, product) if high else _NEVER
        if first <= _number(version, product) <= last:
            return True
    return False


def _number(version: str, product: str) -> _Version:
    parts = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    if product == "OpenSearch" and 5 <= major <= 7:
        return 0, major, minor
    return major, minor, patch
