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
from es_sbert.cli.options import device_option
from es_sbert.cli.train import train
from es_sbert.config import DEFAULT_MODEL
from es_sbert.engines.local import ENGINES
from es_sbert.gateway.settings import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the schema of the compose specification that check-jsonschema carries."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return loaded


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_compose_file_matches_the_schema() -> None:
    done = check_schema(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_schema_check_detects_errors(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    text = COMPOSE.read_text(encoding="utf-8")
    assert "profiles: [gpu]" in text
    broken.write_text(text.replace("profiles: [gpu]", "profile: [gpu]"), encoding="utf-8")
    done = check_schema(broken)
    assert done.returncode == 1
    assert "profile" in done.stdout


def test_services_by_profile(services: dict[str, dict[str, Any]]) -> None:
    profiles = {name: service.get("profiles", []) for name, service in services.items()}
    assert profiles == {
        "elasticsearch": [],
        "gateway": [],
        "kibana": [],
        "es-sbert": [],
        "es-sbert-gpu": ["gpu"],
        "gpu-gateway": ["gpu"],
        "opensearch": ["opensearch"],
        "opensearch-gateway": ["opensearch"],
        "opensearch-dashboards": ["opensearch"],
    }


def test_dependencies_are_in_the_same_profile(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            assert set(services[needed].get("profiles", [])) <= set(service.get("profiles", [])), (name, needed)


def test_dependencies_wait_for_service_healthy(services: dict[str, dict[str, Any]]) -> None:
    waited_for = 0
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            waited_for += 1
            assert how == {"condition": "service_healthy"}
            assert services[needed]["healthcheck"]["test"][0] == "CMD"
    assert waited_for == 7


def test_ports_are_on_loopback_and_unique(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    hosts = [re.fullmatch(r"127\.0\.0\.1:(\d+):\d+", port) for port in published]
    assert all(hosts), published
    assert sorted(int(host[1]) for host in hosts if host) == [5601, 5602, 9200, 9210, 9280, 9281, 9282]


def test_servers_have_health_checks_and_engines_have_volumes(services: dict[str, dict[str, Any]]) -> None:
    servers = {name for name, service in services.items() if "ports" in service}
    engines, gateways = {"elasticsearch", "opensearch"}, {"gateway", "opensearch-gateway", "gpu-gateway"}
    assert servers == engines | gateways | {"kibana", "opensearch-dashboards"}
    # The image of es-sbert has no curl.
    for name in servers:
        assert ("python" if name in gateways else "curl") in services[name]["healthcheck"]["test"], name
    volumes = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["volumes"]
    for name in engines:
        volume, _, folder = services[name]["volumes"][0].partition(":")
        assert volume in volumes
        assert folder == f"/usr/share/{name}/data"


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


def test_commands_reach_the_engine_by_service_name(services: dict[str, dict[str, Any]]) -> None:
    for name in ("es-sbert", "es-sbert-gpu"):
        assert services[name]["environment"]["ES_SBERT_URL"] == "${ES_SBERT_URL:-http://elasticsearch:9200}"
        assert services[name]["command"] == ["--help"]


def test_kibana_uses_the_gateway_which_uses_the_engine(services: dict[str, dict[str, Any]]) -> None:
    gateway = services["gateway"]
    assert gateway["command"][0] == "serve"
    assert services["kibana"]["environment"]["ELASTICSEARCH_HOSTS"] == "http://gateway:9280"
    assert gateway["ports"] == [f"127.0.0.1:{DEFAULT_PORT}:{DEFAULT_PORT}"]
    assert gateway["environment"]["ES_SBERT_URL"] == "${ES_SBERT_URL:-http://elasticsearch:9200}"


def test_opensearch_dashboards_use_their_own_gateway(services: dict[str, dict[str, Any]]) -> None:
    gateway = services["opensearch-gateway"]
    assert gateway["command"] == services["gateway"]["command"]
    assert gateway["environment"] == {"ES_SBERT_URL": "http://opensearch:9200"}
    hosts = services["opensearch-dashboards"]["environment"]["OPENSEARCH_HOSTS"]
    assert hosts == '["http://opensearch-gateway:9280"]'


def test_only_gpu_profile_services_reserve_a_gpu(services: dict[str, dict[str, Any]]) -> None:
    asking = {name for name, service in services.items() if "deploy" in service}
    assert asking == {name for name, service in services.items() if service.get("profiles") == ["gpu"]}
    assert asking == {"es-sbert-gpu", "gpu-gateway"}
    for name in asking:
        [device] = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        assert services[name]["build"]["target"] == "gpu"


def test_gpu_services_require_device_cuda(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        device = service.get("environment", {}).get("ES_SBERT_DEVICE")
        assert device == ("cuda" if service.get("profiles") == ["gpu"] else None), name
    gateway = services["gpu-gateway"]
    assert gateway["command"] == [*services["gateway"]["command"], "--device", "cuda"]
    assert gateway["healthcheck"] == services["gateway"]["healthcheck"]
    assert gateway["environment"]["ES_SBERT_URL"] == services["gateway"]["environment"]["ES_SBERT_URL"]


def test_device_option_is_read_from_the_environment() -> None:
    assert device_option(lambda: None).__click_params__[0].envvar == "ES_SBERT_DEVICE"  # type: ignore[attr-defined]
    [option] = [parameter for parameter in train.params if parameter.name == "device"]
    assert option.envvar == "ES_SBERT_DEVICE"


def test_gpu_image_has_the_cuda_libraries_and_driver_requirement(dockerfile: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    build = dockerfile[dockerfile.index(" AS build-gpu") : dockerfile.index(" AS base")]
    assert '".[serve,cuda]"' in build
    assert '".[serve,cpu]"' in dockerfile[dockerfile.index(" AS build-cpu") : dockerfile.index(" AS build-gpu")]
    [toolkit] = [requirement for requirement in extras["cuda"] if requirement.startswith("cuda-toolkit")]
    major = re.search(r">=(\d+),<(\d+)", toolkit)
    assert major is not None
    assert int(major[2]) == int(major[1]) + 1
    stage = dockerfile[dockerfile.index("FROM base AS gpu") :]
    assert f"NVIDIA_REQUIRE_CUDA=cuda>={major[1]}.0" in stage
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(rf"^cuda-toolkit=={major[1]}\.", versions, flags=re.MULTILINE)


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
    assert set(targets) <= set(stages)
    assert stages[-1] == "cpu"  # what a build without --target makes
    copied_from = re.findall(r"COPY --from=(\S+)", dockerfile)
    assert copied_from
    assert set(copied_from) <= set(stages)


def test_dockerignore_admits_copied_files(dockerfile: str) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, flags=re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()]
    assert "pyproject.toml" in sources
    assert {f"!{source}" for source in sources} == {line for line in ignore if line.startswith("!")}


def test_the_image_does_not_run_as_root(dockerfile: str) -> None:
    base = dockerfile[dockerfile.index(" AS base") :]
    assert re.search(r"^USER es-sbert$", base, flags=re.MULTILINE)
    assert 'ENTRYPOINT ["es-sbert"]\nCMD ["--help"]' in base
