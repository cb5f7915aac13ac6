"""The applications' pages as somebody uses them: the same things done, however the page is made."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from playwright.sync_api import Locator, Page, expect

PER_PAGE = 5  # results on a page, as both applications are configured
PATIENCE_MS = 60_000.0

expect.set_options(timeout=PATIENCE_MS)


class AppPage(ABC):
    app: ClassVar[str]
    _titles: ClassVar[str]
    _topics: ClassVar[str]
    _next_page: ClassVar[str]

    def __init__(self, page: Page) -> None:
        page.set_default_timeout(PATIENCE_MS)
        self.page = page
        self.problems: list[str] = []
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, url: str) -> None:
        with self._answered():
            self.page.goto(url)

    def search(self, words: str) -> None:
        box = self.page.get_by_placeholder("Search articles")
        with self._answered():
            box.fill(words)
            box.press("Enter")

    @abstractmethod
    def expect_total(self, total: int) -> None:
        """The page says that there are so many results."""

    @property
    def titles(self) -> Locator:
        return self.page.locator(self._titles)

    def results_by_topic(self) -> dict[str, int]:
        """Topic → results that it has, as the page counts them."""
        lines = self.page.locator(self._topics).all_inner_texts()
        found = [re.fullmatch(r"(\w+)\s*(\d+)", line.strip()) for line in lines]
        return {match[1]: int(match[2]) for match in found if match}

    def choose_topic(self, topic: str) -> None:
        with self._answered():
            self.page.get_by_role("checkbox", name=topic).check()

    def next_page(self) -> None:
        with self._answered():
            self.page.locator(self._next_page).click()

    def close(self) -> None:
        """The page is left, having had no errors."""
        self.page.close()
        assert self.problems == []

    @contextmanager
    def _answered(self) -> Iterator[None]:
        with self.page.expect_response("**/api/search"):
            yield


class SearchUiPage(AppPage):
    app = "search-ui"
    _titles = ".sui-result__title"
    _topics = "fieldset:has-text('Topic') label"
    _next_page = ".rc-pagination-next button"

    def expect_total(self, total: int) -> None:
        expect(self.page.locator(".sui-paging-info")).to_contain_text(f"out of {total}")


class SearchkitPage(AppPage):
    app = "searchkit"
    _titles = "article h3"
    _topics = "#topics label"
    _next_page = "[aria-label='Next Page']"

    def expect_total(self, total: int) -> None:
        said = "No results" if total == 0 else f"{total} result"
        expect(self.page.locator("#stats")).to_contain_text(said)


PAGES: tuple[type[AppPage], ...] = (SearchUiPage, SearchkitPage)
