"""The applications, installed and built once for all processes of a test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.filesystem import file_lock
from tests.gateway.apps.pages import AppPage
from tests.node import EXAMPLES, install_node_project
from tests.shared import folder_of_run

Build = Callable[[type[AppPage]], Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function from an application to the folder where it was installed and built, by whoever came first."""

    def folder_of(kind: type[AppPage]) -> Path:
        folder = folder_of_run(tmp_path_factory) / f"app-{kind.app}"
        built = folder.with_suffix(".built")
        with file_lock(folder.with_suffix(".lock"), lambda: None):
            if not built.exists():
                install_node_project(EXAMPLES / kind.app, folder, build=True)
                built.touch()
        return folder

    return folder_of
