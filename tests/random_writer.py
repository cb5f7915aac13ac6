"""Programs that write into an alias all the time, and what its index must hold because of them.

Each thread has ids that only it writes, in an order that is known. Some documents are written by all threads: there,
each thread sets a field of its own, and increments a counter by a script where the engine has scripts. A write counts
when the engine has acknowledged it; one that is refused by a block on writes is sent again until it is taken.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.tiny import WORDS

Json = dict[str, Any]

_BLOCKED = "cluster_block_exception"
_PAUSE_SECONDS = 0.02
SHARED = tuple(f"shared-{letter}" for letter in "abcdefgh")


class WriterError(Exception):
    """The engine answered a write in a way that no writer expects."""


@dataclass
class Counts:
    """What the writers did.

    Attributes:
        acknowledged: Acknowledged writes by kind.
        refused: Answers that refused a write for a block.
        retried: Writes that were refused at least once and taken in the end.
        missing: Documents that were acknowledged and that a look-up right after a swap did not find.
    """

    acknowledged: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    retried: int = 0
    missing: int = 0

    @property
    def operations(self) -> int:
        return self.acknowledged.total()


class RandomWriter:
    """One thread of writes.

    Args:
        url: Of the engine.
        alias: Where to write.
        number: Of the thread, from 0.
        seed: Of its choices.
        scripts: Whether the engine has a language for scripts.
    """

    def __init__(self, url: str, alias: str, number: int, seed: int, *, scripts: bool) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=60)
        self._alias = alias
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._scripts = scripts
        self._made = 0
        self.documents: dict[str, Json] = {}
        self.shared: dict[str, int] = {}
        self.increments: Counter[str] = Counter()
        self.counts = Counts()

    def step(self) -> None:
        """One acknowledged write, and a look at the document.

        Raises:
            WriterError: the engine answered otherwise than by success or a block.
        """
        kinds = ["insert", "partial", "partial", "replace", "delete", "shared", "shared"]
        kinds += ["script", "script", "shared script"] if self._scripts else []
        kind = self._random.choice(kinds) if self.documents else "insert"
        if kind == "shared":
            self._update_shared()
        elif kind == "shared script":
            self._increment_shared()
        else:
            self._write_own(kind)
        self.counts.acknowledged[kind] += 1

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _write_own(self, kind: str) -> None:
        if kind == "insert":
            self._made += 1
            name = f"w{self._number}-{self._made}"
        else:
            name = self._random.choice(list(self.documents))
        if kind in ("insert", "replace"):
            source: Json = {"text": self._text(), "number": self._random.randrange(10**6), "version": 0}
            self._send("PUT", f"_doc/{name}", source)
            self.documents[name] = source
        elif kind == "delete":
            self._send("DELETE", f"_doc/{name}", None)
            del self.documents[name]
        elif kind == "script":
            script = {"source": "ctx._source.version += params.by", "params": {"by": 3}}
            self._send("POST", f"_update/{name}", {"script": script})
            self.documents[name]["version"] += 3
        else:
            one: Json = self._random.choice([{"text": self._text()}, {"number": self._random.randrange(10**6)}])
            self._send("POST", f"_update/{name}", {"doc": one})
            self.documents[name] |= one
        if name in self.documents and self._client.get(f"/{self._alias}/_doc/{name}").status_code == 404:
            self.counts.missing += 1

    def _update_shared(self) -> None:
        name = self._random.choice(SHARED)
        value = self.shared.get(name, 0) + 1
        self._send("POST", f"_update/{name}?retry_on_conflict=20", {"doc": {f"by{self._number}": value}})
        self.shared[name] = value

    def _increment_shared(self) -> None:
        name = self._random.choice(SHARED)
        self._send("POST", f"_update/{name}?retry_on_conflict=20", {"script": {"source": "ctx._source.version += 1"}})
        self.increments[name] += 1

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=4))

    def _send(self, method: str, path: str, body: Json | None) -> None:
        refused = 0
        while True:
            answer = self._client.request(method, f"/{self._alias}/{path}", json=body)
            if answer.is_success:
                self.counts.retried += bool(refused)
                return
            if answer.status_code != 403 or _BLOCKED not in answer.text:
                raise WriterError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
            refused += 1
            self.counts.refused += 1
            time.sleep(_PAUSE_SECONDS)


class RandomWriters:
    """All threads, and what they have come to.

    Attributes:
        writers: One a thread.
    """

    def __init__(self, url: str, alias: str, *, threads: int, seed: int, scripts: bool) -> None:
        self.writers = [RandomWriter(url, alias, number, seed, scripts=scripts) for number in range(threads)]
        self._errors: list[Exception] = []
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Writes go on while the block runs.

        Raises:
            WriterError: one of them was answered in a way that no writer expects.
        """
        threads = [threading.Thread(target=self._run, args=(writer,)) for writer in self.writers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            for writer in self.writers:
                writer.close()
        if self._errors:
            raise self._errors[0]

    def wait_for(self, operations: int) -> None:
        """Return once so many more writes are acknowledged, or a writer has failed."""
        until = self.counts().operations + operations
        while not self._errors and self.counts().operations < until:
            time.sleep(_PAUSE_SECONDS)

    def counts(self) -> Counts:
        """Of all threads."""
        every = [writer.counts for writer in self.writers]
        return Counts(
            sum((one.acknowledged for one in every), Counter()),
            sum(one.refused for one in every),
            sum(one.retried for one in every),
            sum(one.missing for one in every),
        )

    def expected(self) -> dict[str, Json]:
        """What the index holds of these writers' documents, by id."""
        documents = {name: source for writer in self.writers for name, source in writer.documents.items()}
        for name, source in shared_documents().items():
            fields = {f"by{n}": writer.shared[name] for n, writer in enumerate(self.writers) if name in writer.shared}
            version = sum(writer.increments[name] for writer in self.writers)
            documents[name] = source | fields | {"version": version}
        return documents

    def _run(self, writer: RandomWriter) -> None:
        try:
            while not self._over.is_set():
                writer.step()
        except Exception as error:  # it is raised where the threads are joined
            self._errors.append(error)


def shared_documents() -> dict[str, Json]:
    """The documents that all threads write, as they have to be there before the first write."""
    return {name: {"text": "a man plays", "number": number, "version": 0} for number, name in enumerate(SHARED)}


def differences(expected: dict[str, Json], found: dict[str, Json], ignored: Callable[[str], bool]) -> list[str]:
    """Each document that is missing, too many, or not as the writers left it.

    Args:
        ignored: Whether a field of a document is not theirs.
    """
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    wrong += [f"{name} should not be there" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        there = {key: value for key, value in found[name].items() if not ignored(key)}
        if there != expected[name]:
            wrong.append(f"{name} is {there}, not {expected[name]}")
    return wrong
