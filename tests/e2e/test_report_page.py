"""The report's page as somebody uses it: by pointer, by keyboard, by screen reader, on all sizes of screens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from es_sbert.analysis.html_report import AnalysisReport, ReportGroup, ReportKind, report_bytes
from tests.browser import chromium

pytestmark = pytest.mark.slow

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
GROUPS, MEMBERS = 30, 25
TOPICS = ("refund, invoice", "shipping, parcel", "password, login")

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script><img src=x onerror=alert(2)>",
    "]]>\u2028alert(3)\u2029 &lt;b&gt; 'x' \"y\" `${alert(4)}`",
    "\u202eback to front\u202c \u2066aside\u2069",
    "null\x00 bell\x07 escape\x1b[31m \x9b \ufeff",
    "\ud83d alone, \ude00 too, \ud83d\ude00 together",
    "__proto__",
    "x" * 5000,
    "ﷺ" * 300,
    "מזג האוויר נאה היום, כך אמרו (sun) ביום שני",
]

OpenReport = Callable[..., "ReportPage"]


def clusters(count: int = GROUPS) -> AnalysisReport:
    """Clusters of some texts each, and ten texts in none."""
    size = count * MEMBERS
    texts = [f"Text {number} about {TOPICS[number // MEMBERS % 3]}: Café №{number}" for number in range(size + 10)]
    random = np.random.default_rng(0)
    centers = random.normal(size=(count, 2))
    points = np.concatenate([np.repeat(centers, MEMBERS, axis=0), np.zeros((10, 2))])
    points += random.normal(scale=0.05, size=points.shape)
    groups = [
        ReportGroup(
            f"{TOPICS[number % 3]} {number}",
            range(number * MEMBERS, (number + 1) * MEMBERS),
            np.linspace(0.9, 0.4, MEMBERS).tolist(),
        )
        for number in range(count)
    ]
    return report(ReportKind.CLUSTERS, texts, groups, points)


def duplicates() -> AnalysisReport:
    """A group of three texts and one of two."""
    texts = [
        "The parcel has not arrived yet.", "The parcel did not arrive.", "The parcel has not arrived yet.",
        "A dog runs 😀 through the snow.", "A black dog runs 😀 through deep snow.", "Something else.",
    ]  # fmt: skip
    groups = [ReportGroup("1", (0, 1, 2), (1.0, 0.95123, 1.0), kept=0), ReportGroup("2", (3, 4), (0.96, 1.0), kept=4)]
    return report(ReportKind.DUPLICATES, texts, groups)


def pairs() -> AnalysisReport:
    """Three pairs."""
    texts = ["I can't sign in.", "I cannot sign in.", "Where is my parcel?", "Where is my refund?", "Hello."]
    groups = [
        ReportGroup("1", (0, 1), (0.98, 0.98)),
        ReportGroup("2", (2, 3), (0.7, 0.7)),
        ReportGroup("3", (0, 3), (0.1, 0.1)),
    ]
    return report(ReportKind.PAIRS, texts, groups)


def report(
    kind: ReportKind, texts: list[str], groups: list[ReportGroup], points: Any = None, **parts: Any
) -> AnalysisReport:
    """A report whose points are on a circle, unless some are given."""
    if points is None:
        turns = np.linspace(0, 2 * np.pi, len(texts), endpoint=False)
        points = np.column_stack([np.cos(turns), np.sin(turns)])
    given: dict[str, Any] = {
        "title": f"Report of {kind}",
        "facts": [("texts", str(len(texts))), ("model", "tiny")],
        "ids": [f"text-{number}" for number in range(len(texts))],
        "projection": "PCA",
    }
    return AnalysisReport(kind=kind, texts=texts, groups=groups, points=np.asarray(points, np.float32), **given | parts)


REPORTS = {ReportKind.CLUSTERS: clusters, ReportKind.DUPLICATES: duplicates, ReportKind.PAIRS: pairs}


class ReportPage:
    """One tab with a report in it.

    Attributes:
        page: Playwright's.
        problems: What the browser complained of: errors of scripts, violations of the content security policy.
        requests: Addresses that the page asked for, its own left out.
    """

    def __init__(self, browser: Browser, file: Path, size: ViewportSize | None = None, **context: Any) -> None:
        self._context = browser.new_context(viewport=size or {"width": 1280, "height": 900}, **context)
        self.page: Page = self._context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.problems.append(said.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        expect(self.page.locator("main")).to_have_attribute("aria-busy", "false", timeout=60_000)
        self.requests.remove(file.as_uri())

    @property
    def groups(self) -> Any:
        """The buttons of the list of groups."""
        return self.page.locator("#group-list button")

    @property
    def details(self) -> Any:
        """The texts of the selected group, or of all."""
        return self.page.locator("#details")

    def focused(self) -> str:
        """Id of the element with the focus."""
        return str(self.page.evaluate("document.activeElement.id"))

    def map_pixels(self) -> str:
        """What the map shows, after it was drawn."""
        drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        return str(self.page.evaluate(f"{drawn}.then(() => document.getElementById('map-canvas').toDataURL())"))

    def wait_for_other_pixels(self, before: str) -> None:
        """Wait until the map shows something else: the browser tells of a new color scheme when it has time."""
        self.page.wait_for_function(
            "before => document.getElementById('map-canvas').toDataURL() !== before", arg=before
        )

    def close(self) -> None:
        self._context.close()
        assert self.problems == []
        assert self.requests == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path) -> Iterator[OpenReport]:
    """A function from a report to a tab; each is closed after the test and must have had no problems or requests."""
    opened: list[ReportPage] = []

    def page_of(report: AnalysisReport, limits: dict[str, int] | None = None, **context: Any) -> ReportPage:
        file = tmp_path / f"report-{len(opened)}.html"
        file.write_bytes(report_bytes(report, **limits or {}))
        opened.append(ReportPage(browser, file, **context))
        return opened[-1]

    yield page_of
    for page in opened:
        page.close()


# 640 pixels are a desktop's 1280 at 200 % of zoom.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 640), ("light", 320)])
@pytest.mark.parametrize("kind", ReportKind)
def test_page_passes_axe(open_report: OpenReport, kind: ReportKind, scheme: str, width: int) -> None:
    tab = open_report(REPORTS[kind](), color_scheme=scheme, size={"width": width, "height": 720})
    expect_accessible(tab)
    tab.groups.nth(1).click()
    tab.page.get_by_role("searchbox").fill("a")
    expect(tab.page.locator("#found-list > li").first).to_be_visible()
    expect_accessible(tab)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def expect_accessible(tab: ReportPage) -> None:
    """No rule of axe-core is broken."""
    result = Axe().run(tab.page, options=RULES)
    assert result.violations_count == 0, result.generate_report()


def test_page_structure_for_screen_readers(open_report: OpenReport) -> None:
    tab = open_report(duplicates())
    expect(tab.page.locator("body")).to_match_aria_snapshot("""
    - navigation "Skip links":
      - link "Skip to the groups"
      - link "Skip to the texts"
    - banner:
      - heading "Report of duplicates" [level=1]
      - combobox "Theme"
    - main:
      - status
      - search:
        - searchbox "Find texts"
      - region "Near-duplicates":
        - heading "Near-duplicates" [level=2]
        - list "Near-duplicates":
          - listitem:
            - button "Group 1 3 texts, lowest cosine 0.95123 The parcel has not arrived yet."
      - region "Map":
        - heading "Map" [level=2]
        - group "Map controls":
          - button "Zoom in"
          - button "Zoom out"
          - button "Zoom to selection" [disabled]
          - button "Show all"
        - application "Map of 6 texts"
        - list "Legend"
      - region "All groups":
        - heading "All groups" [level=2]
        - heading "Group 1" [level=3]
        - list:
          - listitem
          - listitem
        - heading "Group 2" [level=3]
    """)


def test_keyboard_moves_from_groups_to_members_to_search(open_report: OpenReport) -> None:
    tab = open_report(clusters())
    keyboard = tab.page.keyboard
    keyboard.press("Tab")
    keyboard.press("Enter")
    assert tab.focused() == "groups-heading"
    keyboard.press("Tab")
    keyboard.press("ArrowDown")
    keyboard.press("ArrowDown")
    expect(tab.groups.nth(2)).to_be_focused()
    keyboard.press("End")
    expect(tab.groups.last).to_be_focused()
    keyboard.press("Home")
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    assert tab.focused() == "details-heading"
    expect(tab.page.locator("#details-heading")).to_have_text("shipping, parcel 1")
    expect(tab.page.get_by_role("status")).to_have_text("shipping, parcel 1, 25 texts, mean cosine 0.650, is selected.")
    expect(tab.groups.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(tab.details.locator("ol > li")).to_have_count(20)
    keyboard.press("Tab")
    keyboard.press("Tab")
    assert tab.focused() == "more-details"
    keyboard.press("Enter")
    expect(tab.details.locator("ol > li")).to_have_count(25)
    expect(tab.details.locator("ol > li").nth(20)).to_be_focused()
    keyboard.press("Escape")
    expect(tab.groups.nth(1)).to_be_focused()
    expect(tab.groups.nth(1)).to_have_attribute("aria-pressed", "false")
    keyboard.press("/")
    assert tab.focused() == "query"


def test_map_works_by_keyboard(open_report: OpenReport) -> None:
    tab = open_report(clusters())
    whole = tab.map_pixels()
    tab.page.locator("#map-canvas").focus()
    tab.page.keyboard.press("+")
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.get_by_role("status")).to_have_text(re.compile(r"Text \d+ about .+ 25 texts, mean cosine 0\.650\."))
    expect(tab.page.locator("#map-hover")).to_be_visible()
    assert tab.map_pixels() != whole
    tab.page.keyboard.press("Enter")
    expect(tab.page.locator("#group-list [aria-pressed=true]")).to_have_count(1)
    assert tab.focused() == "map-canvas"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("0")
    expect(tab.page.locator("#group-list [aria-pressed=true]")).to_have_count(0)
    tab.page.locator("#query").focus()
    assert tab.map_pixels() == whole


def test_map_works_by_pointer(open_report: OpenReport) -> None:
    tab = open_report(duplicates())
    box = tab.page.locator("#map-canvas").bounding_box()
    assert box is not None
    # The first text is the rightmost point of the circle.
    right, middle = box["x"] + box["width"] / 2 + box["height"] / 2 - 32, box["y"] + box["height"] / 2
    whole = tab.map_pixels()
    for step in range(0, 60, 4):
        tab.page.mouse.move(right + 30 - step, middle)
        if tab.page.locator("#map-hover").is_visible():
            break
    expect(tab.page.locator("#map-hover")).to_contain_text("The parcel has not arrived yet.")
    expect(tab.page.locator("#map-hover")).to_contain_text("Group 1")
    tab.page.mouse.down()
    tab.page.mouse.up()
    expect(tab.page.locator("#details-heading")).to_have_text("Group 1")
    tab.page.get_by_role("button", name="Show all groups").click()
    tab.page.evaluate("window.scrollTo(0, 0)")
    tab.page.mouse.move(box["x"] + 10, box["y"] + 10)
    assert tab.map_pixels() == whole
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 60, box["y"] + 40, steps=4)
    tab.page.mouse.up()
    moved = tab.map_pixels()
    assert moved != whole
    tab.page.mouse.wheel(0, -300)
    expect(tab.page.locator("#details-heading")).to_have_text("All groups")
    assert tab.map_pixels() != moved
    tab.page.locator("#zoom-all").click()
    tab.page.locator("#query").hover()
    assert tab.map_pixels() == whole


def test_map_zooms_by_pinch(open_report: OpenReport) -> None:
    tab = open_report(clusters(), has_touch=True)
    box = tab.page.locator("#map-canvas").bounding_box()
    assert box is not None
    whole = tab.map_pixels()
    middle, line = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = tab.page.context.new_cdp_session(tab.page)
    for apart in (20, 40, 80, 120):
        points = [{"x": middle + way * apart, "y": line, "id": way + 1} for way in (-1, 1)]
        name = "touchStart" if apart == 20 else "touchMove"
        touch.send("Input.dispatchTouchEvent", {"type": name, "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert tab.map_pixels() != whole
    expect(tab.page.locator("#group-list [aria-pressed=true]")).to_have_count(0)
    tab.page.locator("#zoom-all").click()
    assert tab.map_pixels() == whole


def test_group_selected_on_map_is_shown_in_list(open_report: OpenReport) -> None:
    texts = [f"text {number}" for number in range(260)]
    groups = [ReportGroup(str(number), (2 * number, 2 * number + 1), (0.9, 0.9)) for number in range(130)]
    tab = open_report(report(ReportKind.PAIRS, texts, groups))
    expect(tab.page.locator("#groups-count")).to_have_text("100 of 130 pairs listed.")
    tab.page.get_by_role("searchbox").fill("text-259")
    tab.page.locator("#found-list button").click()
    expect(tab.groups.nth(129)).to_have_attribute("aria-pressed", "true")
    expect(tab.page.locator("#groups-count")).to_have_text("130 of 130 pairs listed.")
    tab.page.keyboard.press("Escape")
    expect(tab.groups.nth(129)).to_be_focused()


def test_search_ignores_case_and_accents_and_shows_count(open_report: OpenReport) -> None:
    tab = open_report(clusters())
    whole = tab.map_pixels()
    box = tab.page.get_by_role("searchbox", name="Find texts")
    box.fill("CAFE №7")
    expect(tab.page.get_by_role("status")).to_have_text("71 of 760 texts found.")
    expect(tab.page.locator("#found-count")).to_have_text("71 of 760 texts found")
    expect(tab.page.locator("#found-list > li")).to_have_count(20)
    expect(tab.page.locator("#found-list mark").first).to_have_text("Café №7")
    tab.page.get_by_role("button", name="Show 20 more texts").click()
    expect(tab.page.locator("#found-list > li")).to_have_count(40)
    assert tab.map_pixels() != whole
    tab.page.locator("#found-list button").first.click()
    assert tab.focused() == "details-heading"
    expect(tab.page.locator("#details-heading")).to_have_text("refund, invoice 0")
    box.fill("text-759")
    expect(tab.page.locator("#found-list > li")).to_have_count(1)
    expect(tab.page.locator("#found-list > li")).to_contain_text("in no cluster")
    box.fill("no such words")
    expect(tab.page.locator("#found-note")).to_have_text("No text or id contains this.")
    box.press("Escape")
    expect(box).to_have_value("")
    expect(tab.page.locator("#found")).to_be_hidden()


def test_differing_words_are_marked_side_by_side(open_report: OpenReport) -> None:
    tab = open_report(duplicates())
    tab.groups.nth(1).click()
    row = tab.details.locator(".comparison")
    expect(row).to_have_count(1)
    expect(row.locator(".side").first).to_contain_text("Kept")
    expect(row.locator(".side").first.locator("del")).to_have_text(["black", "deep"])
    expect(row.locator(".side").last.locator("ins")).to_have_text(["the"])
    expect(row).to_contain_text("2 differences")
    sides = [side.bounding_box() for side in row.locator(".side").all()]
    assert sides[0] is not None
    assert sides[1] is not None
    assert sides[0]["y"] == sides[1]["y"]
    lines = row.locator("del").evaluate_all("all => all.map(one => getComputedStyle(one).textDecorationLine)")
    assert lines == ["underline", "underline"]  # not by color alone

    tab.groups.nth(0).click()
    expect(tab.details.locator(".comparison")).to_have_count(2)
    expect(tab.details.locator(".comparison").first.locator("ins")).to_have_text(["did", "arrive"])
    expect(tab.details.locator(".comparison").last).to_contain_text("identical texts")


def test_all_pairs_show_a_comparison(open_report: OpenReport) -> None:
    tab = open_report(pairs())
    expect(tab.details.locator(".comparison")).to_have_count(3)
    expect(tab.details.locator("del").last).to_have_text("I can't sign in.")
    expect(tab.page.locator("#legend li")).to_have_text(["in a pair (4)", "in no pair (1)"])


def test_texts_in_no_group_are_listed_from_the_legend(open_report: OpenReport) -> None:
    tab = open_report(clusters())
    whole = tab.map_pixels()
    tab.page.get_by_role("button", name="in no cluster (10)").click()
    assert tab.focused() == "found-heading"
    expect(tab.page.locator("#found-heading")).to_have_text("Texts in no cluster")
    expect(tab.page.locator("#found-list > li")).to_have_count(10)
    expect(tab.page.locator("#found-list > li").first).to_contain_text("Text 750 about")
    assert tab.map_pixels() != whole
    tab.page.get_by_role("button", name="Close").click()
    expect(tab.page.locator("#found")).to_be_hidden()
    assert tab.focused() == "query"
    assert tab.map_pixels() == whole


def test_hostile_content_is_shown_as_text(open_report: OpenReport) -> None:
    groups = [
        ReportGroup(text, (number, (number + 1) % len(HOSTILE)), (0.5, 0.5), kept=number)
        for number, text in enumerate(HOSTILE)
    ]
    facts = [(text, text) for text in HOSTILE]
    for kind in ReportKind:
        shown = {"ids": HOSTILE, "title": HOSTILE[0], "facts": facts, "projection": HOSTILE[1]}
        tab = open_report(report(kind, HOSTILE, groups, **shown))
        expect(tab.groups).to_have_count(len(HOSTILE))
        for number in range(len(HOSTILE)):
            tab.groups.nth(number).click()
        tab.page.locator("#map-canvas").focus()
        tab.page.keyboard.press("+")
        tab.page.get_by_role("searchbox").fill("alert")
        expect(tab.page.locator("#found-list > li")).to_have_count(3)
        assert tab.page.title() == HOSTILE[0]
        assert tab.page.locator("img, iframe, b, [onerror], body script:not(#data)").count() == 0
        assert tab.page.evaluate("document.scripts.length") == 3
        tab.page.get_by_role("searchbox").fill("together")
        expect(tab.page.locator("#found-list > li")).to_have_count(1)
        expect(tab.page.locator("#found-list .text")).to_have_text("� alone, � too, 😀 together")
        tab.page.get_by_role("searchbox").fill("null")
        expect(tab.page.get_by_role("heading", name="Texts with “null”")).to_be_visible()
        expect(tab.page.locator("#found-list .text")).to_contain_text("null� bell� escape�[31m �")
        ids = tab.page.locator("#found-list .id, #group-list .name").all_inner_texts()
        assert not any(character in "".join(ids) for character in "\u202e\u2066\x00\x07\x1b\x9b")
        for width in (1280, 320):
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def test_rtl_texts_are_rendered_rtl(open_report: OpenReport) -> None:
    tab = open_report(report(ReportKind.CLUSTERS, HOSTILE[-1:], [ReportGroup("1", (0,), (1.0,))]))
    assert tab.page.locator("#details .text").evaluate("one => getComputedStyle(one).direction") == "rtl"


def test_ids_are_shown_when_texts_are_unknown(open_report: OpenReport) -> None:
    tab = open_report(report(ReportKind.DUPLICATES, ["", "", ""], [ReportGroup("1", (0, 2), (1.0, 0.96), kept=0)]))
    expect(tab.page.locator("#notes")).to_contain_text("The texts are not known; their ids are shown.")
    expect(tab.groups.first).to_contain_text("text-0")
    expect(tab.details.locator(".side").last).to_contain_text("text-2")
    tab.page.get_by_role("searchbox").fill("TEXT-1")
    expect(tab.page.locator("#found-list > li")).to_have_count(1)


def test_page_states_what_it_omits(open_report: OpenReport) -> None:
    tab = open_report(clusters(), {"max_texts": 200, "max_groups": 25})
    notes = tab.page.locator("#notes li")
    expect(notes).to_have_count(2)
    expect(notes.first).to_contain_text("This page holds 200 of 760 texts")
    expect(notes.last).to_contain_text("This page holds 25 of 30 clusters")
    expect(tab.page.locator("#groups-count")).to_have_text("25 of 30 clusters listed. 5 clusters are not on this page.")
    tab.groups.nth(0).click()
    expect(tab.page.locator("#details-note")).to_contain_text("are not on this page")

    texts = ["a " * 3000, "a " * 2999 + "b", "c"]
    long = open_report(report(ReportKind.PAIRS, texts, [ReportGroup("1", (0, 1), (1, 1))]))
    expect(long.page.locator("#notes")).to_have_text("2 texts are shortened to 2,000 characters.")
    expect(long.details.locator(".comparison")).to_contain_text(
        "the same words in the first 2,000 characters; the texts differ after that, which is not shown"
    )


@pytest.mark.parametrize("kind", ReportKind)
def test_empty_report_is_a_valid_page(open_report: OpenReport, kind: ReportKind) -> None:
    for texts in ([], ["one"]):
        tab = open_report(report(kind, list(texts), []))
        expect(tab.page.locator("#groups-count")).to_contain_text("were found.")
        tab.page.locator("#map-canvas").focus()
        tab.page.keyboard.press("+")
        expect_accessible(tab)


def test_overlapping_points_are_listed_separately(open_report: OpenReport) -> None:
    groups = [ReportGroup("same", (0, 1, 2), (1, 1, 1))]
    tab = open_report(report(ReportKind.CLUSTERS, ["a", "b", "c"], groups, points=np.zeros((3, 2))))
    tab.page.locator("#map-canvas").focus()
    expect(tab.page.locator("#map-hover")).to_be_visible()
    expect(tab.details.locator("ol > li")).to_have_count(3)


def test_colors_follow_system_until_chosen(open_report: OpenReport) -> None:
    tab = open_report(clusters(), color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, dark_map = tab.page.evaluate(ground), tab.map_pixels()
    tab.page.get_by_label("Theme").select_option("light")
    light = tab.page.evaluate(ground)
    assert (dark, light) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")
    assert tab.map_pixels() != dark_map
    tab.page.get_by_label("Theme").select_option("system")
    assert tab.page.evaluate(ground) == dark
    assert tab.map_pixels() == dark_map
    tab.page.emulate_media(color_scheme="light")
    tab.page.wait_for_function(f"{ground} === '{light}'")
    tab.wait_for_other_pixels(dark_map)


def test_page_has_no_animations(open_report: OpenReport) -> None:
    tab = open_report(clusters(), reduced_motion="reduce")
    moving = "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
    assert tab.page.evaluate(moving) == 0
    assert tab.page.evaluate("document.getAnimations().length") == 0


def test_selected_texts_are_printed(open_report: OpenReport) -> None:
    tab = open_report(duplicates())
    tab.groups.nth(1).click()
    tab.page.emulate_media(media="print")
    expect(tab.details.locator("del").first).to_be_visible()
    expect(tab.page.locator("#groups")).to_be_hidden()
    expect(tab.page.get_by_role("button")).to_have_text(["Group 1 (3)", "Group 2 (2)", "without near-duplicates (1)"])
