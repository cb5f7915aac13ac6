"""Every command has help, a page, and a page that says what the command says."""

import json
import re
from pathlib import Path

import pytest

from tests.docs import PAGES, all_commands, blocks, help_text
from tests.docs_requests import shown_requests

ROOT = Path(__file__).parents[2]
_ALL = list(all_commands())


@pytest.mark.parametrize("command", _ALL)
def test_page_is_equal_to_the_help(command: str) -> None:
    page = PAGES / f"{command.split()[0]}.md"
    assert blocks(page.read_text()).get(command) == help_text(command), f"run scripts/update-help and commit {page}"


@pytest.mark.parametrize("command", _ALL)
def test_help_explains_itself(command: str) -> None:
    text = help_text(command)
    options = text.partition("Options:")[2]
    undocumented = re.findall(r"^  (-[^ ]+(?: [A-Z]+)?)$", options, re.MULTILINE)
    assert not undocumented
    assert len(text.splitlines()) > 4


def test_no_page_without_a_command() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {command.split()[0] for command in _ALL}


_ALL_PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", _ALL_PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/opensearch-ml.md"])
def test_requests_that_are_shown_hold_json(page: str) -> None:
    requests = shown_requests(ROOT / page)
    assert requests
    for request in requests:
        lines = request.body.splitlines() if "_bulk" in request.path else [request.body]
        assert all(isinstance(json.loads(line), dict) for line in lines), request.path


def test_named_files_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for name in re.findall(r"`((?:es_sbert|exporters|mappings|tests|benchmarks|docs)/[\w/.]*)`", text):
        assert (ROOT / name).exists(), name


_SOURCES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("es_sbert", "exporters", "tests", "benchmarks")
    for kind in ("py", "js")
    for path in (ROOT / folder).rglob(f"*.{kind}")
]


@pytest.mark.parametrize("page", _ALL_PAGES)
def test_named_modules_exist(page: str) -> None:
    """Also where a page leaves out the folder that it has spoken of before."""
    for name in re.findall(r"`([\w/]+\.(?:py|js))`", (ROOT / page).read_text()):
        assert any(path.endswith(f"/{name}") for path in _SOURCES), name
