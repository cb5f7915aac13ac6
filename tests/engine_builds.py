"""Builds that only tests start: Elasticsearch 8.19 and OpenSearch 2.19.

The test build of OpenSearch 2.19 has no modules, unlike that of 3. Painless, which k-NN needs, and a few others are
assembled from their jars.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from es_sbert.engines.local import ENGINES, EngineBuild
from es_sbert.engines.local.engine_builds import (
    SONARQUBE_MODULES,
    opensearch_plugin,
    server_zip,
    sonarqube_modules,
)
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.local_engine import install
from es_sbert.engines.local.server_process import server_account
from es_sbert.filesystem import file_lock
from es_sbert.io.package_downloads import Artifact, find_maven

_OPENSEARCH2_VERSION = "2.19.1"


@dataclass(frozen=True)
class JarModule:
    """An OpenSearch module that is published only as jars, without the descriptor that the server needs."""

    name: str
    class_name: str
    jars: tuple[Artifact, ...]
    extends: str = ""
    permissions: tuple[str, ...] = ()

    def write(self, home: Path, fetch: Callable[[Artifact, Path], Path]) -> None:
        """Write the module into the home of a server."""
        folder = home / "modules" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        for jar in self.jars:
            fetch(jar, folder)
        descriptor = {
            "name": self.name,
            "description": self.name,
            "version": _OPENSEARCH2_VERSION,
            "opensearch.version": _OPENSEARCH2_VERSION,
            "java.version": 17,
            "classname": self.class_name,
            "extended.plugins": self.extends,
            "has.native.controller": "false",
        }
        (folder / "plugin-descriptor.properties").write_text("".join(f"{k}={v}\n" for k, v in descriptor.items()))
        if self.permissions:
            granted = "".join(f"  permission {permission};\n" for permission in self.permissions)
            (folder / "plugin-security.policy").write_text(f"grant {{\n{granted}}};\n")
        for path in folder.iterdir():
            path.chmod(0o644)


def _jar(group: str, name: str, version: str) -> Artifact:
    return Artifact(group, name, version, 1, packaging="jar")


def _module(name: str, class_name: str, artifact: str = "", extends: str = "") -> JarModule:
    jar = _jar("org.opensearch.plugin", artifact or name, _OPENSEARCH2_VERSION)
    return JarModule(name, f"org.opensearch.{class_name}", (jar,), extends)


OPENSEARCH2_MODULES = (
    JarModule(
        "lang-painless",
        "org.opensearch.painless.PainlessPlugin",
        (
            _jar("org.opensearch.plugin", "lang-painless", _OPENSEARCH2_VERSION),
            _jar("org.opensearch.plugin", "opensearch-scripting-painless-spi", _OPENSEARCH2_VERSION),
            _jar("org.antlr", "antlr4-runtime", "4.13.1"),
            *(
                _jar("org.ow2.asm", name, "9.7")
                for name in ("asm", "asm-util", "asm-tree", "asm-commons", "asm-analysis")
            ),
        ),
        permissions=('java.lang.RuntimePermission "createClassLoader"', 'java.lang.RuntimePermission "getClassLoader"'),
    ),
    _module("analysis-common", "analysis.common.CommonAnalysisPlugin", extends="lang-painless"),
    _module("mapper-extras", "index.mapper.MapperExtrasPlugin", "mapper-extras-client"),
    _module("parent-join", "join.ParentJoinPlugin", "parent-join-client"),
)


_ES8 = replace(
    ENGINES["es9"],
    name="es8",
    version="8.19.8",
    jdks=range(17, 1000),
    pieces=(server_zip("Elasticsearch", "8.19.8", 98), sonarqube_modules("26.2.0.119303", 910, SONARQUBE_MODULES)),
)
_OPENSEARCH2 = replace(
    ENGINES["opensearch"],
    name="opensearch2",
    version=_OPENSEARCH2_VERSION,
    jdks=range(17, 24),  # it needs the security manager, which Java 24 lacks
    pieces=(
        server_zip("OpenSearch", _OPENSEARCH2_VERSION, 51),
        opensearch_plugin("opensearch-job-scheduler", "opensearch-job-scheduler", "2.19.1.0", 3),
        opensearch_plugin("opensearch-knn", "opensearch-knn", "2.19.1.0", 6),
        opensearch_plugin("neural-search", "opensearch-neural-search", "2.19.1.0", 8),
    ),
)
BUILDS: dict[str, EngineBuild] = {**ENGINES, **{build.name: build for build in (_ES8, _OPENSEARCH2)}}


def with_settings(build: EngineBuild, settings: Mapping[str, str]) -> EngineBuild:
    """The build with further entries of its configuration file."""
    return replace(build, settings={**build.settings, **settings})


def find_build(name: str) -> EngineBuild:
    """The build of that name, ready to start."""
    build = BUILDS[name]
    if name == "opensearch2":
        install_build(build)
    return build


def install_build(build: EngineBuild) -> Path:
    """Return the home of a build, which is downloaded if it is missing; OpenSearch 2 gets its modules."""
    home = EngineHome.from_environment(os.environ, root=os.geteuid() == 0)
    home.create(server_account())
    fetch = find_maven(os.environ, print).fetch
    if not build.name.startswith("opensearch2"):
        return install(build, home.dist, fetch, print)
    folder = home.dist / build.folder_name
    with file_lock(folder.with_suffix(".modules"), lambda: None):
        if not folder.is_dir():
            bare = install(replace(build, name=f"bare-{build.name}"), home.dist, fetch, print)
            for module in OPENSEARCH2_MODULES:
                module.write(bare, fetch)
            bare.rename(folder)
    return folder
