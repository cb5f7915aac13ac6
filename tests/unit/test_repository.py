"""Workflows, issue forms and hooks: what a code host and pre-commit read, checked by their own schemas."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_WORKFLOW = ROOT / ".github/workflows/ci.yml"
_FORMS = ROOT / ".github/ISSUE_TEMPLATE"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", [_WORKFLOW]),
        ("vendor.github-issue-forms", [_FORMS / "bug.yml", _FORMS / "feature.yml"]),
        ("vendor.github-issue-config", [_FORMS / "config.yml"]),
    ],
)
def test_files_match_their_schema(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_actions_are_pinned_by_version() -> None:
    used = re.findall(r"uses: (\S+)", _WORKFLOW.read_text())
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action) for action in used)


def test_hooks_run_the_tools_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    _, _, rest = (ROOT / "Makefile").read_text().partition("\nlint:")
    lint = rest.partition("\n\n")[0].replace("$(BIN)", ".venv/bin")
    commands = [hook["entry"].removeprefix("env ").replace(" --force-exclude", "") for hook in hooks]
    assert len(commands) == 3
    assert all(command in lint for command in commands)
