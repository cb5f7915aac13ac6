"""The projects of other languages in `examples/`: pinned without addresses, and without a word about es-sbert."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE_PROJECTS = ("search-ui", "searchkit", "clients/javascript")


@pytest.mark.parametrize("project", NODE_PROJECTS)
def test_lock_files_contain_no_urls(project: str) -> None:
    content = (EXAMPLES / project / "package-lock.json").read_bytes()
    assert b"://" not in content, "write it by scripts/lock-npm"
    packages = orjson.loads(content)["packages"]
    assert len(packages) > 10
    for name, package in packages.items():
        assert not name or package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package


def test_maven_examples_configure_no_repositories() -> None:
    root = ElementTree.parse(EXAMPLES / "clients/java/pom.xml").getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"repositories", "pluginRepositories", "distributionManagement"}
    versions = [element.text for element in root.iter() if element.tag.endswith("}version")]
    assert all(version and version[0].isdigit() for version in versions)
