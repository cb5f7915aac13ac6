"""Real search engines for the tests: started on first use, one for all processes of the run, stopped at its end.

CONTRIBUTING.md says which fixture is which engine, and which variables name servers that run already. `es9` is the
small build, which starts faster; the one that users get is `es9_full_url`.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import os
import random
import shutil
import socket
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import elastic_transport  # noqa: F401 - whole: a command line that a test calls would import it without aiohttp
import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.engine.secured import Secured
    from tests.engine.secured_opensearch import SecuredOpenSearch

# One thread a process, of those that tests start too: the machine has other tests and servers to run at the same
# time, and threads of torch that wait for each other make its many small products several times slower. Results are
# also the same to the last bit. Read when torch and numpy are loaded, which is after this.
os.environ["OMP_NUM_THREADS"] = "1"

# Test modules import onnxruntime before es_sbert, which would otherwise set this.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Servers that live for minutes take less of the processor where their Java compiles less. They take their heap as they
# need it, not at once: a dozen of them run at the same time.
os.environ.setdefault("ES_SBERT_ENGINE_JAVA_OPTS", "-XX:TieredStopAtLevel=1 -XX:-AlwaysPreTouch")

# A change is judged by the same examples on every machine, however slow. `make long` tries more of them, and
# `--hypothesis-profile explore` looks for others.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("long", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("steady")

# Of a server that all processes of a run share. Those of few tests have the smaller one.
_HEAP = "1g"
_SMALL_HEAP = "512m"

# What each test of `engine_url` runs on. ES_SBERT_TEST_ALL_ENGINES adds Elasticsearch 8, as `make long` does.
EVERY_ENGINE = ("es9", "es8", "opensearch")
ENGINES = EVERY_ENGINE if "ES_SBERT_TEST_ALL_ENGINES" in os.environ else ("es9", "opensearch")
ENGINE_FIXTURES = {f"{name}_url" for name in (*EVERY_ENGINE, "es9_full", "opensearch2", "opensearch_ml")} | {
    "elastic",
    "engine_url",
    "secured_es9",
    "secured_es8",
    "secured_opensearch",
}

# A test of `engine_url` whose answer depends on the version: what is sent as a list or in base64, options of mappings,
# where vectors are in `_source`, scripts, the version of the client. For few tests, so that a run does not take longer.
also_es8 = pytest.mark.parametrize("engine_url", EVERY_ENGINE, indirect=True, scope="session")
on_every_version = pytest.mark.parametrize("engine_url", [*EVERY_ENGINE, "opensearch2"], indirect=True, scope="session")
# Where OpenSearch 2 most likely answers as OpenSearch 3 does: in the long run.
_LONG_RUN = [*EVERY_ENGINE, "opensearch2"] if ENGINES == EVERY_ENGINE else ENGINES
also_opensearch2 = pytest.mark.parametrize("engine_url", _LONG_RUN, indirect=True, scope="session")
# Where the small build of Elasticsearch 9 lacks a module, and OpenSearch has it.
ES8_IN_LONG_RUN = pytest.param("es8", marks=pytest.mark.long)

CLUSTER_ENGINES = ("es9", "opensearch")
CLUSTER_FIXTURES = {f"{name}_cluster" for name in (*CLUSTER_ENGINES, "engine")}

_ENGINE_TESTS = Path(__file__).parent / "engine"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a test after its parameter, not after bytes that are no text: those of gzip hold the time.

    The processes of `pytest --numprocesses` would otherwise collect tests of different names, and run none.
    """
    return argname if isinstance(val, bytes) and not val.isascii() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a server is `engine` and `slow`, so that `-m "not slow"` never starts one.

    All of `tests/engine` is marked, because a test can request a server while it runs (`getfixturevalue`). Whatever
    asks for a cluster is also `cluster`. Tests with the CUDA stand-ins are `slow` because the stand-ins are compiled
    first, and what is `long` is `slow`.

    What is `one_engine` runs on OpenSearch in the long run, apart from the first test of each module.

    Tests of clusters come first, those of one engine after those of the other: each cluster is started once. All of
    them go to one process, so that only one cluster runs. The tests that take longest follow.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if CLUSTER_FIXTURES & fixtures:
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("clusters"))
        if item.get_closest_marker("one_engine") and _repeats_on_opensearch(item):
            item.add_marker(pytest.mark.long)
        if _ENGINE_TESTS in item.path.parents or (ENGINE_FIXTURES | CLUSTER_FIXTURES) & fixtures:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.slow)
        elif "cuda_stand_ins" in fixtures or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
    order: list[str | None] = [*CLUSTER_ENGINES, None]
    items.sort(key=lambda item: (order.index(_cluster_engine(item)), item.get_closest_marker("long") is None))


