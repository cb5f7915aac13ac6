"""The containers of `examples/deploy/kubernetes` with the limits of their manifests, but without an image.

They see the file system of this machine, read-only but for the mounted volumes, and have no capabilities.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from es_sbert.config import cache_folder
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.mounts import can_mount

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="mounting takes root on Linux"),
]
MANIFESTS = Path(__file__).parents[2] / "examples/deploy/kubernetes"
_TIMEOUT = 120.0
# A place that every machine has and nothing here needs: volumes are mounted below it.
_ROOT = Path("/mnt")
# KEYS VOLUME… -- COMMAND…
_ENTER = f"""
set -e
keys=$1
shift
mount -t tmpfs tmpfs {_ROOT}
mkdir {_ROOT}/keys
cp "$keys"/* {_ROOT}/keys
for each; do [ "$each" != -- ] || break; mkdir -p "$each"; done
mount -o remount,bind,ro {_ROOT}
mount -o remount,bind,ro /
while [ "$1" != -- ]; do mount -t tmpfs tmpfs "$1"; shift; done
shift
# Models that the tests have exported already.
mkdir -p "$HOME/.cache/es-sbert"
[ ! -d "$EXPORTED" ] || cp -r "$EXPORTED" "$HOME/.cache/es-sbert/"
cd "$PWD_OF_CONTAINER"
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def container_of(file: str) -> dict[str, Any]:
    """The only container of a Deployment or StatefulSet."""
    for manifest in yaml.safe_load_all((MANIFESTS / file).read_text(encoding="utf-8")):
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            return container
    raise AssertionError(f"{file} has no container")


@contextmanager
def running(container: dict[str, Any], url: str, folder: Path, **changed: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a container's command; its output goes to the file `log` in the folder.

    Args:
        changed: Option → value, where the manifest's own does not fit a test.
    """
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    keys, kept = mounts.pop("keys"), folder / "keys"
    kept.mkdir()
    arguments = []
    for argument in container["args"]:
        option, equals, value = argument.partition("=")
        if value.startswith(f"{keys}/"):
            (kept / Path(value).name).write_text("0123456789abcdef")
            value = f"{_ROOT}/keys/{Path(value).name}"
        arguments.append(f"{option}{equals}{changed.get(option.lstrip('-'), value)}")
    settings = yaml.safe_load((MANIFESTS / "settings.yaml").read_text(encoding="utf-8"))["data"]
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": f"{_ROOT}{mounts['tmp']}",
        "HOME": f"{_ROOT}{Path(mounts['cache']).parent}",
        "PWD_OF_CONTAINER": f"{_ROOT}{container['workingDir']}" if "workingDir" in container else "/",
        "EXPORTED": str(cache_folder() / "bundles"),
        **settings,
        "ES_SBERT_URL": url,
    }
    volumes = [f"{_ROOT}{path}" for path in mounts.values()]
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(kept), *volumes, "--"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*enter, sys.executable, "-m", "es_sbert", *arguments], env=environment, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        log = (folder / "log").read_text()
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.1)


@pytest.mark.long
def test_gateway_serves_from_a_read_only_file_system(
    es9_url: str, fresh_index: Callable[[str], str], cli: Cli, tmp_path: Path
) -> None:
    index, port = fresh_index(es9_url), free_port()
    (tmp_path / "docs.jsonl").write_text('{"text": "A cat sleeps."}\n{"text": "Stocks fell."}\n')
    assert cli("ingest", "--url", es9_url, "--index", index, tmp_path / "docs.jsonl").code == 0
    changed = {"port": str(port), "drain-seconds": "1"}
    with (
        running(container_of("gateway.yaml"), es9_url, tmp_path, **changed) as gateway,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=_TIMEOUT) as http,
    ):

        def is_ready() -> bool:
            try:
                return http.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(is_ready, gateway, tmp_path)
        hits = http.post(f"/{index}/_search", json={"query": {"match": {"semantic": "a pet naps"}}}).json()["hits"]
        assert hits["hits"][0]["_source"]["text"] == "A cat sleeps."
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(_TIMEOUT) == 0
    log = (tmp_path / "log").read_text()
    assert "Read-only file system" not in log
    found = httpx.get(f"{es9_url}/_cat/indices/{index}-searches*?format=json", trust_env=False).json()
    assert len(found) == 1
    httpx.delete(f"{es9_url}/{found[0]['index']}", trust_env=False).raise_for_status()


@pytest.mark.long
def test_watch_embeds_from_a_read_only_file_system(
    es9_url: str, fresh_index: Callable[[str], str], cli: Cli, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    assert cli("index", "create", "--url", es9_url, index, "--text-field", "text").code == 0
    httpx.put(f"{es9_url}/{index}/_doc/1", json={"text": "A cat sleeps."}, trust_env=False).raise_for_status()
    query = {"query": {"exists": {"field": "embedding"}}}

    def is_embedded() -> bool:
        httpx.post(f"{es9_url}/{index}/_refresh", trust_env=False)
        return bool(httpx.post(f"{es9_url}/{index}/_count", json=query, trust_env=False).json()["count"])

    with running(
        container_of("watch.yaml"), es9_url, tmp_path, index=index, metrics=f"127.0.0.1:{free_port()}"
    ) as watch:
        wait_for(is_embedded, watch, tmp_path)
        watch.send_signal(signal.SIGTERM)
        watch.wait(_TIMEOUT)
    assert "Read-only file system" not in (tmp_path / "log").read_text()
