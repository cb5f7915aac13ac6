"""Every command has help, a page, and a page that says what the command says."""

import re
from pathlib import Path

import pytest

from tests.docs import PAGES, all_commands, blocks, help_text, shown_help

ROOT = Path(__file__).parents[2]
_ALL = list(all_commands())


@pytest.mark.parametrize("command", _ALL)
def test_command_page_matches_the_help(command: str) -> None:
    page = PAGES / f"{command.split()[0]}.md"
    assert blocks(page.read_text()).get(command) == shown_help(command), f"run scripts/update-help and commit {page}"


@pytest.mark.parametrize("command", _ALL)
def test_help_documents_every_option(command: str) -> None:
    text = help_text(command)
    options = text.partition("Options:")[2]
    undocumented = re.findall(r"^  (-[^ ]+(?: [A-Z]+)?)$", options, re.MULTILINE)
    assert not undocumented
    assert len(text.splitlines()) > 4


def test_every_command_page_has_a_command() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {command.split()[0] for command in _ALL}


_ALL_PAGES = [
    str(page.relative_to(ROOT)) for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
]
_LINK = re.compile(r"\]\((?P<target>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")


@pytest.mark.parametrize("page", _ALL_PAGES)
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    for link in _LINK.finditer(path.read_text()):
        if not link["target"].startswith("http"):
            target = path.parent / link["target"] if link["target"] else path
            assert target.exists(), link[0]
            assert link["anchor"] is None or link["anchor"] in _anchors(target), link[0]


def _anchors(page: Path) -> set[str]:
    """What headings are called in links: lower case, without signs, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme() -> None:
    readme = ROOT / "README.md"
    linked = {(ROOT / link["target"]).resolve() for link in _LINK.finditer(readme.read_text())}
    assert not {ROOT / page for page in _ALL_PAGES} - linked - {readme}


_NAMED_FILE = re.compile(
    r"`(?P<path>(?:(?:es_sbert|exporters|mappings|tests|benchmarks|docs|scripts)/[\w/.-]*)|[\w/]*\btest_\w+\.py)"
    r"(?:::(?P<test>\w+))?`"
)


@pytest.mark.parametrize("page", [page for page in _ALL_PAGES if page != "CHANGELOG.md"])
def test_named_files_and_tests_exist(page: str) -> None:
    for name in _NAMED_FILE.finditer((ROOT / page).read_text()):
        # Tables of tests leave out the folder.
        files = [ROOT / name["path"]] if (ROOT / name["path"]).exists() else [*ROOT.glob(f"tests/**/{name['path']}")]
        assert files, name[0]
        assert name["test"] is None or any(f"def {name['test']}(" in file.read_text() for file in files), name[0]
