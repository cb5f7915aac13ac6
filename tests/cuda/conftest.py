"""The stand-ins for the CUDA libraries, built once a test session."""

from __future__ import annotations

import pytest

from tests.cuda.build import find_tools
from tests.cuda.stand_in import StandIns


@pytest.fixture(scope="session")
def cuda_stand_ins(tmp_path_factory: pytest.TempPathFactory) -> StandIns:
    """Stand-ins for the CUDA libraries; skips with what is missing where they cannot be built."""
    tools = find_tools()
    if isinstance(tools, str):
        pytest.skip(tools)
    return StandIns(tmp_path_factory.mktemp("cuda"), tools)