def _repeats_on_opensearch(item: pytest.Item) -> bool:
    """Whether this is a test of `engine_url` on OpenSearch that is not the first one of its module."""
    assert isinstance(item, pytest.Function)
    call = getattr(item, "callspec", None)
    first = next(name for name in vars(item.module) if name.startswith("test_"))
    return call is not None and call.params.get("engine_url") == "opensearch" and item.originalname != first


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, tests of a file that are in no group also run in one process."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFileOrGroup(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope = str(super()._split_scope(nodeid))
            return scope.partition("::")[0]

    return ByFileOrGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    """Exclude what collection has created from garbage collections: it lives until the end.

    Otherwise each full collection would traverse all test modules and torch again, and accelerate runs several full
    collections in each training.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Compare the words of the errors that a test has caught with its golden entry."""
    from tests.raised import compare_recorded

    with compare_recorded(pyfuncitem, pyfuncitem.funcargs["tmp_path_factory"].getbasetemp()):
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: a run that is stopped, or takes too long, prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", file=sys.stderr, flush=True)


def pytest_unconfigure() -> None:
    """Let the interpreter free everything at exit, because libraries report the rest as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def registry_of_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all model registries of this run; those of fixtures of a wider scope than a test share one."""
    folder = tmp_path_factory.mktemp("registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_REGISTRY", str(folder / "shared.json"))
        yield folder


@pytest.fixture(autouse=True)
def registry(registry_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model registry of the test's own, empty: what a test registers is found by no other, nor written at home."""
    path = registry_of_run / f"{uuid.uuid4().hex}.json"
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(path))
    return path


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are fetched and exported below `tmp_path`."""
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(tmp_path / "registry/models.json"))
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """es-sbert is a checkout on PYTHONPATH: Python finds no metadata of it, and so none of its entry points."""
    discover = importlib.metadata.Distribution.discover

    def others(**criteria: Any) -> Iterator[importlib.metadata.Distribution]:
        return (found for found in discover(**criteria) if found.metadata["Name"] != "es-sbert")

    monkeypatch.setattr(importlib.metadata.Distribution, "discover", others)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("es-sbert")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore handlers and levels, which are global and which commands change."""
    from es_sbert.messages import logger

    root, level, hook = logging.getLogger(), logger.level, sys.excepthook
    handlers = list(root.handlers)
    yield
    root.handlers[:] = handlers
    logger.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook = hook


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged may hold bytes that are no Unicode, which a report cannot carry to another process."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on, and that is given to nobody else.

    Below those that the system hands out to whoever asks for any, as every connection does: such a one may be taken
    again before a server that is still starting listens on it. Each process of the run has a range of its own.
    """
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of consecutive such ports for the nodes of a cluster, which also have ports to talk to each other."""
    for port in _ports:
        http = range(port, port + count)
        wanted = {*http, *map(transport_port, http)} if count > 1 else {port}
        if not wanted & _taken and wanted <= set(_own_range()) and all(map(port_is_free, wanted)):
            _taken.update(wanted)
            return port
    raise AssertionError("every port of this process's range has been given away")


