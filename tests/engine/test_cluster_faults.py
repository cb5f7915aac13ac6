"""A sample of `benchmarks.cluster_faults`: a node of three is killed or frozen while a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.cluster import Cluster
from tests.cluster_faults.disturbances import FREEZE, KILL, KILL_FOR_GOOD, Disturbance
from tests.cluster_faults.run import Scenario, run_felt
from tests.cluster_faults.scenarios import InPlace, Migrate, Watch
from tests.engine.migration.support import two_encoders

# `test_several_addresses.py` has a load and searches while nodes die and freeze, which `make test` runs.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def encoders(models: Path) -> Iterator[tuple[Encoder, Encoder]]:
    with two_encoders(models) as both:
        yield both


@pytest.mark.parametrize(
    ("engine_cluster", "scenario", "fault"),
    [
        # Each command with a fault on one engine, and a killed node on the other engine's client.
        ("es9", InPlace, FREEZE),
        ("es9", Watch, KILL),
        ("es9", Migrate, KILL_FOR_GOOD),
        ("opensearch", InPlace, KILL),
        ("opensearch", Migrate, KILL_FOR_GOOD),
    ],
    indirect=["engine_cluster"],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_every_copy_of_every_document_is_as_it_must_be(
    engine_cluster: Cluster,
    encoders: tuple[Encoder, Encoder],
    models: Path,
    scenario: type[Scenario],
    fault: Disturbance,
) -> None:
    with engine_cluster.restored() as cluster:
        _, outcome = run_felt(scenario, fault, cluster, encoders, models, 7, scenario.usual_steps)
    found = outcome.comparison
    assert (outcome.failure, found.examples) == ("", [])
    assert outcome.exact
    assert found.documents >= 900
    assert found.copies == 6
