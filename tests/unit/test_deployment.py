"""The files of `examples/deploy` and docs/production.md: checked by their own tools, and against the code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from es_sbert.cli.interrupts import EXIT_INTERRUPTED
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.server.uvicorn_server import SHUTDOWN_SECONDS
from es_sbert.gateway.settings import DEFAULT_PORT, SearchLogSettings
from es_sbert.index.mapping import VectorFieldMeta, vector_fields
from tests.docs import help_text

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
PAGE = (ROOT / "docs/production.md").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def tool(name: str) -> str:
    """Path of a tool that CI installs; elsewhere its test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on PATH")
    return path


def check(*command: str | Path, folder: Path = DEPLOY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def manifests() -> list[dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((folder / name).read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in manifests() if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


# systemd


def unit_commands() -> dict[str, list[str]]:
    found = {unit.name: re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE) for unit in UNITS}
    return {name: shlex.split(command) for name, [command] in found.items()}


def test_units_pass_systemd_analyze(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    for unit in UNITS:
        # It asks that the program exists.
        text = unit.read_text().replace("/opt/es-sbert/bin/es-sbert", sys.executable)
        (tmp_path / unit.name.replace("@", "@9281")).write_text(text)
    copies = sorted(tmp_path.iterdir())
    done = check(analyze, "verify", "--man=no", *copies)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_are_hardened(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    for unit in UNITS:
        done = check(analyze, "security", "--offline=yes", "--no-pager", "--threshold=20", unit)
        if "unrecognized option" in done.stderr:
            pytest.skip("systemd-analyze is older than 250")
        assert done.returncode == 0, done.stdout


def test_unit_and_container_commands_have_existing_options() -> None:
    commands = {name: command[1:] for name, command in unit_commands().items()}
    commands |= {
        name: manifest(kind, name)["spec"]["template"]["spec"]["containers"][0]["args"]
        for kind, name in (("Deployment", "gateway"), ("StatefulSet", "watch"))
    }
    assert {command[0] for command in commands.values()} == {"serve", "ingest"}
    for name, command in commands.items():
        known = set(re.findall(r"--[a-z-]+", help_text(command[0])))
        assert {word.partition("=")[0] for word in command if word.startswith("--")} <= known, name


def test_time_to_stop_is_longer_than_draining_and_requests_take() -> None:
    def drain(words: list[str]) -> float:
        return float(re.findall(r"--drain-seconds[ =](\d+)", " ".join(words))[0])

    unit = (DEPLOY / "systemd/es-sbert-gateway@.service").read_text()
    pod = manifest("Deployment", "gateway")["spec"]["template"]["spec"]
    stop = float(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0])
    for seconds, words in (
        (stop, unit_commands()["es-sbert-gateway@.service"]),
        (pod["terminationGracePeriodSeconds"], pod["containers"][0]["args"]),
    ):
        assert seconds > drain(words) + SHUTDOWN_SECONDS + SearchLogSettings.close_seconds
    # The balancers notice before the gateway stops listening.
    balancer = (DEPLOY / "haproxy.cfg").read_text()
    checks = [float(seconds) for seconds in re.findall(r"(?:timeout check|check inter) (\d+)s", balancer)]
    assert len(checks) == 2
    assert sum(checks) < drain(unit_commands()["es-sbert-gateway@.service"])
    probe, words = pod["containers"][0]["readinessProbe"], pod["containers"][0]["args"]
    assert probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"]) < drain(words)
    [retry] = re.findall(r"--retry-seconds .*?default: ([\d.]+)", help_text("ingest"), re.DOTALL)
    watch = manifest("StatefulSet", "watch")["spec"]["template"]["spec"]
    assert watch["terminationGracePeriodSeconds"] > float(retry)


def test_watch_that_leaves_documents_fails_its_unit() -> None:
    unit = (DEPLOY / "systemd/es-sbert-watch@.service").read_text()
    [successes] = re.findall(r"^SuccessExitStatus=(.*)$", unit, re.MULTILINE)
    assert successes.split() == [str(EXIT_INTERRUPTED)]
    # It is started again in any case, and its next start embeds what was left.
    assert re.findall(r"^(Restart|StartLimitIntervalSec)=(.*)$", unit, re.MULTILINE) == [
        ("StartLimitIntervalSec", "0"),
        ("Restart", "always"),
    ]


def test_haproxy_accepts_its_configuration() -> None:
    done = check(tool("haproxy"), "-c", "-f", "haproxy.cfg")
    assert done.returncode == 0, done.stderr


# Kubernetes


def test_manifests_match_the_schemas_of_kubernetes() -> None:
    for each in manifests():
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_pods_are_restricted_and_selected_by_services_and_policies() -> None:
    for kind, name in (("Deployment", "gateway"), ("StatefulSet", "watch")):
        template = manifest(kind, name)["spec"]["template"]
        labels, spec = template["metadata"]["labels"], template["spec"]
        [container] = spec["containers"]
        assert manifest("Service", name)["spec"]["selector"] == labels
        assert manifest("NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"] == labels
        assert manifest("NetworkPolicy", "egress")["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        # The user of the Dockerfile, and its cache, which is not in the image's read-only file system.
        assert f"--uid {spec['securityContext']['runAsUser']} es-sbert" in (ROOT / "Dockerfile").read_text()
        assert "/home/es-sbert/.cache" in {mount["mountPath"] for mount in container["volumeMounts"]}
        # Each key that is read is mounted.
        [keys] = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
        read = re.findall(r"=/keys/(\S+)", " ".join(container["args"]))
        assert sorted(read) == sorted(item["path"] for item in keys["items"])
    [port] = manifest("Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port["containerPort"] == DEFAULT_PORT
    budget = manifest("PodDisruptionBudget", "gateway")["spec"]
    assert budget["selector"] == manifest("Deployment", "gateway")["spec"]["selector"]


# Prometheus and Grafana


def test_alerts_and_panels_use_metrics_that_exist() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    panels = json.loads((DEPLOY / "grafana/es-sbert.json").read_text())["panels"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 20
    # Also those that have no value yet.
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
    families = GatewayMetrics().registry.collect()
    exposed = {family.name + suffix for family in families for suffix in suffixes.get(family.type, ("",))}
    for expression in expressions:
        used = set(re.findall(r"\b(?:es_sbert|process)_\w+|\bup\b", re.sub(r'"[^"]*"', '""', expression)))
        assert used, expression
        assert used <= {"up", *exposed}, expression


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool, folder = tool("promtool"), DEPLOY / "prometheus"
    for command in (
        "check rules alerts.yml",
        "test rules alerts_test.yml",
        "check config --syntax-only prometheus.yml",
    ):
        done = check(promtool, *command.split(), folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_members_of_meta_from_a_newer_version_are_ignored() -> None:
    entry = {"fingerprint": "f", "model": "m", "dimensions": 2, "index_type": "hnsw"}
    mappings = {"_meta": {"es_sbert": {"fields": {"embedding": entry | {"of a newer version": 1}}, "also": {}}}}
    assert vector_fields(mappings, "docs") == {"embedding": VectorFieldMeta(**entry)}
