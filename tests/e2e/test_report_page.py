"""The report's page as somebody uses it: by pointer, by keyboard, by screen reader, on all sizes of screens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect

from es_sbert.analysis import html_report
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


def clusters() -> AnalysisReport:
    """Clusters of some texts each, and ten texts in none."""
    size = GROUPS * MEMBERS
    texts = [f"Text {number} about {TOPICS[number // MEMBERS % 3]}: Café №{number}" for number in range(size + 10)]
    cosines = np.linspace(0.9, 0.4, MEMBERS).tolist()
    groups = [
        ReportGroup(f"{TOPICS[number % 3]} {number}", range(number * MEMBERS, (number + 1) * MEMBERS), cosines)
        for number in range(GROUPS)
    ]
    return report(ReportKind.CLUSTERS, texts, groups)


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


def report(kind: ReportKind, texts: list[str], groups: list[ReportGroup], **parts: Any) -> AnalysisReport:
    """A report whose points are on a circle."""
    turns = np.linspace(0, 2 * np.pi, len(texts), endpoint=False)
    points = np.column_stack([np.cos(turns), np.sin(turns)])
    given: dict[str, Any] = {
        "title": f"Report of {kind}",
        "facts": [("texts", str(len(texts))), ("model", "tiny")],
        "ids": [f"text-{number}" for number in range(len(texts))],
    }
    return AnalysisReport(kind=kind, texts=texts, groups=groups, points=np.asarray(points, np.float32), **given | parts)


REPORTS = {ReportKind.CLUSTERS: clusters, ReportKind.DUPLICATES: duplicates, ReportKind.PAIRS: pairs}


class ReportPage:
    """One tab with a report in it, what its browser complained of, and the addresses that it requested."""

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

    def page_of(report: AnalysisReport, **context: Any) -> ReportPage:
        file = tmp_path / f"report-{len(opened)}.html"
        file.write_bytes(report_bytes(report))
        opened.append(ReportPage(browser, file, **context))
        return opened[-1]

    yield page_of
    for page in opened:
        page.close()


# 640 pixels are a desktop's 1280 at 200 % of zoom.
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 640)])
@pytest.mark.parametrize("kind", ReportKind)
def test_page_passes_axe(open_report: OpenReport, kind: ReportKind, scheme: str, width: int) -> None:
    tab = open_report(REPORTS[kind](), color_scheme=scheme, size={"width": width, "height": 720})
    expect_accessible(tab)
    if tab.page.locator("#groups-toggle").is_visible():
        tab.page.locator("#groups-toggle").click()
    tab.groups.nth(1).click()
    tab.page.get_by_role("searchbox").fill("a")
    expect(tab.page.locator("#found-list > li").first).to_be_visible()
    expect_accessible(tab)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width


def expect_accessible(tab: ReportPage) -> None:
    """No rule of axe-core is broken."""
    result = Axe().run(tab.page, options=RULES)
    assert result.violations_count == 0, result.generate_report()


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
    for _ in range(4):  # past the buttons for all, the previous and the next cluster
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


def test_map_works_by_pointer(open_report: OpenReport) -> None:
    tab = open_report(duplicates())
    tab.page.get_by_role("button", name="Show map").click()
    assert tab.focused() == "map-canvas"
    box = tab.page.locator("#map-canvas").bounding_box()
    assert box is not None
    # The first text is the rightmost point of the circle.
    right, middle = box["x"] + box["width"], box["y"] + box["height"] / 2
    for step in range(0, int(box["width"] / 2), 4):
        tab.page.mouse.move(right - step, middle)
        if tab.page.locator("#map-hover").is_visible():
            break
    expect(tab.page.locator("#map-hover")).to_contain_text("The parcel has not arrived yet.")
    expect(tab.page.locator("#map-hover")).to_contain_text("Kept")
    tab.page.mouse.down()
    tab.page.mouse.up()
    expect(tab.page.locator("#details-heading")).to_have_text("Group 1")
    rows = [
        "Kepttext-0The parcel has not arrived yet.1 identical text, removabletext-2",
        "Removabletext-1cosine 0.9512 differencesThe parcel has did not arrived yet arrive.",
    ]
    expect(tab.details.locator("li:not(li li)")).to_have_text(rows)
    expect(tab.details.locator(".text :is(del, ins)")).to_have_text(["has", "did", "arrived yet", "arrive"])
    expect(tab.page.locator("#show-map")).to_be_hidden()  # the map is in view


def test_search_ignores_case_and_accents_and_shows_count(open_report: OpenReport) -> None:
    tab = open_report(clusters())
    box = tab.page.get_by_role("searchbox", name="Find texts")
    box.fill("CAFE №7")
    expect(tab.page.get_by_role("status")).to_have_text("71 of 760 texts found, in 5 clusters.")
    expect(tab.page.locator("#found-count")).to_have_text("71 of 760 texts found, in 5 clusters")
    expect(tab.page.locator("#found-list > li")).to_have_count(20)
    found = ["shipping, parcel 28", "password, login 29", "password, login 2", "refund, invoice 3", "refund, invoice 0"]
    counts = (25, 25, 5, 5, 1)
    expect(tab.groups.filter(visible=True)).to_have_text(
        [f"{n}{c} of 25 texts" for n, c in zip(found, counts, strict=True)]
    )
    expect(tab.page.locator("#found-list mark").first).to_have_text("Café №7")
    tab.page.get_by_role("button", name="Show 20 more texts").click()
    expect(tab.page.locator("#found-list > li")).to_have_count(40)
    tab.page.locator("#found-list button").first.click()
    assert tab.focused() == "details-heading"
    expect(tab.page.locator("#details-heading")).to_have_text("shipping, parcel 28")
    box.fill("text-724")
    expect(tab.groups.filter(visible=True)).to_have_count(1)
    box.press("Tab")
    expect(tab.groups.first).to_be_focused()
    box.fill("text-759")
    expect(tab.page.locator("#found-list > li")).to_have_count(1)
    expect(tab.page.locator("#found-list > li")).to_contain_text("in no cluster")
    box.fill("no such words")
    expect(tab.page.locator("#found-note")).to_have_text("No text or id contains this.")
    box.press("Escape")
    expect(box).to_have_value("")
    expect(tab.page.locator("#found")).to_be_hidden()
    expect(tab.groups.first).to_have_text("refund, invoice 025 texts")


def test_search_counts_groups_that_the_list_does_not_show_yet(open_report: OpenReport) -> None:
    texts = [f"text {number}" for number in range(300)]
    groups = [ReportGroup(f"name {number}", (2 * number, 2 * number + 1), (0.9, 0.8)) for number in range(150)]
    page = open_report(report(ReportKind.CLUSTERS, texts, groups)).page
    page.get_by_role("searchbox").fill("text 298")
    expect(page.locator("#found-count")).to_have_text("1 of 300 texts found, in 1 cluster")
    expect(page.locator("#groups-heading")).to_have_text("Clusters (1 of 150)")


def test_narrow_page_folds_identical_texts_and_shows_found_ones(open_report: OpenReport) -> None:
    texts = [*["Where is my parcel?"] * 3, "x" * 200, "y" * 200]
    groups = [ReportGroup("1", (0, 1, 2), (1.0, 1.0, 1.0)), ReportGroup("2", (3, 4), (0.9, 0.9))]
    size = {"width": 320, "height": 600}
    tab = open_report(report(ReportKind.PAIRS, texts, groups, ids=[f"{n}{'z' * 200}" for n in range(5)]), size=size)
    expect(tab.page.locator("#map")).to_be_hidden()
    expect(tab.groups.first).to_have_text("1Where is my parcel?3 identical texts")
    expect(tab.details.locator("li:not(li li)")).to_have_count(2)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 320
    tab.page.get_by_role("searchbox").fill("parcel")
    expect(tab.page.locator("#found-note")).to_have_text("Identical texts are together.")
    expect(tab.page.locator("#found-list mark")).to_be_in_viewport()
    expect(tab.page.locator("#found-list button")).to_have_text("Pair 1")
    tab.page.get_by_role("button", name="in 1 pair").click()
    expect(tab.groups.first).to_be_in_viewport()
    tab.page.get_by_role("searchbox").scroll_into_view_if_needed()
    expect(tab.page.get_by_role("searchbox")).to_be_in_viewport()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 320


def test_groups_are_listed_from_the_least_similar_on_request(open_report: OpenReport) -> None:
    groups = [ReportGroup("1", (0, 1, 2), (1, 0.99, 0.98), kept=0), ReportGroup("2", (3, 4), (1, 0.96), kept=3)]
    tab = open_report(report(ReportKind.DUPLICATES, ["one", "two", "three", "four", "five"], groups))
    tab.page.get_by_label("Order").select_option("least similar first")
    expect(tab.details.locator("h3")).to_have_text(["Group 2", "Group 1"])
    expect(tab.groups).to_have_text(["fourGroup 2 · 2 texts, lowest 0.960", "oneGroup 1 · 3 texts, lowest 0.980"])
    tab.groups.first.click()
    expect(tab.page.get_by_role("button", name="Previous")).to_be_disabled()
    tab.page.get_by_role("button", name="Next").click()
    expect(tab.page.locator("#details-heading")).to_have_text("Group 1")


def test_equal_stretches_are_folded_and_a_narrow_list_is_closed(open_report: OpenReport) -> None:
    shared = " ".join(["the same words"] * 60)
    texts = [f"One {shared} end.", f"Two {shared} end."]
    wide = open_report(report(ReportKind.PAIRS, texts, [ReportGroup("1", (0, 1), (0.9, 0.9))]))
    expect(wide.details.locator("h3 + .note")).to_have_text("Cosine 0.900, 1 difference")
    wide.details.get_by_role("button", name="equal characters").first.click()
    expect(wide.details.locator(".text").first).to_have_text(texts[0].replace("One", "One Two"))

    narrow = open_report(clusters(), size={"width": 320, "height": 600})
    narrow.page.get_by_role("button", name="Jump to a cluster").click()
    narrow.groups.nth(7).click()
    expect(narrow.page.locator("#details-heading")).to_be_in_viewport()
    expect(narrow.page.locator("#group-list")).to_be_hidden()
    for step in ("Previous", "Next"):
        narrow.page.get_by_role("button", name=f"{step} cluster").click()
        expect(narrow.groups.nth(6 if step == "Previous" else 7)).to_have_attribute("aria-pressed", "true")
    narrow.page.get_by_role("button", name="← All clusters").click()
    expect(narrow.page.get_by_role("button", name="Jump to a cluster")).to_be_focused()


def test_hostile_content_is_shown_as_text(open_report: OpenReport) -> None:
    groups = [
        ReportGroup(text, (number, (number + 1) % len(HOSTILE)), (0.5, 0.5), kept=number)
        for number, text in enumerate(HOSTILE)
    ]
    facts = [(text, text) for text in HOSTILE]
    for kind in ReportKind:
        shown = {"ids": HOSTILE, "title": HOSTILE[0], "facts": facts}
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
        assert tab.page.evaluate("document.scripts.length") == 2
        tab.page.get_by_role("searchbox").fill("together")
        expect(tab.page.locator("#found-list > li")).to_have_count(1)
        expect(tab.page.locator("#found-list .text")).to_have_text("� alone, � too, 😀 together")
        ids = tab.page.locator("#found-list .id, #group-list .name").all_inner_texts()
        assert not any(character in "".join(ids) for character in "\u202e\u2066\x00\x07\x1b\x9b")


def script(name: str) -> str:
    return (Path(html_report.__file__).parent / "static" / name).read_text(encoding="utf-8")


def test_differences_of_words_keep_the_spaces_of_both_texts(open_report: OpenReport) -> None:
    pieces = open_report(pairs()).page.evaluate(
        f"() => {{{script('words.js')}; return merged(\"Where's it?\", 'Where is it?', [[5, 7]], [[6, 8]]);}}"
    )
    assert pieces == [["", "Where"], ["del", "'s"], ["", " "], ["ins", "is"], ["", " it?"]]


def test_groups_whose_points_cover_each_other_share_a_label(open_report: OpenReport) -> None:
    """The second group has a point elsewhere, the third is where the first is."""
    points = [[[50, 50], [52, 50]], [[51, 50], [90, 90]], [[49, 51]]]
    together, names = open_report(duplicates()).page.evaluate(
        "(all) => {const [isClusters, bySize, numbers] = [false, [], new Intl.NumberFormat()];"
        + script("labels.js")
        + "const together = togetherOf(all, (position) => position, 2).map((each) => each.together);"
        + "return [together, labelsOf(together[0], 800, true)]; }",
        [{"group": group, "members": members} for group, members in enumerate(points)],
    )
    assert (together, names) == ([[0, 2], [1]], ["1, 3"])


def placed_labels(page: Page, points: list[Any], kind: ReportKind, wide: dict[str, int]) -> list[list[dict[str, Any]]]:
    """Labels of the whole map and of found groups, for names with their widths."""
    return page.evaluate(
        "([points, isClusters, names]) => {const bySize = [];"
        + script("labels.js")
        + """
        const every = points.flat();
        const [texts, rest] = [0, 1].map(() => every.map((_, text) => text));
        const wanted = points.map((own, group) => ({ group, members: rest.splice(0, own.length), names }));
        const map = { width: 400, height: 300, radius: 2 };
        return [true, false].map((isWhole) => placeLabels(wanted, texts, (text) => every[text], { ...map, isWhole }));
        }""",
        [points, kind is ReportKind.CLUSTERS, [{"words": words, "wide": width} for words, width in wide.items()]],
    )


def points_near(label: dict[str, Any], positions: Any, around: int) -> int:
    box = np.array([[label[side] for side in sides] for sides in (("left", "top"), ("right", "bottom"))])
    box[0], box[1] = box[0] - around, box[1] + around
    return int(((positions >= box[0]) & (positions <= box[1])).all(axis=1).sum())


def is_told_apart(label: dict[str, Any], points: list[Any]) -> bool:
    """Whether the nearest points are the group's, or a line leads to one of them."""
    own = points[label["group"]]
    if label["to"] is not None:
        return bool(np.linalg.norm(np.array(own) - label["to"][1], axis=1).min() < 2.01)  # the radius of a point
    every = [position for positions in points for position in positions]
    around = next(gap for gap in range(25) if points_near(label, np.array(every), gap))
    return points_near(label, np.array(own), around) > 0


