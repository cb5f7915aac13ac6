"""Commands on a cluster of three nodes, which are killed, frozen and restarted, and whose shards are moved.

    python -m benchmarks.cluster_faults [--engine es9] [--scenario watch] [--fault killed] [--runs 20] [--write]

Starts a separate cluster for each engine. Each run creates an index with three shards and a replica of each, starts
a command, disturbs the cluster at a random moment of it, repairs the cluster, and compares every copy of every shard
with what it must hold, document by document. Of each seed, the latest run is kept in
`benchmarks/results/cluster_faults`; --write puts the table of all that are kept into docs/reliability.md. Ends with 1
where anything is lost, doubled, stale or wrong.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from threadpoolctl import threadpool_limits

from benchmarks.common import machine, replaced, table
from es_sbert.encoder.encoder import Encoder
from tests.cluster import OwnCluster, own_cluster
from tests.cluster_faults.disturbances import EVERY, Disturbance
from tests.cluster_faults.run import FaultNotFelt, Outcome, Scenario, run_felt, run_scenario
from tests.cluster_faults.scenarios import SCENARIOS
from tests.conftest import CLUSTER_ENGINES
from tests.engine.migration.support import two_encoders

RESULTS = Path(__file__).parent / "results" / "cluster_faults"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
NAME = "cluster-faults"
MAKER = "benchmarks.cluster_faults"
_COUNTS = ("lost", "doubled", "stale", "wrong", "unequal")


@dataclass(frozen=True)
class ClusterRun:
    """A run that felt its fault.

    Attributes:
        seed: Of its choices.
        exact: Whether the command and the index ended as they must.
        documents: On the primaries in the end.
        copies: Copies of shards that were compared.
        lost, doubled, stale, wrong, unequal: See `tests.cluster_faults.copies.Comparison`.
        failure: How the command failed; empty if it did not.
        seconds: All of the run.
    """

    seed: str
    exact: bool
    documents: int
    copies: int
    lost: int
    doubled: int
    stale: int
    wrong: int
    unequal: int
    failure: str
    seconds: float

    @classmethod
    def from_outcome(cls, seed: str, outcome: Outcome) -> ClusterRun:
        """What to keep of a run."""
        found = outcome.comparison
        counts = {name: len(getattr(found, name)) for name in _COUNTS}
        return cls(
            seed,
            outcome.exact,
            found.documents,
            found.copies,
            **counts,
            failure=outcome.failure,
            seconds=outcome.seconds,
        )


def combinations(scenarios: tuple[str, ...], faults: tuple[str, ...]) -> Iterator[tuple[type[Scenario], Disturbance]]:
    """The commands with what happens to them, by parts of their names; no names are all."""
    for scenario in SCENARIOS:
        for fault in EVERY:
            if scenarios and not any(word in scenario.name for word in scenarios):
                continue
            if faults and not any(word in fault.name for word in faults):
                continue
            yield scenario, fault


def path_of(engine: str, scenario: type[Scenario], fault: Disturbance) -> Path:
    """Where the runs are kept."""
    return RESULTS / engine / (re.sub(r"\W+", "-", f"{scenario.name} {fault.name}").strip("-") + ".json")


def kept(path: Path) -> list[ClusterRun]:
    """The runs that are kept in a file."""
    return [ClusterRun(**run) for run in json.loads(path.read_text())["runs"]] if path.exists() else []


def keep(path: Path, seed: int, run: ClusterRun) -> None:
    """Write a run; an earlier one of the same seed is replaced, the others stay."""
    others = [other for other in kept(path) if other.seed.partition(".")[0] != str(seed)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(machine() | {"runs": [asdict(one) for one in (*others, run)]}, indent=1) + "\n")


def section() -> str:
    """The table of all runs that are kept: a row for each command, with its runs under all faults on all engines."""
    rows = []
    for scenario in SCENARIOS:
        paths = [path_of(engine, scenario, fault) for engine in CLUSTER_ENGINES for fault in EVERY]
        runs = [run for path in paths for run in kept(path)]
        counts = [f"{sum(getattr(run, name) for run in runs):,}" for name in ("documents", *_COUNTS)]
        exact = f"{sum(run.exact for run in runs)} of {len(runs)}"
        rows.append([scenario.name, exact, counts[0], ", ".join(counts[1:])])
    return table(["command", "exact", "documents", ", ".join(_COUNTS)], rows)


@click.command()
@click.option("--engine", "engines", multiple=True, type=click.Choice(CLUSTER_ENGINES), default=CLUSTER_ENGINES)
@click.option("--scenario", "scenarios", multiple=True, help="Only commands whose name holds this.")
@click.option("--fault", "faults", multiple=True, help="Only faults whose name holds this.")
@click.option("--runs", default=20, show_default=True, help="Of each command with each fault.")
@click.option("--seed", default=1, show_default=True, help="Of the first run; the next one has the next number.")
@click.option("--kept", is_flag=True, help="Run nothing; with --write, the table of what is kept.")
@click.option("--write", is_flag=True, help="Put the table into docs/reliability.md.")
def main(
    engines: tuple[str, ...], scenarios: tuple[str, ...], faults: tuple[str, ...], runs: int, seed: int, kept: bool,
    write: bool,
) -> None:  # fmt: skip
    """Run the commands and keep what came of them."""
    bad = 0
    if not kept:
        # One thread: OpenBLAS hangs if nodes are started, which forks, while its threads multiply in another thread.
        with (
            threadpool_limits(1),
            tempfile.TemporaryDirectory() as folder,
            two_encoders(Path(folder)) as encoders,
        ):
            for engine in engines:
                with own_cluster(engine) as cluster:
                    chosen = list(combinations(scenarios, faults))
                    bad += _run_all(engine, cluster, chosen, encoders, Path(folder), range(seed, seed + runs))
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), NAME, section(), maker=MAKER))
    sys.exit(1 if bad else 0)


def _run_all(
    engine: str,
    cluster: OwnCluster,
    chosen: list[tuple[type[Scenario], Disturbance]],
    encoders: tuple[Encoder, Encoder],
    folder: Path,
    seeds: range,
) -> int:
    """All runs on one cluster; how many went wrong."""
    bad, steps = 0, dict[type[Scenario], int]()
    for scenario, fault in chosen:
        if scenario not in steps:
            # How many steps it takes, and whether it is exact without a fault.
            outcome = run_scenario(scenario, None, cluster, encoders, folder, "undisturbed")
            _show(engine, scenario.name, "no fault", "undisturbed", outcome)
            bad += not outcome.exact
            steps[scenario] = outcome.steps
        path = path_of(engine, scenario, fault)
        for seed in seeds:
            try:
                name, outcome = run_felt(scenario, fault, cluster, encoders, folder, seed, steps[scenario])
            except FaultNotFelt as error:
                click.echo(f"{engine}: {scenario.name}, {fault.name}, seed {seed}: left out, {error}")
                continue
            _show(engine, scenario.name, fault.name, name, outcome)
            bad += not outcome.exact
            keep(path, seed, ClusterRun.from_outcome(name, outcome))
    return bad


def _show(engine: str, command: str, fault: str, seed: str, outcome: Outcome) -> None:
    found = outcome.comparison
    counts = ", ".join(f"{name} {len(getattr(found, name))}" for name in _COUNTS)
    where = f"step {outcome.at} of {outcome.steps}"
    verdict = "exact" if outcome.exact else "NOT EXACT"
    click.echo(
        f"{engine}: {command}, {fault}, seed {seed}: {verdict}; {where}, {found.documents:,} documents on "
        f"{found.copies} copies, {counts}, {outcome.seconds:.0f} s"
    )
    for line in (outcome.failure, *found.examples):
        if line:
            click.echo(f"    {line[:1000]}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
