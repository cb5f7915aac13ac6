"""What the catalog promises about its builds."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest

from es_sbert.config import DEFAULT_URL
from es_sbert.engines.error_mapping import MODULES
from es_sbert.engines.local import ENGINES, find_build
from es_sbert.engines.local.engine_builds import SONARQUBE_MODULES
from es_sbert.errors import LocalEngineError
from tests.docs import PAGES


def test_default_engine_uses_the_default_url_port() -> None:
    assert DEFAULT_URL.endswith(f":{ENGINES['es9'].port}")


def test_default_ports_are_unique() -> None:
    assert len({build.port for build in ENGINES.values()}) == len(ENGINES)


def test_coordinates_are_valid_for_maven() -> None:
    artifacts = [piece.artifact.coordinates for piece in ENGINES["opensearch"].pieces]
    assert artifacts == [
        "org.opensearch.distribution.integ-test-zip:opensearch:3.6.0:zip",
        "org.opensearch.plugin:opensearch-job-scheduler:3.6.0.0:zip",
        "org.opensearch.plugin:opensearch-knn:3.6.0.0:zip",
        "org.opensearch.plugin:neural-search:3.6.0.0:zip",
    ]


def test_opensearch_2_modules_have_the_descriptors_that_a_server_reads() -> None:
    build = ENGINES["opensearch2"]
    modules = {module.name: module.files(build.version, build.minimum_jdk) for module in build.modules}
    assert modules.keys() >= {"lang-painless", "analysis-common"}
    for name, files in modules.items():
        descriptor = dict(line.split("=") for line in files["plugin-descriptor.properties"].splitlines())
        assert descriptor["name"] == name
        assert descriptor["opensearch.version"] == build.version
        assert descriptor["classname"].startswith("org.opensearch.")
    # It compiles scripts to classes.
    assert "createClassLoader" in modules["lang-painless"]["plugin-security.policy"]
    assert "plugin-security.policy" not in modules["analysis-common"]


@pytest.mark.parametrize("name", ["es9", "es8"])
def test_sonarqube_modules_are_mapped_to_their_folders(name: str) -> None:
    _, modules = ENGINES[name].pieces
    version = modules.artifact.version
    assert dict(modules.folders)[f"sonarqube-{version}/elasticsearch/modules/reindex/"] == "modules/reindex/"
    assert {outside for _, outside in modules.folders} >= {f"modules/{module}/" for module in SONARQUBE_MODULES}


def test_es9_modules_match_the_module_table() -> None:
    _, modules = ENGINES["es9"].pieces
    copied = {outside.split("/")[1] for _, outside in modules.folders}
    assert {module.name for module in MODULES if module.in_es9} == copied & {module.name for module in MODULES} != set()


def test_small_build_lacks_more_than_es9() -> None:
    assert set(ENGINES["es9-small"].missing_features) > set(ENGINES["es9"].missing_features)
    assert ENGINES["es9-small"].megabytes < ENGINES["es9"].megabytes / 5


def rows_of_page(begin: str) -> list[list[str]]:
    """Cells of the table whose head begins so in the command's page, without the head."""
    lines = (PAGES / "engine.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(begin))
    table = takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table]


def test_docs_page_lists_the_builds() -> None:
    rows = rows_of_page("| name |")
    assert [row[0] for row in rows] == list(ENGINES)
    for (_, server, port, download), build in zip(rows, ENGINES.values(), strict=True):
        assert build.label in server or build.name == "opensearch-ml"
        assert (port, download) == (str(build.port), f"{build.megabytes:,} MB")


@pytest.mark.parametrize(("column", "name"), [(1, "es9"), (2, "es9-small"), (3, "es8")])
def test_missing_features_match_the_docs_page(column: int, name: str) -> None:
    missing = [row[0] for row in rows_of_page("| feature |") if row[column] == "no"]
    lacks = ENGINES[name].missing_features
    assert len(lacks) == len(missing)
    for told, feature in zip(lacks, missing, strict=True):
        assert told in feature


def test_changed_pieces_change_the_home_folder() -> None:
    build = ENGINES["opensearch"]
    fewer = replace(build, pieces=build.pieces[:-1])
    assert fewer.folder_name != build.folder_name
    assert fewer.folder_name.startswith("opensearch-3.6.0-")


def test_unknown_engine_error_lists_known_names() -> None:
    with pytest.raises(LocalEngineError) as caught:
        find_build("es7")
    assert "'es7'" in caught.value.message
    assert "es8, es9, es9-small, opensearch, opensearch-ml, opensearch2" in caught.value.remedy