def are_apart(labels: list[dict[str, Any]]) -> bool:
    for one, two in combinations(labels, 2):
        right, down = two["left"] - one["right"], two["top"] - one["bottom"]
        if max(right, down, one["left"] - two["right"], one["top"] - two["bottom"]) < 0:
            return False
    return True


def test_labels_of_a_map_are_next_to_their_points(open_report: OpenReport) -> None:
    """Two clusters that touch, one far away, and a text between the points of others."""
    random = np.random.default_rng(0)
    middles = [(100, 150), (150, 150), (320, 60)]
    points = [(middle + 12 * random.standard_normal((40, 2))).tolist() for middle in middles] + [[[102, 152]]]
    whole, found = placed_labels(open_report(clusters()).page, points, ReportKind.CLUSTERS, {"x": 60})
    every = np.array([position for own in points for position in own])
    assert [label["group"] for label in whole] in ([2, 0, 1], [2, 1, 0])  # none for the text between others
    assert [label["group"] for label in found] == [0, 1, 2, 3]
    for label in whole:
        assert 2 * points_near(label, np.array(points[label["group"]]), 12) >= points_near(label, every, 12) > 0
    assert [points_near(label, every, -3) for label in found] == [0] * 4  # a cell is 3 pixels wide
    for label in found:
        assert is_told_apart(label, points)
    assert found[3]["to"] is not None
    assert all(map(are_apart, (whole, found)))


def test_a_group_between_others_has_its_number_on_the_map(open_report: OpenReport) -> None:
    """Nine groups of near-duplicates, 3 by 3, and a tenth far away."""
    middles = [(x, y) for x in (60, 110, 160) for y in (60, 110, 160)] + [(320, 200)]
    points = [[[x + right, y + down] for right in (-6, 0, 6) for down in (-6, 0, 6)] for x, y in middles]
    whole, _ = placed_labels(open_report(clusters()).page, points, ReportKind.DUPLICATES, {"Group 1": 60, "1": 14})
    every = np.array([position for own in points for position in own])
    assert {label["group"]: label["words"] for label in whole}.items() >= {4: "1", 9: "Group 1"}.items()
    assert len(whole) == 10
    for label in whole:
        assert is_told_apart(label, points)
        assert points_near(label, every, -3) == 0
    assert are_apart(whole)
