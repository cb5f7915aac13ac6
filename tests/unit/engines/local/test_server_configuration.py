"""What a server is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from es_sbert.engines.local import ENGINES
from es_sbert.engines.local.server_process import (
    prepare_work_folder,
    redirect_jvm_files,
    server_environment,
    settings_file,
)

WORK = Path("/home/ada/engines/servers/es9-9200")


def test_elasticsearch_settings() -> None:
    assert yaml.safe_load(settings_file(ENGINES["es9"], 9300, WORK)) == {
        "cluster.name": "es-sbert-es9",
        "node.name": "es9-9300",
        "discovery.type": "single-node",
        "network.host": "127.0.0.1",
        "http.port": "9300",
        "transport.port": "0",
        "path.data": "/home/ada/engines/servers/es9-9200/data",
        "path.logs": "/home/ada/engines/servers/es9-9200/logs",
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "xpack.security.enabled": "false",
    }


@pytest.mark.parametrize(
    ("line", "redirected"),
    [
        ("-XX:ErrorFile=logs/hs_err_pid%p.log", "-XX:ErrorFile=/w/logs/hs_err_pid%p.log"),
        ("-XX:HeapDumpPath=data", "-XX:HeapDumpPath=/w/logs"),
        ("9-:-Xlog:gc*:file=logs/gc.log:utctime,pid", "9-:-Xlog:gc*:file=/w/logs/gc.log:utctime,pid"),
        ("-Xlog:gc*:file=gc.log:utctime:filecount=32,filesize=64m",
         "-Xlog:gc*:file=/w/logs/gc.log:utctime:filecount=32,filesize=64m"),
        ("21-:-javaagent:agent/opensearch-agent.jar", "21-:-javaagent:agent/opensearch-agent.jar"),
    ],
)  # fmt: skip
def test_jvm_files_are_redirected_to_the_work_folder(line: str, redirected: str) -> None:
    assert redirect_jvm_files(f"{line}\n", Path("/w/logs")) == f"{redirected}\n"


def test_server_environment_is_isolated() -> None:
    environ = {"PATH": "/sbin", "JAVA_TOOL_OPTIONS": "-Dx", "ES_SBERT_PASSWORD": "s3cret", "LANG": "de_DE.UTF-8"}
    assert server_environment(ENGINES["es9"], Path("/jdk"), "2g", WORK, environ) == {
        "PATH": "/sbin:/usr/bin:/bin",
        "LANG": "de_DE.UTF-8",
        "HOME": str(WORK),
        "TMPDIR": f"{WORK}/tmp",
        "ES_TMPDIR": f"{WORK}/tmp",
        "ES_PATH_CONF": f"{WORK}/conf",
        "ES_JAVA_HOME": "/jdk",
        "ES_JAVA_OPTS": "-Xms2g -Xmx2g",
    }


def test_restart_keeps_data_and_the_previous_log(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    (home / "config" / "jvm.options").write_text("-XX:HeapDumpPath=data\n")
    (home / "config" / "elasticsearch.yml").write_text("# the distribution's\n")
    work = tmp_path / "work"
    console = prepare_work_folder(ENGINES["es9"], home, 9200, work, None)
    console.write_text("first")
    (work / "data" / "documents").write_text("precious")
    (work / "conf" / "elasticsearch.keystore").write_text("of the first start")
    assert prepare_work_folder(ENGINES["es9"], home, 9201, work, None) == console
    assert (work / "logs" / "console.previous.log").read_text() == "first"
    assert (work / "data" / "documents").read_text() == "precious"
    assert not (work / "conf" / "elasticsearch.keystore").exists()
    assert 'http.port: "9201"' in (work / "conf" / "elasticsearch.yml").read_text()
    assert (work / "conf" / "jvm.options").read_text() == f"-XX:HeapDumpPath={work}/logs\n"
    assert (home / "config" / "elasticsearch.yml").read_text() == "# the distribution's\n"
    assert work.stat().st_mode & 0o777 == 0o700
