"""Pairs to train on that every Python carries: dotted names of its standard library and what they do, as JSONL.

    python examples/stdlib_pairs.py > stdlib-pairs.jsonl
    es-sbert train quickstart --data . -o tuned

One object a line: `name` (the last parts of the dotted name, as words) and `summary` (the docstring's first sentence
without that name). In an order that is the same on every run and mixes the modules.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator

from stdlib_docs import compiled_modules, parsed_modules

SHORTEST, LONGEST = 4, 40  # words of a summary


def pairs() -> Iterator[tuple[str, str]]:
    """(name as words, summary), each name and each summary once."""
    names: set[str] = set()
    summaries: set[str] = set()
    for source in (compiled_modules(), parsed_modules()):
        for dotted, _, docstring in source:
            name = " ".join(re.sub(r"[._]+|(?<=[a-z])(?=[A-Z])", " ", ".".join(dotted.split(".")[-2:])).lower().split())
            summary = first_sentence(docstring)
            known = name in names or summary in summaries
            if known or not SHORTEST <= len(summary.split()) <= LONGEST:
                continue
            names.add(name)
            summaries.add(summary)
            yield name, summary


def first_sentence(docstring: str) -> str:
    """The first sentence of the first paragraph that is prose and not a signature."""
    for paragraph in docstring.split("\n\n"):
        text = " ".join(paragraph.split())
        if text and "(" not in text.partition(" ")[0] and "->" not in text:
            return re.split(r"(?<=[.!?])\s", text)[0]
    return ""


def main() -> None:
    """Write the pairs to stdout."""
    order = sorted(pairs(), key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    for name, summary in order:
        json.dump({"name": name, "summary": summary}, sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
