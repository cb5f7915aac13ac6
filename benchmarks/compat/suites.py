"""The suites: where their tests come from, and which engine they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compat.cluster import Cluster
from benchmarks.compat.outcomes import Outcome, SuiteResult, compare
from benchmarks.compat.package_suites import GoTests, PackageTests, PytestTests
from benchmarks.compat.yaml_runner import YamlRunner
from benchmarks.compat.yaml_suite import YamlTest, read_suite, skip_reason
from es_sbert.io.maven import Artifact, Maven

# Said with every result, so that nobody takes the suites for those of the clients themselves.
NO_TESTS = (
    "The source packages of opensearch-py 3.2.0 and elasticsearch-py 9.5.1 on PyPI carry no tests, nor do earlier ones "
    "(2.8.0; 8.19.2, 7.10.1). In their place are tests of libraries that use these clients, and opensearch-go's own."
)


@dataclass(frozen=True)
class YamlSuiteSource:
    """A jar with YAML tests on Maven Central.

    Attributes:
        check_warnings: See `YamlRunner`.
    """

    artifact: Artifact
    check_warnings: bool

    @property
    def label(self) -> str:
        return f"{self.artifact.group}:{self.artifact.name}:{self.artifact.version}"


@dataclass(frozen=True)
class PackageSource:
    """A library's package with its tests."""

    label: str
    tests: Callable[[Path], PackageTests]


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        name: As `--suite` takes it.
        engine: `es9`, `es8` or `opensearch`.
        title: For the docs.
    """

    name: str
    title: str
    engine: str
    source: YamlSuiteSource | PackageSource


def _jar(group: str, version: str) -> Artifact:
    return Artifact(group, "rest-api-spec", version, 1, packaging="jar")


# Later jars describe the APIs only. Warnings of two major versions are unknown to these tests.
_ELASTICSEARCH_YAML = YamlSuiteSource(_jar("org.elasticsearch", "7.10.2"), check_warnings=False)

SUITES = (
    Suite(
        "opensearch-yaml", "OpenSearch's YAML REST tests", "opensearch",
        YamlSuiteSource(_jar("org.opensearch", "3.0.0"), check_warnings=True),
    ),
    Suite(
        "elasticsearch-8-yaml", "Elasticsearch's YAML REST tests", "es8", _ELASTICSEARCH_YAML,
    ),
    Suite(
        # This build lacks modules: scripts, reindex, ingest processors, half of the analysis and aggregations.
        "elasticsearch-9-yaml", "Elasticsearch's YAML REST tests", "es9", _ELASTICSEARCH_YAML,
    ),
    Suite(
        "opensearch-haystack", "Haystack's OpenSearch integration (opensearch-py)", "opensearch",
        PackageSource("opensearch-haystack 9.0.0", lambda folder: PytestTests(
            folder, "opensearch-haystack==9.0.0", ("pytest-asyncio", "boto3"), "https://localhost:9200",
            # An index of faiss ends this build of the server.
            ("-m", "integration", "-k", "not efficient_filtering"),
        )),
    ),
    Suite(
        "elasticsearch-haystack", "Haystack's Elasticsearch integration (elasticsearch-py)", "es8",
        PackageSource("elasticsearch-haystack 7.1.0", lambda folder: PytestTests(
            folder, "elasticsearch-haystack==7.1.0", ("pytest-asyncio",), "http://localhost:9200",
            ("-m", "integration"),
        )),
    ),
    Suite(
        "opensearch-go", "opensearch-go", "opensearch",
        PackageSource("opensearch-go v4.8.1", lambda folder: GoTests(
            folder, "github.com/opensearch-project/opensearch-go/v4@v4.8.1",
            ("./opensearchapi", "./opensearchutil"), "integration,core",
            {"OPENSEARCH_URL": "{url}", "SECURE_INTEGRATION": "false", "OPENSEARCH_NODE_COUNT": "1"},
        )),
    ),
)  # fmt: skip


def run_yaml(
    suite: Suite,
    source: YamlSuiteSource,
    cluster: Cluster,
    gateway: str,
    maven: Maven,
    folder: Path,
    *,
    only: str,
    seen: Callable[[str, Outcome, Outcome], None],
) -> SuiteResult:
    """Run a YAML suite, each test directly and then through the gateway.

    Args:
        folder: For the jar.
        only: Only tests whose name holds this.
        seen: Called after each test.
    """
    read = read_suite(maven.fetch(source.artifact, folder))
    tests = {test.name: test for test in read.tests if only in test.name}
    result = SuiteResult(suite.name, source.label, cluster.label)

    @contextmanager
    def runner(url: str) -> Iterator[YamlRunner]:
        one = YamlRunner(
            url, read.apis, product=cluster.product, version=cluster.version, check_warnings=source.check_warnings
        )
        with closing(one):
            yield one

    with runner(cluster.url) as direct, runner(gateway) as through:

        def run(name: str) -> tuple[Outcome, Outcome]:
            test = tests[name]
            return _run_one(direct, test, cluster), _run_one(through, test, cluster)

        compare(result, tests, run, seen=seen)
    return result


def _run_one(runner: YamlRunner, test: YamlTest, cluster: Cluster) -> Outcome:
    reason = skip_reason(test, cluster.product, cluster.version)
    if reason is not None:
        return Outcome("skipped", reason=reason)
    try:
        return runner.run(test)
    finally:
        cluster.wipe()


def run_package(
    suite: Suite,
    source: PackageSource,
    cluster: Cluster,
    gateway: str,
    folder: Path,
    *,
    only: str,
    seen: Callable[[str, Outcome, Outcome], None],
) -> SuiteResult:
    """Run a library's tests, all directly and then all through the gateway.

    If any test ends differently, all are run again, directly and through the gateway.

    Args:
        folder: For the package and what it needs.
        only, seen: As in `run_yaml`.
    """
    tests = source.tests(folder)
    tests.prepare()
    missing = Outcome("skipped", reason="not run")

    def both() -> list[tuple[str, Outcome, Outcome]]:
        outcomes = []
        for url in (cluster.url, gateway):
            outcomes.append(tests.run(url))
            cluster.wipe()
        direct, through = outcomes
        names = [name for name in sorted({*direct, *through}) if only in name]
        return [(name, direct.get(name, missing), through.get(name, missing)) for name in names]

    first = {name: (direct, through) for name, direct, through in both()}
    second: dict[str, tuple[Outcome, Outcome]] = {}
    started: set[str] = set()

    def run(name: str) -> tuple[Outcome, Outcome]:
        if name not in started:
            started.add(name)
            return first[name]
        if not second:
            second.update({each: (direct, through) for each, direct, through in both()})
        return second.get(name, (missing, missing))

    result = SuiteResult(suite.name, source.label, cluster.label)
    compare(result, sorted(first), run, seen=seen)
    return result
