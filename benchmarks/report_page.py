"""The page of a report with 50,000 texts in Chromium: its size, the time until it can be used, and its frames.

    python -m benchmarks.report_page [--texts 50000] [--rounds 3]
    python -m benchmarks.report_page --screenshot docs/images/report.png --data DATA

The texts are random words and the points random clusters. Frames are counted while the map is moved, zoomed and pointed
at by events that are sent once a frame; the time of an event and of the drawing that follows is JavaScript's alone. The
browser is the one that the tests use, without a GPU.

With --screenshot, the page of sentences in DATA (`sts/*.tsv.gz`, embedded and clustered by k-means) is photographed.
"""

from __future__ import annotations

import json
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import numpy as np
from playwright.sync_api import Browser, Page

from benchmarks.common import machine, spread, table
from es_sbert.analysis.html_report import AnalysisReport, ReportGroup, ReportKind, map_points, report_bytes
from es_sbert.config import DEFAULT_MODEL
from tests.browser import chromium

CLUSTERS, WORDS = 40, 20
SIZE = {"width": 1360, "height": 980}
COLORS = 200  # of the picture: half of the bytes, and nobody sees it
SENTENCES, SHOWN_CLUSTERS = 6_000, 16

# Sends an event a frame to the map; gives the times between frames and those of drawing, in milliseconds.
FRAMES = """
async ([kind, count]) => {
  const canvas = document.getElementById("map-canvas");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const send = (name, x, y, more = {}) => canvas.dispatchEvent(new (name === "wheel" ? WheelEvent : PointerEvent)(
    name, { clientX: left + x, clientY: top + y, pointerId: 1, bubbles: true, cancelable: true, ...more }));
  canvas.setPointerCapture = () => {};
  // What is asked for in a frame is drawn in the next one: its functions are timed.
  const draws = [];
  const ask = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (call) => ask((now) => {
    const begin = performance.now();
    call(now);
    draws.push(performance.now() - begin);
  });
  const frame = () => new Promise((done) => ask(done));
  const event = (step) => {
    const [x, y] = [width * (0.5 + 0.3 * Math.cos(step / 9)), height * (0.5 + 0.3 * Math.sin(step / 9))];
    if (kind === "pan") send("pointermove", x, y);
    else if (kind === "zoom") send("wheel", width / 2, height / 2, { deltaY: step % 60 < 30 ? -100 : 100 });
    else send("pointermove", x, y);
  };
  if (kind === "pan") send("pointerdown", width * 0.8, height / 2);
  const frames = [];
  let before = await frame();
  for (let step = 0; step < count; step += 1) {
    event(step);
    const now = await frame();
    frames.push(now - before);
    before = now;
  }
  if (kind === "pan") send("pointerup", 0, 0);
  window.requestAnimationFrame = ask;
  document.getElementById("zoom-all").click();
  await frame();
  return [frames, draws];
}
"""

# Milliseconds until the texts with a word are found and listed.
SEARCH = """
(word) => {
  const box = document.getElementById("query");
  box.value = word;
  const begin = performance.now();
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  return performance.now() - begin;
}
"""


