"""The configuration of a server: settings file, JVM options, environment and folders."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from es_sbert.engines.local.engine_builds import EngineBuild
from es_sbert.engines.local.server_process import Account
from es_sbert.errors import UsageError

LOOPBACK = "127.0.0.1"

# More options for the server's JVM, as java takes them.
JAVA_OPTS_VARIABLE = "ES_SBERT_ENGINE_JAVA_OPTS"
_HEAP_PATTERN = re.compile(r"[1-9][0-9]*[kKmMgG]")
_FIRST_LINE = "# Written by es-sbert at every start of {label}: changes are lost.\n"
_VERSION_IN_FIRST_LINE = re.compile(r"# Written by es-sbert at every start of \S+ (\d+(?:\.\d+)+): ")


def check_heap(heap: str) -> str:
    """A heap size as the JVM takes it.

    Raises:
        UsageError: it is none.
    """
    if not _HEAP_PATTERN.fullmatch(heap):
        raise UsageError(f"{heap!r} is no heap size", "Write a number with m or g behind it: 512m, 1g, 4g.")
    return heap


def settings_file(build: EngineBuild, port: int, work: Path) -> str:
    """`elasticsearch.yml` or `opensearch.yml`; JSON strings are YAML strings."""
    settings = {
        "cluster.name": f"es-sbert-{build.name}",
        "node.name": f"{build.name}-{port}",
        "discovery.type": "single-node",
        "network.host": LOOPBACK,
        "http.port": str(port),
        # Any free port: nobody connects to it, and a fixed one would collide with other servers.
        "transport.port": "0",
        "path.data": str(work / "data"),
        "path.logs": str(work / "logs"),
        # On a disk that is 95 % full the servers turn indices read-only: a surprise on a work machine.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        **dict(build.settings),
    }
    return _FIRST_LINE.format(label=build.label) + "".join(
        f"{key}: {json.dumps(value)}\n" for key, value in settings.items()
    )


def data_version(build: EngineBuild, work: Path) -> str | None:
    """The version of the server that last started on a work folder; None where there is no data.

    Servers open data of earlier versions only. Every start writes its version into the configuration file.
    """
    data, settings = work / "data", _settings_path(build, work)
    if not settings.exists() or not data.exists() or not any(data.iterdir()):
        return None
    written = _VERSION_IN_FIRST_LINE.match(settings.read_text(encoding="utf-8", errors="replace"))
    return written[1] if written else None


def _settings_path(build: EngineBuild, work: Path) -> Path:
    return work / "conf" / f"{Path(build.launcher).name}.yml"


def redirect_jvm_files(options: str, logs: Path) -> str:
    """JVM options whose log, crash and heap-dump files go to the server's own folder.

    OpenSearch writes them into its home, which is shared and not the server's to write.
    """
    options = re.sub(r"(file=|ErrorFile=)(?:logs/)?(?=[\w%.]+\.log)", rf"\g<1>{logs}/", options)
    return re.sub(r"(HeapDumpPath=)\S+", rf"\g<1>{logs}", options)


def server_environment(
    build: EngineBuild, java_home: Path, heap: str, work: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of a server.

    The caller's is not passed on: `JAVA_TOOL_OPTIONS`, `CLASSPATH` and the like would change the server, and
    secrets have no business there. What is meant for it stands in `ES_SBERT_ENGINE_JAVA_OPTS`.
    """
    options = [f"-Xms{heap}", f"-Xmx{heap}", *environ.get(JAVA_OPTS_VARIABLE, "").split()]
    return {
        # The start scripts need the ordinary tools even where the caller's PATH is bare.
        "PATH": ":".join(filter(None, [environ.get("PATH", ""), "/usr/bin", "/bin"])),
        "LANG": environ.get("LANG", "C.UTF-8"),
        "HOME": str(work),
        "TMPDIR": str(work / "tmp"),
        f"{build.prefix}_TMPDIR": str(work / "tmp"),
        f"{build.prefix}_PATH_CONF": str(work / "conf"),
        f"{build.prefix}_JAVA_HOME": str(java_home),
        f"{build.prefix}_JAVA_OPTS": " ".join(options),
    }


def prepare_work_folder(build: EngineBuild, home: Path, port: int, work: Path, account: Account | None) -> Path:
    """Make a server's folders anew, except its data and earlier logs.

    Returns:
        The file for the server's console output; that of the run before is kept beside it.
    """
    for folder in (work, work / "data", work / "logs", work / "tmp"):
        folder.mkdir(exist_ok=True)
    conf = work / "conf"
    if conf.exists():
        shutil.rmtree(conf)
    shutil.copytree(home / "config", conf)
    _settings_path(build, work).write_text(settings_file(build, port, work), encoding="utf-8")
    options = conf / "jvm.options"
    options.write_text(redirect_jvm_files(options.read_text(encoding="utf-8"), work / "logs"), encoding="utf-8")
    console = work / "logs" / "console.log"
    if console.exists():
        os.replace(console, console.with_name("console.previous.log"))
    if account is not None:
        mine = [work, work / "data", work / "logs", work / "tmp", conf, *conf.rglob("*")]
        for path in mine:
            os.chown(path, account.uid, account.gid)
    work.chmod(0o700)  # documents are nobody else's business
    return console
