"""`docker-compose.yml` and `Dockerfile` against the compose specification, each other and the catalog."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from es_sbert.bundle.local_registry import REGISTRY_VARIABLE
from es_sbert.config import DEFAULT_MODEL
from es_sbert.engines.local import ENGINES

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return loaded


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_compose_file_matches_the_schema() -> None:
    """That of the compose specification, which check-jsonschema has."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ports_are_on_loopback_and_unique(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    hosts = [re.fullmatch(r"127\.0\.0\.1:(\d+):\d+", port) for port in published]
    assert all(hosts), published
    assert sorted(int(host[1]) for host in hosts if host) == [5601, 5602, 9200, 9210, 9280, 9281, 9282]


@pytest.mark.parametrize(
    ("service", "companion", "build", "on_port_of"),
    [
        ("elasticsearch", "kibana", "es9-small", "es9"),  # the version that the tests run
        ("opensearch", "opensearch-dashboards", "opensearch", "opensearch"),
    ],
)
def test_images_have_the_versions_of_the_engine_command(
    services: dict[str, dict[str, Any]], service: str, companion: str, build: str, on_port_of: str
) -> None:
    version = ENGINES[build].version
    assert services[service]["image"].endswith(f":{version}")
    assert services[companion]["image"].endswith(f":{version}")
    assert services[service]["ports"] == [f"127.0.0.1:{ENGINES[on_port_of].port}:9200"]


def test_gpu_image_has_the_cuda_libraries_and_driver_requirement(dockerfile: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    build = dockerfile[dockerfile.index(" AS build-gpu") : dockerfile.index(" AS base")]
    assert '".[serve,cuda]"' in build
    assert '".[serve,cpu]"' in dockerfile[dockerfile.index(" AS build-cpu") : dockerfile.index(" AS build-gpu")]
    [toolkit] = [requirement for requirement in extras["cuda"] if requirement.startswith("cuda-toolkit")]
    major = toolkit.partition(">=")[2].partition(",")[0]
    assert f"NVIDIA_REQUIRE_CUDA=cuda>={major}.0" in dockerfile[dockerfile.index("FROM base AS gpu") :]


def test_image_has_the_exported_default_model(dockerfile: str) -> None:
    build = dockerfile[dockerfile.index(" AS build-cpu") : dockerfile.index(" AS build-gpu")]
    assert f"export {DEFAULT_MODEL} -o /opt/es-sbert/models/{DEFAULT_MODEL}" in build
    registry = f"{REGISTRY_VARIABLE}=/opt/es-sbert/models/registry.json"
    assert registry in build
    assert registry in dockerfile[dockerfile.index("FROM base AS cpu") :]


def test_images_are_built_from_existing_stages(services: dict[str, dict[str, Any]], dockerfile: str) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, flags=re.MULTILINE)
    targets = [service["build"]["target"] for service in services.values() if "build" in service]
    assert sorted(targets) == ["cpu", "cpu", "cpu", "gpu", "gpu"]
    assert stages[-1] == "cpu"  # what a build without --target makes
    assert {*targets, *re.findall(r"COPY --from=(\S+)", dockerfile)} <= set(stages)


def test_the_image_does_not_run_as_root(dockerfile: str) -> None:
    assert re.search(r"^USER es-sbert$", dockerfile[dockerfile.index(" AS base") :], flags=re.MULTILINE)
