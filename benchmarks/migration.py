"""Writes during migrations: nothing that was acknowledged may be lost, doubled or changed.

    python -m benchmarks.migration --url es9=http://localhost:9200 [--url es8=…] [--rate 200] [--write]

An index of small documents is migrated from one tiny model (random weights) to another and back, again and again, while
threads insert, replace, partially update, update by script (where the engine has scripts) and delete documents by the
alias. Then every document is compared with what the acknowledged writes say. Results are kept in benchmarks/results.
With --rate, the threads write at that rate; these runs are kept in addition to those without a limit.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.common import machine, replaced, table
from es_sbert.encoder.encoder import Encoder
from es_sbert.migration.alias_swap import drop_old_index
from tests.engine.ingest_support import open_engine
from tests.engine.migration.support import document, make_place, two_encoders
from tests.random_writer import RandomWriter, RandomWriters, differences, shared_documents

RESULTS = Path(__file__).parent / "results" / "migration"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
NAME = "migration"
MAKER = "benchmarks.migration"
ENGINES = ("es9", "es8", "opensearch")
_OURS = frozenset({"embedding", "embedding_meta", "_routing"})
_BETWEEN = 200  # writes from one migration to the next


@dataclass(frozen=True)
class MigrationRun:
    """Migrations of one index on one engine.

    Attributes:
        label: The engine.
        migrations: How many were finished.
        documents: In the index at the end.
        operations: Acknowledged writes.
        scripted: Of these, updates by a script.
        refused: Answers that refused a write while writes were held.
        retried: Writes that were refused and taken when they were sent again.
        not_found: Documents that were not found right after they were written.
        differences: Documents that are not as the acknowledged writes say.
        held: Seconds for which writes were refused, one number a migration.
        seconds: All of it.
        attempts: How often writes were blocked, one number a migration.
        rate: Writes a second that were asked for; None for as many as possible.
    """

    label: str
    migrations: int
    documents: int
    operations: int
    scripted: int
    refused: int
    retried: int
    not_found: int
    differences: int
    held: list[float]
    seconds: float
    attempts: list[int] = field(default_factory=list)
    rate: int | None = None

    @property
    def good(self) -> bool:
        return not self.differences and not self.not_found and self.migrations == len(self.held)


class PacedWriters(RandomWriters):
    """Writers that write at a rate.

    Args:
        rate: Writes a second of all threads together.
    """

    def __init__(self, *args: Any, rate: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pause = len(self.writers) / rate

    def _run(self, writer: RandomWriter) -> None:
        writer.step = self._paced(writer.step)  # type: ignore[method-assign]
        super()._run(writer)

    def _paced(self, step: Callable[[], None]) -> Callable[[], None]:
        due = time.monotonic()

        def paced() -> None:
            nonlocal due
            # Not late for ever: writes that were refused are not made up for.
            due = max(due + self._pause, time.monotonic() - self._pause)
            time.sleep(max(0.0, due - time.monotonic()))
            step()

        return paced


def run(
    name: str,
    url: str,
    encoders: tuple[Encoder, Encoder],
    *,
    migrations: int,
    documents: int,
    threads: int,
    seed: int,
    rate: int | None,
) -> MigrationRun:
    """Migrate an index back and forth while random writers run, and compare it."""
    begin = time.monotonic()
    with open_engine(url) as engine, tempfile.TemporaryDirectory() as folder:
        places = make_place(engine, encoders[0], Path(folder) / "dead.jsonl", documents)
        with closing(places):
            place = next(places)
            place.write(shared_documents())
            scripts = name != "es9"  # the build of the tests, es9-small, lacks them
            how: dict[str, Any] = {"threads": threads, "seed": seed, "scripts": scripts}
            writers = (
                RandomWriters(url, place.alias, **how)
                if rate is None
                else PacedWriters(url, place.alias, rate=rate, **how)
            )
            held, attempts = [], []
            with writers.running():
                for number in range(migrations):
                    writers.wait_for(_BETWEEN)
                    result = place.migrate(encoders[(number + 1) % 2])
                    held.append(result.writes_refused_seconds)
                    attempts.append(result.holds)
                    click.echo(f"{name}: {number + 1} of {migrations}, writes held {held[-1]:.2f} s", err=True)
                    drop_old_index(engine, place.alias, lambda index, documents: True)
                writers.wait_for(_BETWEEN)
            counts = writers.counts()
            expected = {str(number): document(number) for number in range(documents)} | writers.expected()
            found = place.contents()
            wrong = differences(expected, found, _OURS.__contains__)
            for line in wrong[:10]:
                click.echo(f"  {line}", err=True)
            next(places, None)
    scripted = counts.acknowledged["script"] + counts.acknowledged["shared script"]
    return MigrationRun(
        engine.info.label,
        migrations,
        len(found),
        counts.operations,
        scripted,
        counts.refused,
        counts.retried,
        counts.missing,
        len(wrong),
        held,
        round(time.monotonic() - begin, 1),
        attempts,
        rate,
    )


def kept() -> dict[str, MigrationRun]:
    """Engine → the run that is kept of it."""
    order = {name: number for number, name in enumerate(ENGINES)}
    runs = {path.stem: MigrationRun(**json.loads(path.read_text())["run"]) for path in RESULTS.glob("*.json")}
    return dict(sorted(runs.items(), key=lambda one: (order[one[0].partition("-")[0]], one[1].rate or 10**6)))


def keep(name: str, one: MigrationRun, about: dict[str, Any]) -> None:
    """Write the run of an engine."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(about | {"run": asdict(one)}, indent=1) + "\n")


