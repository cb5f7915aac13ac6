"""False alarms and hits of the estimate of languages, for single texts and for the warning about a sample of texts.

    python -m benchmarks.languages --data DATA [--locale /usr/share/locale] [--write]

False alarms: English texts, English texts full of foreign names, and texts without a language (code, log lines, order
and part numbers, names). Hits: parallel texts in DATA (`parallel/multi30k-…`, `sts/stsb-LANGUAGE-test`), and for other
languages the translated messages of the programs that are installed on this machine (`*/LC_MESSAGES/*.mo`).
"""

from __future__ import annotations

import gettext
import platform
import random
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.common import read_jsonl, read_tsv, replaced, seconds, table
from es_sbert.config import DEFAULT_MODEL
from es_sbert.index.text_languages import MIN_SHARE, UNKNOWN, language_warning
from es_sbert.io.text_language import LANGUAGE_NAMES, detect_language

_PAGE = Path(__file__).parents[1] / "docs/results.md"
# Texts of a set that are drawn, texts of a sample, samples of a set, and characters of a message that is long enough.
_TEXTS, _SAMPLE, _SAMPLES, _MESSAGE = 2000, 100, 500, 60
_SHARES = (0.1, 0.2, 0.3, 0.5)

_NAMES = (
    "Jürgen von der Heide", "José María de la Cruz", "Ludwig Mies van der Rohe", "François de La Rochefoucauld",
    "Leonardo da Vinci", "João dos Santos e Silva", "Wisława Szymborska", "Antonín Dvořák", "Göran Persson",
    "Los Angeles", "Las Palmas de Gran Canaria", "Baden-Baden", "La Paz", "Le Havre", "Den Haag", "São Paulo",
    "Die Hard", "La La Land", "Der Spiegel", "El País", "Le Monde", "Il Sole 24 Ore", "De Telegraaf", "Cien años",
    "Volkswagen", "L'Oréal", "Citroën", "Škoda", "Łódź", "Århus", "Zürich", "Crédit Agricole", "Москва", "東京",
)  # fmt: skip
_SENTENCES = (
    "{} was born in {} and moved to {} after the war.", "The office of {} is near {}.", "{} wrote about {} for {}.",
    "Tickets from {} to {} are sold out.", "We met {} and {} in {}.", "{} and {} agreed on a price for {}.",
)  # fmt: skip
_LOGS = (
    "2026-03-{:02} 12:{:02}:01,{} ERROR [http-nio-8080-exec-{}] c.e.s.OrderService - timeout after {} ms",
    "10.0.{}.{} - - [03/Mar/2026:10:{:02}:55 +0000] \"GET /api/v1/items/{}?page={} HTTP/1.1\" 200",
    "kernel: [{}.{}] eth{}: link is up, {} Mbps, lpa 0x{}",
    "WARN  [pool-{}-thread-{}] o.a.k.c.NetworkClient: node {} disconnected, attempt {} of {}",
)  # fmt: skip


@dataclass(frozen=True)
class TextSet:
    """Texts of one kind.

    Attributes:
        name: Name in the table.
        source: Where they come from.
        texts: The texts.
        language: Their language; None if they have none.
    """

    name: str
    source: str
    texts: list[str]
    language: str | None = "en"


def draw(name: str, source: str, texts: Sequence[str], language: str | None = "en") -> TextSet:
    """A set of texts drawn at random by a fixed seed."""
    return TextSet(name, source, random.Random(0).sample(texts, min(len(texts), _TEXTS)), language)


def made(name: str, make: Callable[[random.Random], str], language: str | None = None) -> TextSet:
    """A set of generated texts."""
    generator = random.Random(0)
    return TextSet(name, "generated", [make(generator) for _ in range(_TEXTS)], language)


