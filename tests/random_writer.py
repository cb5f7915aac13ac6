"""Programs that write into an alias all the time, and what its index must hold because of them.

Each thread has ids that only it writes, in an order that is known. Some documents are written by all threads: there,
each thread sets a field of its own, and increments a counter by a script where the engine has scripts. A write counts
when the engine has acknowledged it; one that is refused by a block on writes is sent again until it is taken.

If a cluster loses nodes, a write whose answer is lost may or may not have been executed, or may be executed late, when
a frozen node goes on. `OutageWriter` sends it again until it is acknowledged, each time on condition that the document
has not changed since it was last read, so that no late execution can undo a later write.
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
_ANSWERED_WITHIN = 10.0  # seconds; frozen nodes answer nothing
_LOOKS = 500  # for a document that was acknowledged
SHARED = tuple(f"shared-{letter}" for letter in "abcdefgh")


class WriterError(Exception):
    """The engine answered a write in a way that no writer expects."""


@dataclass
class Counts:
    """What the writers did."""

    acknowledged: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    retried: int = 0
    missing: int = 0
    unanswered: int = 0

    @property
    def operations(self) -> int:
        return self.acknowledged.total()


class RandomWriter:
    """One thread of writes."""

    def __init__(self, url: str, alias: str, number: int, seed: int, *, scripts: bool, embedded: bool = False) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=60)
        self._alias = alias
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._scripts = scripts
        self._embedded = embedded
        self._made = 0
        self.documents: dict[str, Json] = {}
        self.shared: dict[str, int] = {}
        self.increments: Counter[str] = Counter()
        self.counts = Counts()
        self.last_writes: dict[str, float] = {}

    def step(self) -> None:
        """One acknowledged write, and a look at the document."""
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
            name = self._choose(kind)
        self._send_own(kind, name)
        self.last_writes[name] = time.monotonic()
        if name in self.documents and self._is_missing(name):
            self.counts.missing += 1

    def _send_own(self, kind: str, name: str) -> None:
        if kind in ("insert", "replace"):
            source: Json = {"text": self._text(), "number": self._random.randrange(10**6), "version": 0}
            self._send("PUT", "_doc", name, source, new=kind == "insert")
            self.documents[name] = source
        elif kind == "delete":
            self._send("DELETE", "_doc", name, None)
            del self.documents[name]
        elif kind == "script":
            script = {"source": "ctx._source.version += params.by", "params": {"by": 3}}
            self._send("POST", "_update", name, {"script": script})
            self.documents[name]["version"] += 3
        else:
            one: Json = self._random.choice([{"text": self._text()}, {"number": self._random.randrange(10**6)}])
            self._send("POST", "_update", name, {"doc": one})
            self.documents[name] |= one

    def _choose(self, kind: str) -> str:
        """The document that a write of this kind is for."""
        return self._random.choice(list(self.documents))

    def _update_shared(self) -> None:
        name = self._random.choice(SHARED)
        value = self.shared.get(name, 0) + 1
        self._send("POST", "_update", name, {"doc": {f"by{self._number}": value}}, shared=True)
        self.shared[name] = value
        self.last_writes[name] = time.monotonic()

    def _increment_shared(self) -> None:
        name = self._random.choice(SHARED)
        script = {"source": "ctx._source.version += 1"}
        self._send("POST", "_update", name, {"script": script}, shared=True)
        self.increments[name] += 1
        self.last_writes[name] = time.monotonic()

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=4))

    def _is_missing(self, name: str) -> bool:
        return self._client.get(f"/{self._alias}/_doc/{name}").status_code == 404

    def _send(
        self, method: str, endpoint: str, name: str, body: Json | None, *, new: bool = False, shared: bool = False
    ) -> None:
        """Send a write until it is acknowledged."""
        refused = 0
        conflicts = shared or (self._embedded and endpoint == "_update")
        params = {"retry_on_conflict": "20"} if conflicts else {}
        while True:
            answer = self._client.request(method, f"/{self._alias}/{endpoint}/{name}", json=body, params=params)
            if answer.is_success:
                self.counts.retried += bool(refused)
                return
            if not self._is_refused(answer):
                raise WriterError(f"{method} {endpoint}/{name}: {answer.status_code} {answer.text[:300]}")
            refused += 1

    def _is_refused(self, answer: httpx.Response) -> bool:
        """Whether a block refuses the write; it is counted, and waited for."""
        if answer.status_code != 403 or _BLOCKED not in answer.text:
            return False
        self.counts.refused += 1
        time.sleep(_PAUSE_SECONDS)
        return True


class OutageWriter(RandomWriter):
    """A thread of writes into a cluster whose nodes are killed, frozen and restarted. It sends no scripts."""

    def __init__(self, url: str, alias: str, number: int, seed: int) -> None:
        self._urls = url.split(",")
        super().__init__(self._urls[0], alias, number, seed, scripts=False)
        self._client.timeout = httpx.Timeout(_ANSWERED_WITHIN)
        # Documents whose insertion may be executed late: it would bring back a document that was deleted.
        self._not_deletable: set[str] = set()

    def _is_missing(self, name: str) -> bool:
        return self._read_version(name) is None

    def _write_own(self, kind: str) -> None:
        if kind == "delete" and not self.documents.keys() - self._not_deletable:
            kind = "insert"
        super()._write_own(kind)

    def _choose(self, kind: str) -> str:
        return self._random.choice(
            [name for name in self.documents if kind != "delete" or name not in self._not_deletable]
        )

    def _send(
        self, method: str, endpoint: str, name: str, body: Json | None, *, new: bool = False, shared: bool = False
    ) -> None:
        """Send a write until it is acknowledged; see `RandomWriter`."""
        sent = 0
        while True:
            version = self._read_version(name)
            if version is None and method == "DELETE" and sent:
                break
            if version is None and not new:
                raise WriterError(f"{method} {endpoint}/{name}: the document was acknowledged and is gone")
            condition: Json = (
                {"if_seq_no": version[0], "if_primary_term": version[1]} if version else {"op_type": "create"}
            )
            answer = self._request(method, f"{endpoint}/{name}", body, condition)
            sent += 1
            if answer is not None and answer.is_success:
                break
            if answer is None:
                if version is None:
                    self._not_deletable.add(name)
            elif answer.status_code != 409 and not self._is_refused(answer):
                raise WriterError(f"{method} {endpoint}/{name}: {answer.status_code} {answer.text[:300]}")
        self.counts.retried += sent > 1

    def _read_version(self, name: str) -> tuple[int, int] | None:
        """Sequence number and primary term of a document; None if it is not there.

        A node that was frozen may answer before it knows what it has missed: a document counts as not there if it is
        not found for a while.
        """
        looks = 1 if name not in self.documents and name not in SHARED else _LOOKS
        while True:
            answer = self._request("GET", f"_doc/{name}", None, {"_source": "false"})
            if answer is None:
                continue
            if answer.is_success:
                found = answer.json()
                return found["_seq_no"], found["_primary_term"]
            if answer.status_code != 404 or '"found"' not in answer.text:
                raise WriterError(f"GET {name}: {answer.status_code} {answer.text[:300]}")
            looks -= 1
            if not looks:
                return None
            time.sleep(_PAUSE_SECONDS)

    def _request(self, method: str, path: str, body: Json | None, params: Json) -> httpx.Response | None:
        """The answer; None if it does not tell whether the request was executed: the next one goes to another node."""
        try:
            answer = self._client.request(method, f"/{self._alias}/{path}", json=body, params=params)
        except httpx.TransportError:
            answer = None
        if answer is None or answer.status_code == 429 or answer.status_code >= 500:
            self._urls.append(self._urls.pop(0))
            self._client.base_url = httpx.URL(self._urls[0])
            self.counts.unanswered += 1
            time.sleep(_PAUSE_SECONDS)
            return None
        return answer


class RandomWriters:
    """All threads, and what they have come to."""

    before_write: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        url: str,
        alias: str,
        *,
        threads: int,
        seed: int,
        scripts: bool,
        outages: bool = False,
        embedded: bool = False,
    ) -> None:
        self.writers: list[RandomWriter] = [
            OutageWriter(url, alias, number, seed)
            if outages
            else RandomWriter(url, alias, number, seed, scripts=scripts, embedded=embedded)
            for number in range(threads)
        ]
        self._errors: list[Exception] = []
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Writes go on while the block runs."""
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
            sum(one.unanswered for one in every),
        )

    def last_writes(self) -> dict[str, float]:
        """id → when the last write of a document was acknowledged."""
        times: dict[str, float] = {}
        for writer in self.writers:
            for name, acknowledged in writer.last_writes.items():
                times[name] = max(acknowledged, times.get(name, acknowledged))
        return times

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
                self.before_write()
                writer.step()
        except Exception as error:  # it is raised where the threads are joined
            self._errors.append(error)


def shared_documents() -> dict[str, Json]:
    """The documents that all threads write, as they have to be there before the first write."""
    return {name: {"text": "a man plays", "number": number, "version": 0} for number, name in enumerate(SHARED)}


def differences(expected: dict[str, Json], found: dict[str, Json], ignored: Callable[[str], bool]) -> list[str]:
    """Each document that is missing, too many, or not as the writers left it."""
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    wrong += [f"{name} should not be there" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        there = {key: value for key, value in found[name].items() if not ignored(key)}
        if there != expected[name]:
            wrong.append(f"{name} is {there}, not {expected[name]}")
    return wrong