def transport_port(port: int) -> int:
    """Port on which the node of an HTTP port listens for the other nodes."""
    return port + 50


def port_is_free(port: int) -> bool:
    """Whether a server could listen on a port of the loopback interface."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers set it
        probe.bind(("127.0.0.1", port))
        return True
    return False


def _own_ports() -> Iterator[int]:
    """Ports of this process's range, each once; runs beside this one begin elsewhere in theirs, most likely.

    A run without workers has the last range, so that it can run beside one with workers.
    """
    own = _own_range()
    begin = random.SystemRandom().randrange(len(own))
    return iter((*own[begin:], *own[:begin]))


def _own_range() -> range:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw15").removeprefix("gw")) % 16
    return range(_FIRST_PORT + worker * _RANGE, _FIRST_PORT + (worker + 1) * _RANGE)


_FIRST_PORT, _RANGE = 12_000, 1000
_ports = _own_ports()
_taken: set[int] = set()  # given away, among them ports that the iterator has not reached


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A TCP port of the loopback interface on which nothing listens, nor will before the test ends."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def build_of(engine: str) -> str:
    """What `es-sbert engine up` takes for an engine of the tests."""
    return "es9-small" if engine == "es9" else engine


def _server(factory: pytest.TempPathFactory, engine: str, build: str = "", heap: str = _HEAP) -> Iterator[str]:
    """Address of the server of this run: started by the process that needs it first, stopped by the last to end."""
    given = os.environ.get(f"ES_SBERT_TEST_{engine.upper()}")
    if given:
        yield given.rstrip("/")
        return
    from tests.shared import folder_of_run, shared

    place = folder_of_run(factory) / f"{engine}.json"
    with shared(place, lambda: start_server(build or build_of(engine), heap), stop_server) as server:
        yield str(server["engine"]["url"])


def start_server(build: str, heap: str) -> dict[str, Any]:
    """Start a server with its data in memory where that is possible; described so that any process can stop it."""
    from es_sbert.engines.local import start_engine
    from tests.engine_builds import find_build, with_settings
    from tests.memory import make_folder_in_memory

    data = make_folder_in_memory()
    described: dict[str, Any] = {"folder": data and str(data)}
    try:
        settings = {"path.data": str(data)} if data else {}
        # A port of its own: a server that the developer runs with `es-sbert engine up` is never touched.
        server = start_engine(with_settings(find_build(build), settings), port=free_port(), heap=heap, timeout=600)
        return described | {"engine": server.model_dump(mode="json")}
    except BaseException:
        stop_server(described)
        raise


def stop_server(described: dict[str, Any]) -> None:
    """Stop what `start_server` has started, and remove all of it."""
    from es_sbert.engines.local import RunningEngine, stop_engine

    if "engine" in described:
        stop_engine(RunningEngine.model_validate(described["engine"]), purge=True)
    if described["folder"]:
        shutil.rmtree(described["folder"])


@pytest.fixture(scope="session")
def es9_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an Elasticsearch 9.x without credentials, scripts, `GET /` and other modules."""
    yield from _server(tmp_path_factory, "es9")


@pytest.fixture(scope="session")
def es9_full_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the Elasticsearch 9.x that users get from `es-sbert engine up`."""
    yield from _server(tmp_path_factory, "es9_full", "es9", _SMALL_HEAP)


@pytest.fixture(scope="session")
def es8_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an Elasticsearch 8.19 with painless and the other modules es-sbert uses."""
    yield from _server(tmp_path_factory, "es8")


@pytest.fixture(scope="session")
def opensearch_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an OpenSearch 3.x with the k-NN plugin."""
    yield from _server(tmp_path_factory, "opensearch")


@pytest.fixture(scope="session")
def opensearch2_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an OpenSearch 2.19 with the k-NN plugin."""
    yield from _server(tmp_path_factory, "opensearch2", heap=_SMALL_HEAP)


