"""Known-item queries: the user looks for one document, and the query holds something that only this document has.

Identifiers are appended to documents; names, phrases, rare words and typed prefixes are those that one document has.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ORDERS = 40  # the issue of lost identifiers was seen with forty numbers of orders
OTHERS = 16  # queries of each other kind
SEVERAL = 4  # documents that have the same invoice
_WORD = re.compile(r"\w+(?:[.'’:]\w+)*")  # nearly the words of the engines' default analyzer
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})+")


@dataclass(frozen=True)
class KnownItem:
    """A query for known documents.

    Attributes:
        kind: `order`, `order in a question`, `error code`, …
        query: The text.
        documents: Ids of the documents, one or `SEVERAL`.
    """

    kind: str
    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True)
class KnownItems:
    """Queries, and the documents that they need.

    Attributes:
        items: The queries.
        changed: Id → text of the documents to which an identifier was appended.
    """

    items: list[KnownItem]
    changed: dict[str, str]


def words_of(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def make_known_items(documents: Mapping[str, str], seed: int) -> KnownItems:
    """Make known-item queries for a collection; the same seed makes the same ones."""
    chosen = random.Random(seed)
    texts, ids = dict(documents), sorted(documents)
    items: list[KnownItem] = []
    for kind, query, sentence, question, count in _identifiers(chosen):
        held = tuple(chosen.sample(ids, count))
        for id in held:
            texts[id] += f" {sentence}"
        items.append(KnownItem(kind, query, held))
        if question:
            items.append(KnownItem(f"{kind} in a question", question, held))
    changed = {id: text for id, text in texts.items() if text != documents[id]}
    return KnownItems(items + list(_from_texts(texts, chosen)), changed)


def _identifiers(chosen: random.Random) -> Iterator[tuple[str, str, str, str, int]]:
    """Yield kind, identifier, the sentence with it, a question with it (or none), and in how many documents it is."""
    first = chosen.randrange(10_000, 90_000)
    for number in range(first, first + ORDERS):
        order = f"ORD-{number}"
        question = chosen.choice(["where is order {}", "what is the status of {}", "problem with order {}"])
        yield "order", order, f"Order {order}.", question.format(order) if number % 3 == 0 else "", 1
    for number in range(OTHERS):
        code = f"E-{chosen.randrange(1000, 9999)}" if number % 2 else f"0x{chosen.randrange(2**31, 2**32):08X}"
        question = f"what does error {code} mean" if number % 3 == 0 else ""
        yield "error code", code, f"Error code {code}.", question, 1
    for number in range(OTHERS):
        part = f"{chosen.choice('ABKMX')}{chosen.randrange(10, 99)}-{chosen.randrange(100, 9999)}{chosen.choice('ABC')}"
        question = f"is the part {part} available" if number % 3 == 0 else ""
        yield "part number", part, f"Part {part}.", question, 1
    for number in range(OTHERS // 2):
        invoice = f"INV/{chosen.randrange(2019, 2025)}/{1000 + 10 * number}"
        yield f"invoice in {SEVERAL} documents", invoice, f"Invoice {invoice}.", "", SEVERAL


def _from_texts(texts: Mapping[str, str], chosen: random.Random) -> Iterator[KnownItem]:
    words = {id: words_of(text) for id, text in texts.items()}
    holders: dict[str, set[str]] = defaultdict(set)
    for id, own in words.items():
        for word in own:
            holders[word].add(id)

    def is_only_in(id: str, phrase: str) -> bool:
        looked_for = words_of(phrase)
        joined = f" {' '.join(looked_for)} "
        candidates = set.intersection(*(holders[word] for word in looked_for))
        return [other for other in candidates if joined in f" {' '.join(words[other])} "] == [id]

    def part_of(text: str) -> str:
        found = text.split()
        start = chosen.randrange(max(1, len(found) - 5))
        return " ".join(found[start : start + chosen.randrange(3, 6)]).strip('.,;:()"')

    made: Counter[str] = Counter()
    for id in chosen.sample(sorted(texts), len(texts)):
        text = texts[id]
        names, rare = _NAME.findall(text), sorted({w for w in words[id] if len(holders[w]) == 1 and w.isalpha()})
        phrase = part_of(text)
        options = {
            "name": chosen.choice(names) if names else "",
            "phrase": phrase,
            "quoted phrase": f'"{phrase}"' if '"' not in phrase else "",
            "rare word": chosen.choice([word for word in rare if len(word) > 4] or [""]),
            "typed prefix": chosen.choice([word for word in rare if len(word) > 7] or [""]),
        }
        for kind in sorted(options, key=lambda kind: made[kind]):
            query = options[kind]
            enough = 3 if "phrase" in kind else 1
            if made[kind] >= OTHERS or len(words_of(query)) < enough or not is_only_in(id, query):
                continue
            if kind == "typed prefix":
                query = query[: len(query) * 2 // 3]
                if sum(word.startswith(query) for word in holders) > 1:
                    continue
            made[kind] += 1
            yield KnownItem(kind, query, (id,))
            break
        if all(made[kind] >= OTHERS for kind in options):
            return
