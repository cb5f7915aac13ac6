"""The applications, installed and built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.apps.pages import AppPage
from tests.node import EXAMPLES, install_node_project

Build = Callable[[type[AppPage]], Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function from an application to the folder where it was installed and built, once."""
    built: dict[str, Path] = {}

    def folder_of(kind: type[AppPage]) -> Path:
        if kind.app not in built:
            folder = tmp_path_factory.mktemp("apps") / kind.app
            built[kind.app] = install_node_project(EXAMPLES / kind.app, folder, build=True)
        return built[kind.app]

    return folder_of
