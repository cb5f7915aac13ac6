"""What the search page is tried on: the articles with dates, and documents that nobody would like to show."""

from __future__ import annotations

from typing import Any

from tests.gateway.articles import articles

PASSAGES = ("--passages", "24")
HOSTILE = [
    {
        "id": "html",
        "title": "<img src=x onerror=alert(1)><script>alert(2)</script>",
        "text": "</p><iframe src='javascript:alert(3)'></iframe> The sun & the <b>moon</b> &amp; \"stars\".",
        "kind": "<svg onload=alert(4)>",
    },
    {
        "id": "controls",
        "title": "bell\x07 and null\x00",
        "text": "escape \x1b[31m red \x9b, a mark \ue000 of our own, sun",
        "kind": "\u202eback to front",
    },
    {
        "id": "rtl",
        "title": "\u202eطلوع الشمس\u202c",
        "text": "\u202eتشرق الشمس كل يوم sun \u202c and 𝒜𝒷𝒸 😀 behind",
        "kind": "\u202e",
    },
    {"id": "../../_search?q=*#", "title": "sun" + "x" * 5000, "text": "sun" + "ö" * 3000, "kind": "long"},
    {
        "id": "passages",
        "title": "😀 Weather",
        "text": "Rain fell for three days and the streets of the town were full of water. 😀 Nobody went out. The sun "
        "came back on Friday morning and dried the roofs within an hour. In the evening there was a concert.",
        "kind": "<svg onload=alert(4)>",
    },
]  # fmt: skip

# More characters than engines look through for words to mark unless they are told how many.
BOOK = {"title": "A book", "text": "zeppelin " * 120_000, "topic": "Space", "kind": "long"}


def dated_articles() -> list[dict[str, Any]]:
    return [
        article | {"published": f"{article['year']}-06-01", "long": len(article["text"]) > 120}
        for article in articles()
    ]