@pytest.fixture(scope="session")
def opensearch_ml_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an OpenSearch 3.x with ml-commons too; one test alone uses it and may change its cluster settings."""
    yield from _server(tmp_path_factory, "opensearch_ml", "opensearch-ml")


@pytest.fixture
def alone_on_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No other process of the run changes engines as a whole while it runs (`tests.shared.alone_on_engines`)."""
    from tests.shared import alone_on_engines, folder_of_run

    with alone_on_engines(folder_of_run(tmp_path_factory)):
        yield


@pytest.fixture(scope="session")
def secured_es9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """An Elasticsearch 9.x with TLS and users, one for all processes of the run."""
    from tests.engine.secured import secured_elasticsearch
    from tests.shared import folder_of_run

    with secured_elasticsearch(folder_of_run(tmp_path_factory), "es9") as server:
        yield server


@pytest.fixture(scope="session")
def secured_es8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """An Elasticsearch 8.19 with TLS, users and API keys, one for all processes of the run."""
    from tests.engine.secured import secured_elasticsearch
    from tests.shared import folder_of_run

    with secured_elasticsearch(folder_of_run(tmp_path_factory), "es8") as server:
        yield server


@pytest.fixture(scope="session")
def secured_opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredOpenSearch]:
    """An OpenSearch 2.19 with the security plugin, one for all processes of the run."""
    from tests.engine.secured_opensearch import secured_opensearch
    from tests.shared import folder_of_run

    with secured_opensearch(folder_of_run(tmp_path_factory)) as server:
        yield server


@pytest.fixture(scope="session", params=ENGINES)
def engine_url(request: pytest.FixtureRequest) -> str:
    """Each engine's address in turn; see also `also_es8` and `on_every_version`."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


_clusters: dict[str, tuple[Cluster, ExitStack]] = {}


def _cluster(engine: str) -> Cluster:
    """A cluster, started on first use; see `pytest_runtest_teardown`."""
    from tests.cluster import Cluster, own_cluster

    if engine not in _clusters:
        given, stack = os.environ.get(f"ES_SBERT_TEST_{engine.upper()}_CLUSTER"), ExitStack()
        if given:
            cluster = Cluster([url.strip().rstrip("/") for url in given.split(",")])
        else:
            cluster = stack.enter_context(own_cluster(engine))
        _clusters[engine] = cluster, stack
    return _clusters[engine][0]


def _cluster_engine(item: pytest.Item | None) -> str | None:
    """The engine whose cluster a test asks for."""
    if "engine_cluster" in getattr(item, "fixturenames", ()):
        return str(item.callspec.params["engine_cluster"])  # type: ignore[union-attr]
    return None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop a cluster once no test needs it: it takes two gigabytes of memory."""
    for engine in [engine for engine in _clusters if engine != _cluster_engine(nextitem)]:
        _clusters.pop(engine)[1].close()


@pytest.fixture(params=CLUSTER_ENGINES)
def engine_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each cluster in turn."""
    return _cluster(request.param)


@pytest.fixture
def fresh_index() -> Iterator[Callable[[str], str]]:
    """A function url → unique index name on that server; every index so named is deleted after the test."""
    made: list[tuple[str, str]] = []

    def name_for(url: str) -> str:
        made.append((url, f"test-{uuid.uuid4().hex[:12]}"))
        return made[-1][1]

    yield name_for
    for url, name in made:
        delete_index(url, name)


@pytest.fixture
def index_name(engine_url: str, fresh_index: Callable[[str], str]) -> str:
    """A unique index name on `engine_url`'s server, deleted after the test if the test created it."""
    return fresh_index(engine_url)


def delete_index(url: str, name: str) -> None:
    """Remove an index, if it is there."""
    request = urllib.request.Request(f"{url}/{name}", method="DELETE")
    # Without the proxies of the environment: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=300) as response:
            response.read()
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 404:  # 404: the test never created it
                raise
