"""Other projects' test suites, against an engine directly and through the gateway.

    python -m benchmarks.compat [--suite opensearch-yaml] [--write]

Each test is run directly and through the gateway, and the outcomes are compared: whether it passed, the step that
failed, and for YAML tests also status, content type and warnings of every answer. A difference counts if it is seen
again when the test is run a second time. The command starts the engines and gateways that it needs.
Results are kept in benchmarks/results/compat; --write puts their table into docs/clients.md. Ends with 1 if there is
a difference.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import click
import httpx

from benchmarks.common import machine, replaced
from benchmarks.compat.cluster import Cluster
from benchmarks.compat.kept import MAKER, NAME, PAGE, keep, kept, section, skips
from benchmarks.compat.outcomes import Outcome, SuiteResult
from benchmarks.compat.servers import gateway, given_cluster, own_cluster
from benchmarks.compat.suites import NO_TESTS, SUITES, Suite, YamlSuiteSource, run_package, run_yaml
from es_sbert.errors import EsSbertError
from es_sbert.io.maven import find_maven

_NAMES = [suite.name for suite in SUITES]
_EVERY = 100


class _Progress:
    """Prints a line for every failure and difference, and a count now and then."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self._tests = 0
        self._begin = time.monotonic()

    def seen(self, test: str, direct: Outcome, through: Outcome) -> None:
        """A test was run."""
        self._tests += 1
        if not direct.agrees_with(through):
            click.echo(f"  DIFFERENCE {test}\n    direct:  {direct.describe(through)}", err=True)
            click.echo(f"    gateway: {through.describe(direct)}", err=True)
        elif direct.status == "failed" and self._verbose:
            click.echo(f"  failed alike: {test}: {direct.step}: {direct.reason}", err=True)
        if self._tests % _EVERY == 0:
            click.echo(f"  {self._tests} tests, {time.monotonic() - self._begin:.0f} s", err=True)


@click.command()
@click.option("--suite", "names", multiple=True, type=click.Choice(_NAMES), default=_NAMES, help="May be repeated.")
@click.option("--only", default="", help="Only tests whose name holds this. Such results are not kept.")
@click.option("--opensearch", metavar="URL", help="A server that runs already, with nothing in it.")
@click.option("--elasticsearch", metavar="URL", help="A server that runs already, with nothing in it.")
@click.option("--wipe", is_flag=True, help="Delete all indices of the servers that are named.")
@click.option("--gateway-option", "options", multiple=True, help="For es-sbert serve. Such results are not kept.")
@click.option("--verbose", is_flag=True, help="List tests that fail both ways alike too.")
@click.option("--write", is_flag=True, help="Put the table of all kept results into docs/clients.md.")
def main(
    names: tuple[str, ...],
    only: str,
    opensearch: str | None,
    elasticsearch: str | None,
    wipe: bool,
    options: tuple[str, ...],
    verbose: bool,
    write: bool,
) -> None:
    """Run the suites and compare."""
    given = {"opensearch": opensearch, "es8": elasticsearch, "es9": elasticsearch}
    chosen = sorted((suite for suite in SUITES if suite.name in names), key=lambda suite: suite.engine)
    results = []
    about = machine()  # at the start: the tree may have moved on at the end
    try:
        for engine, suites in groupby(chosen, key=lambda suite: suite.engine):
            # One engine at a time: together they would take twice the memory.
            with _cluster(engine, given[engine], wipe) as cluster, gateway(cluster.url, *options) as through:
                for suite in suites:
                    results.append(_run(suite, cluster, through, only, _Progress(verbose)))
                    if not only and not options:
                        keep(results[-1], about)
    except EsSbertError as error:
        click.echo(error, err=True)
        sys.exit(2)
    except httpx.HTTPError as error:
        # If it were ignored, every later test would fail both directly and through the gateway.
        click.echo(f"the engine cannot be wiped any more: {error!r}\n  Look into its log.", err=True)
        sys.exit(2)
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), NAME, section(kept()), maker=MAKER))
    _print(results)
    sys.exit(1 if any(result.differences for result in results) else 0)


@contextmanager
def _cluster(engine: str, url: str | None, wipe: bool) -> Iterator[Cluster]:
    with own_cluster(engine) if url is None else given_cluster(url, may_wipe=wipe) as cluster:
        yield cluster


def _run(suite: Suite, cluster: Cluster, through: str, only: str, progress: _Progress) -> SuiteResult:
    click.echo(f"{suite.name}: {suite.source.label}, {cluster.label}", err=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if isinstance(suite.source, YamlSuiteSource):
            maven = find_maven(os.environ, lambda line: click.echo(f"  {line}", err=True))
            return run_yaml(suite, suite.source, cluster, through, maven, folder, only=only, seen=progress.seen)
        return run_package(suite, suite.source, cluster, through, folder, only=only, seen=progress.seen)


def _print(results: list[SuiteResult]) -> None:
    click.echo(section(results))
    click.echo(NO_TESTS)
    for result in results:
        if result.skipped:
            click.echo(f"{result.suite}: skipped {skips(result)}")
        for kind, differences in (("flaky", result.flaky), ("difference", result.differences)):
            for each in differences:
                click.echo(f"{result.suite}: {kind}: {each.test}\n  direct:  {each.direct}\n  gateway: {each.gateway}")


if __name__ == "__main__":
    main()
