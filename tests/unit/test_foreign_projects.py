"""The projects of other languages in `examples/`: pinned without addresses, and without a word about es-sbert."""

from __future__ import annotations

from pathlib import Path

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