def section() -> str:
    """The table of the runs that are kept."""
    header = ["engine", "writes a second", "migrations", "documents at the end", "operations", "by script",
              "refused answers", "writes sent again", "not found after a write", "differences", "hold, median s",
              "hold, longest s", "most attempts"]  # fmt: skip
    rows = [
        [
            name.partition("-")[0],
            f"{one.operations / one.seconds:.0f}" + ("" if one.rate is None else f" of {one.rate}"),
            one.migrations,
            f"{one.documents:,}",
            f"{one.operations:,}",
            f"{one.scripted:,}",
            f"{one.refused:,}",
            f"{one.retried:,}",
            one.not_found,
            one.differences,
            f"{statistics.median(one.held):.2f}",
            f"{max(one.held):.2f}",
            max(one.attempts, default=1),
        ]
        for name, one in kept().items()
    ]
    return table(header, rows)


@click.command()
@click.option("--url", "urls", multiple=True, metavar="ENGINE=URL", help="es9, es8 or opensearch, and its address.")
@click.option("--migrations", default=10, show_default=True)
@click.option("--documents", default=5000, show_default=True, help="That nobody writes to.")
@click.option("--threads", default=4, show_default=True, help="Of the random writer.")
@click.option("--seed", default=13, show_default=True)
@click.option("--rate", "rates", type=int, multiple=True, help="Writes a second.  [default: as many as possible]")
@click.option("--write", is_flag=True, help="Put the table of what is kept into docs/reliability.md.")
def main(
    urls: tuple[str, ...],
    migrations: int,
    documents: int,
    threads: int,
    seed: int,
    rates: tuple[int, ...],
    write: bool,
) -> None:
    """Run the migrations and keep what came of them."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder, two_encoders(Path(folder)) as encoders:
        for given in urls:
            name, _, url = given.partition("=")
            if name not in ENGINES:
                raise click.BadParameter(f"{given} does not begin with one of {', '.join(ENGINES)}")
            how = {"documents": documents, "threads": threads, "seed": seed}
            for rate in rates or (None,):
                one = run(name, url, encoders, migrations=migrations, rate=rate, **how)
                click.echo(f"{name}: {'good' if one.good else 'BAD'} {one}")
                bad += not one.good
                keep(name if rate is None else f"{name}-{rate}", one, how | machine())
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), NAME, section(), maker=MAKER))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
