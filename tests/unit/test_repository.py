"""Workflows, issue forms and hooks: what a code host and pre-commit read, checked by their own schemas."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_CI = ROOT / ".github/workflows/ci.yml"
_RELEASE = ROOT / ".github/workflows/release.yml"
_FORMS = ROOT / ".github/ISSUE_TEMPLATE"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", [_CI, _RELEASE]),
        ("vendor.github-issue-forms", [_FORMS / "bug.yml", _FORMS / "feature.yml"]),
        ("vendor.github-issue-config", [_FORMS / "config.yml"]),
    ],
)
def test_files_match_their_schema(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workflow", [_CI, _RELEASE], ids=["ci", "release"])
def test_actions_are_pinned_by_version(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)", workflow.read_text())
    assert used
    assert all(re.fullmatch(r"(actions|pypa)/[a-z-]+@v\d+\.\d+\.\d+", action) for action in used)


def test_only_version_tags_are_published_and_only_after_the_checks() -> None:
    workflow = yaml.safe_load(_RELEASE.read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = "\n".join(step.get("run", "") for step in build["steps"])
    for command in ("-m build", "twine check --strict", "check-wheel-contents", "es-sbert --version", '"${TAG#v}"'):
        assert command in commands
    assert publish["needs"] == "build"
    assert publish["environment"] == "release"
    assert not any("run" in step for step in publish["steps"])


def test_release_gets_no_more_permissions_than_it_needs() -> None:
    workflow = yaml.safe_load(_RELEASE.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["build"]
    assert workflow["jobs"]["publish"]["permissions"] == {"attestations": "write", "id-token": "write"}
    assert "secrets." not in _RELEASE.read_text()
