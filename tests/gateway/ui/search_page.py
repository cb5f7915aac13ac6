"""The search page as somebody uses it."""

from __future__ import annotations

import re
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Browser, Locator, Page, Request, expect

PATIENCE_MS = 60_000.0
COLUMNS = ("lexical", "semantic", "hybrid")
# What Chromium writes to the console where an answer is an error.
_REFUSAL = "Failed to load resource: the server responded with a status of "

expect.set_options(timeout=PATIENCE_MS)


class SearchPage:
    def __init__(self, browser: Browser, url: str, **context: object) -> None:
        self.url = url
        self._context = browser.new_context(viewport={"width": 1280, "height": 900}, **context)  # type: ignore[arg-type]
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.problems: list[str] = []
        self.elsewhere: list[str] = []
        self.refused = False
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.page.on("request", self._look_at)

    def _look_at(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.elsewhere.append(request.url)

    def open(self, **search: str) -> None:
        """Open the page at a search, if any, and wait until it is there, cosines and all."""
        self.page.goto(f"{self.url}/ui/?{urlencode(search)}")
        if search.get("q"):
            self.expect_done()

    def start(self, index: str) -> None:
        """Open the page before a search, and wait until it says what the index holds."""
        self.open(index=index)
        expect(self.page.locator("#start")).to_contain_text(index)

    def search(self, words: str) -> None:
        box = self.page.get_by_role("searchbox")
        box.fill(words)
        box.press("Enter")
        expect(self.page.locator("#results-heading")).to_contain_text(words)
        self.expect_done()

    def expect_done(self) -> None:
        """All columns have answered, and all hits have their cosines."""
        expect(self.page.locator("#results[aria-busy=false]")).to_be_visible()

    @property
    def status(self) -> Locator:
        """What a screen reader is told of the search."""
        return self.page.locator("#status")

    @property
    def examples(self) -> Locator:
        return self.page.get_by_role("list", name="Try one of these").get_by_role("button")

    @property
    def views(self) -> Locator:
        """The buttons by which a narrow screen shows one column or another."""
        return self.page.get_by_role("group", name="Hits to show").get_by_role("button")

    def column(self, name: str) -> Locator:
        return self.page.locator(f'.column[data-name="{name}"]')

    def titles(self, column: str) -> Locator:
        return self.column(column).locator(".hits h4")

    def found(self, column: str) -> int:
        summary = self.column(column).locator(".summary").inner_text()
        match = re.fullmatch(r"([\d,]+) documents? in [\d,]+ ms \(engine [\d,]+ ms\)", summary)
        assert match, summary
        return int(match[1].replace(",", ""))

    def cosines(self, column: str) -> list[float]:
        expect(self.column(column).locator(".cosine[hidden]")).to_have_count(0)
        return [
            float(text.removeprefix("cosine ").replace("−", "-"))
            for text in self.column(column).locator(".cosine").all_inner_texts()
        ]

    def facet(self, name: str) -> Locator:
        return self.page.locator("#facet-list").get_by_role("group", name=name, exact=True)

    def counts(self, facet: str) -> dict[str, int]:
        labels = self.facet(facet).locator("label")
        # A wider window opens the filters one frame later, and closed filters have no text.
        expect(labels.last).to_be_visible()
        return {
            label.locator("span").first.inner_text(): int(label.locator(".count").inner_text().replace(",", ""))
            for label in labels.all()
        }

    def choose(self, facet: str, value: str) -> None:
        self.facet(facet).get_by_role("checkbox", name=re.compile(f"^{re.escape(value)} ")).click()
        self.expect_done()

    def close(self) -> None:
        """The page is left, having had no problems and asked nobody else."""
        self._context.close()
        unexpected = [text for text in self.problems if not (self.refused and text.startswith(_REFUSAL))]
        assert unexpected == [], unexpected
        assert self.elsewhere == []