def english_sets(data: Path) -> list[TextSet]:
    """Texts that are English or in no language."""
    sets = []
    for name in ("cisi", "arguana-rebuilt", "agentset-msmarco"):
        documents = list(read_jsonl(data / "retrieval" / name / "corpus.jsonl.gz"))
        sets.append(draw(f"{name}, documents", "DATA", [row["text"] for row in documents]))
        if titles := [row["title"] for row in documents if row.get("title")]:
            sets.append(draw(f"{name}, titles", "DATA", titles))
        queries = [row["text"] for row in read_jsonl(data / "retrieval" / name / "queries.jsonl.gz")]
        sets.append(draw(f"{name}, queries", "DATA", queries))
    captions = [row["en"] for row in read_tsv(data / "parallel/multi30k-en-de-fr-cs-train.tsv.gz")]
    sets.append(draw("captions (Multi30k)", "DATA", captions))
    # The rules were chosen without these three.
    for name, file, column in (
        ("film reviews (MR)", "transfer/MR", "text"),
        ("product reviews (CR)", "transfer/CR", "text"),
        ("questions (Quora)", "duplicates/qqp-sample-test", "question1"),
    ):
        sets.append(draw(name, "DATA", [row[column] for row in read_tsv(data / f"{file}.tsv.gz")]))
    code = [
        line.strip()
        for module in (
            "argparse",
            "ast",
            "asyncio/tasks",
            "email/message",
            "json/decoder",
            "logging/__init__",
            "typing",
        )
        for line in (Path(sysconfig.get_path("stdlib")) / f"{module}.py").read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    blocks = ["\n".join(code[start : start + 10]) for start in range(0, len(code) - 10, 5)]

    def sentence(generator: random.Random) -> str:
        return generator.choice(_SENTENCES).format(*generator.choices(_NAMES, k=3))

    def log(generator: random.Random) -> str:
        return generator.choice(_LOGS).format(*(generator.randrange(1, 60) for _ in range(5)))

    def number(generator: random.Random) -> str:
        parts = [
            "".join(generator.choices("0123456789ABCDEFGHKLMNPRSTUVWXYZ", k=generator.randint(2, 6))) for _ in "12"
        ]
        return generator.choice(("{}-{}", "Order {} {}", "{}/{}", "PN {}.{} DE", "{} {} x 2")).format(*parts)

    return [
        *sets,
        made("English with foreign names", sentence, "en"),
        made("names alone", lambda generator: ", ".join(generator.choices(_NAMES, k=2)), None),
        draw("lines of Python", "its standard library", code, None),
        draw("ten lines of Python", "its standard library", blocks, None),
        made("log lines", log, None),
        made("order and part numbers", number, None),
    ]


def foreign_sets(data: Path, locale: Path) -> list[TextSet]:
    """Texts in every other language that can be recognized."""
    captions = list(read_tsv(data / "parallel/multi30k-en-de-fr-cs-train.tsv.gz"))
    sets = [
        draw(f"{LANGUAGE_NAMES[code]}, captions", "Multi30k", [row[code] for row in captions], code)
        for code in ("de", "fr", "cs")
    ]
    rows = list(read_tsv(data / "sts/stsb-es-test.tsv.gz"))
    sets.append(draw("Spanish, sentences", "STSb", [row["sentence1"] for row in rows], "es"))
    for code in LANGUAGE_NAMES:
        folder = {"zh": "zh_CN"}.get(code, code)
        if code != "en" and (texts := messages(locale / folder)):
            sets.append(draw(f"{LANGUAGE_NAMES[code]}, messages", "programs", texts, code))
    return sets


def messages(folder: Path) -> list[str]:
    """The translated messages of a language, without repetitions."""
    found: set[str] = set()
    for path in sorted(folder.glob("LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            try:
                catalog: dict[object, object] = vars(gettext.GNUTranslations(file))["_catalog"]
            except (OSError, UnicodeDecodeError, ValueError):
                continue  # in another encoding than it says
        found.update(
            text for key, text in catalog.items() if isinstance(text, str) and len(text) >= _MESSAGE and text != key
        )
    return sorted(found)


def warned(own: Sequence[str], english: Sequence[str] = (), share: float = 1.0) -> float:
    """Share of samples of texts with a warning.

    Args:
        own, english: The estimated languages of texts.
        share: Share of texts of a sample that are drawn from `own`; the rest is drawn from `english`.
    """
    generator = random.Random(1)
    count, size = 0, round(share * _SAMPLE)
    for _ in range(_SAMPLES):
        drawn = generator.choices(own, k=size) + (generator.choices(english, k=_SAMPLE - size) if english else [])
        count += language_warning(Counter(drawn), "docs", DEFAULT_MODEL, "") is not None
    return count / _SAMPLES


def percent(part: float, digits: int = 1) -> str:
    """`12.3%`; `0` for nothing."""
    return f"{100 * part:.{digits}f}%" if part else "0"


def measure_set(texts: TextSet) -> tuple[list[str], list[str]]:
    """The languages of a set's texts, and the cells about single texts. English is right for code."""
    found = [detect_language(text) or UNKNOWN for text in texts.texts]
    right, unknown = found.count(texts.language or "en"), found.count(UNKNOWN)
    wrong = percent((len(found) - right - unknown) / len(found), 2)
    cells = [f"{len(found):,}", percent(right / len(found)), percent(unknown / len(found)), wrong]
    return found, [texts.name, texts.source, *cells]


def measure(data: Path, locale: Path) -> str:
    """The two tables, with what they were measured on."""
    english = english_sets(data)
    took, measured = seconds(lambda: [measure_set(texts) for texts in english])
    each = took / sum(len(texts.texts) for texts in english)
    header = ["English or no language", "source", "texts", "English", "unknown", "another", "samples with a warning"]
    parts = [table(header, [[*cells, percent(warned(found))] for found, cells in measured])]
    plain = [
        language
        for texts, (found, _) in zip(english, measured, strict=True)
        if texts.language == "en"
        for language in found
    ]
    rows = []
    for texts in foreign_sets(data, locale):
        found, cells = measure_set(texts)
        rows.append([*cells, *(percent(warned(found, plain, share), 0) for share in _SHARES)])
    header = ["other languages", "source", "texts", "right", "unknown", "wrong"]
    parts.append(table([*header, *(f"warning at {share:.0%}" for share in _SHARES)], rows))
    parts.append(
        f"Samples: {_SAMPLES} of {_SAMPLE} texts each. A warning needs {MIN_SHARE:.0%} of the recognized texts. An "
        f"estimate takes {1e6 * each:.0f} µs on average (Python {platform.python_version()}, one core)."
    )
    return "\n\n".join(parts)


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--locale",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/usr/share/locale"),
    show_default=True,
)
@click.option("--write", is_flag=True, help="Replace the section of docs/results.md.")
def main(data: Path, locale: Path, write: bool) -> None:
    """Measure and print, or write."""
    section = measure(data, locale)
    if write:
        page = replaced(_PAGE.read_text(), "languages", section, maker="benchmarks.languages")
        _PAGE.write_text(page)
    else:
        click.echo(section)


if __name__ == "__main__":
    main()