def random_report(count: int) -> AnalysisReport:
    """Clusters of random texts; a tenth is in none."""
    random = np.random.default_rng(0)
    vocabulary = np.array([f"word{number}" for number in range(5000)])
    texts = [" ".join(words) for words in vocabulary[random.zipf(1.3, (count, WORDS)) % len(vocabulary)]]
    labels = random.integers(0, CLUSTERS + CLUSTERS // 10, count)
    centers = random.normal(size=(CLUSTERS + CLUSTERS // 10, 2))
    points = centers[labels] + random.normal(scale=0.15, size=(count, 2))
    groups = []
    for cluster in range(CLUSTERS):
        members = np.flatnonzero(labels == cluster)
        cosines = np.sort(random.random(len(members)))[::-1]
        groups.append(
            ReportGroup(", ".join(vocabulary[3 * cluster : 3 * cluster + 3]), members.tolist(), cosines.tolist())
        )
    ids = [f"text-{number}" for number in range(count)]
    facts = [("texts", f"{count:,}"), ("method", "random")]
    return AnalysisReport(ReportKind.CLUSTERS, "Benchmark", facts, ids, texts, groups, points.astype(np.float32), "PCA")


def opened(browser: Browser, file: Path) -> tuple[Page, float]:
    """A new tab with the page, and the milliseconds until it can be used."""
    page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
    page.goto(file.as_uri())
    page.locator("main[aria-busy=false]").wait_for(timeout=60_000)
    # Until the first frame after the script is drawn.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page, page.evaluate("performance.getEntriesByName('usable')[0].startTime")


def measure(count: int, rounds: int, frames: int) -> str:
    """Two tables: the page, and its frames."""
    content = report_bytes(random_report(count))
    usable: list[float] = []
    finds: list[float] = []
    between: dict[str, list[float]] = {"pan": [], "zoom": [], "hover": []}
    drawing: dict[str, list[float]] = {"pan": [], "zoom": [], "hover": []}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "report.html"
        file.write_bytes(content)
        for _ in range(rounds):
            page, took = opened(browser, file)
            usable.append(took)
            for kind in between:
                found: Any = page.evaluate(FRAMES, [kind, frames])
                between[kind] += found[0]
                drawing[kind] += found[1]
            finds.append(page.evaluate(SEARCH, "word77"))
            page.close()
    head = ["texts", "size, MB", "usable after, ms", "first search, ms"]
    row = [f"{count:,}", f"{len(content) / 1e6:.1f}", spread(usable), spread(finds)]
    rows = [
        [
            kind,
            *(f"{np.percentile(between[kind], part):.1f}" for part in (50, 95, 100)),
            *(f"{np.percentile(drawing[kind], part):.1f}" for part in (50, 95, 100)),
        ]
        for kind in between
    ]
    frames_head = ["map", "frame, ms: median", "95 %", "longest", "drawing, ms: median", "95 %", "longest"]
    return f"{table(head, [row])}\n\n{table(frames_head, rows)}"


def sentences_report(data: Path) -> AnalysisReport:
    """Sentences in clusters that are named by their words."""
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import CountVectorizer

    from benchmarks.pairs import sentences
    from es_sbert.encoder.encoder import Encoder

    texts = sentences(data)[:SENTENCES]
    with Encoder(DEFAULT_MODEL, device="cpu") as encoder:
        vectors = encoder.encode(texts, "document")
    points, projection = map_points(vectors)
    labels = KMeans(SHOWN_CLUSTERS, random_state=0, n_init=1).fit_predict(vectors)
    counter = CountVectorizer(stop_words="english", min_df=5)
    counts = counter.fit_transform(texts)
    total = np.asarray(counts.sum(axis=0))[0]
    groups = []
    for cluster in range(SHOWN_CLUSTERS):
        members = np.flatnonzero(labels == cluster)
        center = vectors[members].mean(axis=0)
        cosines = vectors[members] @ center / np.linalg.norm(center)
        order = np.argsort(-cosines)
        inside = order[cosines[order] > 0.3]
        weights = np.asarray(counts[members].sum(axis=0))[0] * np.log(1 + 20 * total.mean() / total)
        name = ", ".join(counter.get_feature_names_out()[np.argsort(-weights)[:3]])
        groups.append(ReportGroup(name, members[inside].tolist(), cosines[inside].tolist()))
    groups.sort(key=lambda group: -len(group.members))
    facts = [("texts", f"{len(texts):,}"), ("model", DEFAULT_MODEL), ("method", f"k-means, {SHOWN_CLUSTERS} clusters")]
    ids = [f"sts.tsv:{number}" for number in range(1, len(texts) + 1)]
    return AnalysisReport(
        ReportKind.CLUSTERS, "Clusters of 6,000 sentences", facts, ids, texts, groups, points, projection
    )


def picture(report: AnalysisReport, output: Path) -> None:
    """The page with a pointer on the map, as a browser shows it."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "report.html"
        file.write_bytes(report_bytes(report))
        page, _ = opened(browser, file)
        box = page.locator("#map-canvas").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.36 * box["width"], box["y"] + 0.62 * box["height"])
        for step in range(40):
            page.mouse.move(box["x"] + (0.36 + step / 200) * box["width"], box["y"] + 0.62 * box["height"])
            if page.locator("#map-hover").is_visible():
                break
        page.wait_for_timeout(300)
        taken = Image.open(BytesIO(page.screenshot()))
    output.parent.mkdir(exist_ok=True)
    taken.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(output, optimize=True)


@click.command()
@click.option("--texts", default=50_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--frames", default=120, show_default=True, help="Frames of each kind in a round.")
@click.option("--screenshot", type=click.Path(dir_okay=False, path_type=Path), help="Take a screenshot instead.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(texts: int, rounds: int, frames: int, screenshot: Path | None, data: Path | None) -> None:
    """Measure and print the tables, or take the screenshot."""
    if screenshot is None:
        click.echo(f"{measure(texts, rounds, frames)}\n\n{json.dumps(machine())}")
    elif data is None:
        raise click.UsageError("--screenshot needs --data.")
    else:
        picture(sentences_report(data), screenshot)


if __name__ == "__main__":
    main()
