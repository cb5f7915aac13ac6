"""The watch of `examples/deploy/kubernetes` with the limits of its manifest, but without an image.

It sees the file system of this machine, read-only but for the mounted volumes, and has no capabilities.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from es_sbert.config import cache_folder
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.mounts import can_mount

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_mount(), reason="mounting takes root on Linux")]
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


@pytest.mark.long
def test_watch_embeds_from_a_read_only_file_system(
    es9_url: str, fresh_index: Callable[[str], str], cli: Cli, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    assert cli("index", "create", "--url", es9_url, index, "--text-field", "text").code == 0
    httpx.put(f"{es9_url}/{index}/_doc/1", json={"text": "A cat sleeps."}, trust_env=False).raise_for_status()
    query = {"query": {"exists": {"field": "embedding"}}}
    manifests = yaml.safe_load_all((MANIFESTS / "watch.yaml").read_text(encoding="utf-8"))
    [container] = next(one for one in manifests if one["kind"] == "StatefulSet")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    keys, kept = mounts.pop("keys"), tmp_path / "keys"
    kept.mkdir()
    arguments, changed = [], {"--index": index, "--metrics": f"127.0.0.1:{free_port()}"}
    for argument in container["args"]:
        option, equals, value = argument.partition("=")
        if value.startswith(f"{keys}/"):
            (kept / Path(value).name).write_text("0123456789abcdef")
            value = f"{_ROOT}/keys/{Path(value).name}"
        arguments.append(f"{option}{equals}{changed.get(option, value)}")
    settings = yaml.safe_load((MANIFESTS / "settings.yaml").read_text(encoding="utf-8"))["data"]
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": f"{_ROOT}{mounts['tmp']}",
        "HOME": f"{_ROOT}{Path(mounts['cache']).parent}",
        "PWD_OF_CONTAINER": f"{_ROOT}{container['workingDir']}" if "workingDir" in container else "/",
        "EXPORTED": str(cache_folder() / "bundles"),
        **settings,
        "ES_SBERT_URL": es9_url,
    }
    volumes = [f"{_ROOT}{path}" for path in mounts.values()]
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", str(kept), *volumes, "--"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        command = [*enter, sys.executable, "-m", "es_sbert", *arguments]
        watch = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline, count = time.monotonic() + _TIMEOUT, 0
        while not count:
            assert watch.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            httpx.post(f"{es9_url}/{index}/_refresh", trust_env=False)
            count = httpx.post(f"{es9_url}/{index}/_count", json=query, trust_env=False).json()["count"]
        watch.terminate()
        watch.wait(_TIMEOUT)
    finally:
        watch.kill()
        watch.wait()
    assert "Read-only file system" not in log.read_text()
