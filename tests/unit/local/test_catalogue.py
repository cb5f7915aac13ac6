"""What the catalogue promises about its builds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from es_sbert.config import DEFAULT_URL
from es_sbert.engines.local import ENGINES, lookup
from es_sbert.errors import LocalEngineError


def test_the_default_engine_is_where_every_other_command_looks() -> None:
    assert DEFAULT_URL.endswith(f":{ENGINES['es9'].port}")


def test_no_two_engines_share_a_default_port() -> None:
    assert len({build.port for build in ENGINES.values()}) == len(ENGINES)


def test_coordinates_are_what_maven_takes() -> None:
    artifacts = [piece.artifact.coordinates for piece in ENGINES["opensearch"].pieces]
    assert artifacts == [
        "org.opensearch.distribution.integ-test-zip:opensearch:3.6.0:zip",
        "org.opensearch.plugin:opensearch-job-scheduler:3.6.0.0:zip",
        "org.opensearch.plugin:opensearch-knn:3.6.0.0:zip",
        "org.opensearch.plugin:neural-search:3.6.0.0:zip",
    ]


def test_another_piece_means_another_home() -> None:
    build = ENGINES["opensearch"]
    fewer = replace(build, pieces=build.pieces[:-1])
    assert fewer.folder_name != build.folder_name
    assert fewer.folder_name.startswith("opensearch-3.6.0-")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LocalEngineError) as caught:
        lookup("es7")
    assert "'es7'" in caught.value.message
    assert "es8, es9, opensearch, opensearch-ml" in caught.value.remedy
