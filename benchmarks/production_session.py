"""The jobs of an index in production, one after another against a real engine, and the numbers expected of each.

    python -m benchmarks.production_session --url http://localhost:9200 [--tickets 5000] [--products 2000]

1. in place: tickets are embedded while an application writes, changes and deletes others in the same index
2. nightly CSV: products from a file with broken rows; the next night's file has changed, new and missing products
3. gateway: an application that knows nothing of vectors searches and writes through `es-sbert serve --hybrid`
4. new model: train on pairs, migrate while the application writes, and roll back with everything written since
5. index type: change it in place, and measure recall before and after a merge (Elasticsearch)
6. remove: take everything out of the tickets' index again

Prints what was expected and what was seen, and ends with exit code 1 if they differ. Deletes its indices.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import yaml

from benchmarks.common import machine, table
from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_scan import scan_index
from es_sbert.index.document_vectors import read_vector
from tests.random_writer import RandomWriters, differences, shared_documents

Json = dict[str, Any]

TICKETS, TICKETS_INDEX, PRODUCTS = "session-tickets", "session-tickets-1", "session-products"
# What a ticket is about → how it is written, and how somebody searches for it without its words.
SUBJECTS = {
    "billing": ("The invoice for {thing} shows an amount that is too high", "charged more money than agreed"),
    "login": ("I cannot sign in to {thing}, my password is rejected", "no access because of wrong credentials"),
    "delivery": ("The parcel with {thing} has still not arrived", "late shipment"),
    "crash": ("{thing} closes by itself as soon as I open a file", "program quits unexpectedly"),
    "noise": ("{thing} makes a loud noise when it is switched on", "disturbing sound during operation"),
}
THINGS = ("the printer", "the coffee maker", "the phone", "the editor", "the router", "the camera", "the scanner")
NONSENSE = "xyzzy plugh qwrtp"
BROKEN_ROWS = 3


@dataclass(frozen=True)
class Check:
    """A number of a job: what was expected, what was seen, and whether that is as expected."""

    job: str
    what: str
    expected: str
    seen: str
    met: bool


@dataclass
class Session:
    """An engine, the size of the jobs, and what they have shown so far."""

    url: str
    folder: Path
    tickets: int
    products: int
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=120)

    def equal(self, job: str, what: str, seen: Any, expected: Any) -> None:
        """Add a number that must be exactly this."""
        self.checks.append(Check(job, what, str(expected), str(seen), seen == expected))

    def at_least(self, job: str, what: str, seen: float, least: float) -> None:
        """Add a number that must not be lower."""
        self.checks.append(Check(job, what, f"≥ {least:g}", f"{seen:.4g}", seen >= least))

    def at_most(self, job: str, what: str, seen: float, most: float) -> None:
        """Add a number that must not be higher."""
        self.checks.append(Check(job, what, f"≤ {most:g}", f"{seen:.4g}", seen <= most))

    def run(self, *arguments: str | Path, code: int = 0, url: bool = True, json_output: bool = True) -> Json:
        """Run es-sbert and return what it printed with `--json`; nothing without.

        Raises:
            ClickException: it ended with another exit code.
        """
        shown = [*map(str, arguments), *(("--url", self.url) if url else ()), *(("--json",) if json_output else ())]
        command = [sys.executable, "-m", "es_sbert", *shown]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode != code:
            raise click.ClickException(
                f"es-sbert {' '.join(shown)} ended with {done.returncode}, not {code}:\n{done.stderr}{done.stdout}"
            )
        printed: Json = json.loads(done.stdout) if json_output else {}
        return printed

    def bulk(self, index: str, documents: dict[str, Json]) -> None:
        """Write documents as another application does."""
        self._send([line for name, source in documents.items() for line in ({"index": {"_id": name}}, source)], index)

    def delete(self, index: str, prefix: str) -> None:
        """Delete the documents whose ids begin with this."""
        names = [name for name in self.documents(index) if name.startswith(prefix)]
        self._send([{"delete": {"_id": name}} for name in names], index)

    def documents(self, index: str) -> dict[str, Json]:
        """Id → source of every document, with its vector even if `_source` leaves it out."""
        with closing(connect(EngineSettings(url=self.url))) as engine:
            engine.refresh(index)
            pages = scan_index(engine, index, query={"match_all": {}}, source_includes=["*"], vectors=True)
            return {hit["_id"]: hit["_source"] for page in pages for hit in page.hits}

    def _send(self, lines: list[Json], index: str) -> None:
        body = "".join(f"{json.dumps(line)}\n" for line in lines)
        headers = {"Content-Type": "application/x-ndjson"}
        answer = self.http.post(f"/{index}/_bulk", content=body, headers=headers, params={"refresh": "true"})
        if answer.raise_for_status().json()["errors"]:
            raise click.ClickException(f"documents were refused: {answer.text[:500]}")

    def delete_indices(self) -> None:
        """Delete what the session has made, with the indices of its migrations."""
        for row in self.http.get("/_cat/indices/session-*", params={"format": "json", "h": "index"}).json():
            self.http.delete(f"/{row['index']}")


def in_place(session: Session) -> None:
    """Embed an index in place while its application writes, changes and deletes."""
    job = "in place"
    fields = {"text": {"type": "text"}, "subject": {"type": "keyword"}, "number": {"type": "long"}}
    body = {"mappings": {"properties": fields}, "aliases": {TICKETS: {"is_write_index": True}}}
    session.http.put(f"/{TICKETS_INDEX}", json=body).raise_for_status()
    expected = {f"ticket-{number}": ticket(number) for number in range(session.tickets)}
    session.bulk(TICKETS, expected | shared_documents())
    with application(session, seed=1) as writers:
        options = ("--index", TICKETS, "--text-field", "text", "--batch-window", "50")
        first = session.run("ingest", *options, "--quiet")
        writers.wait_for(50)
    session.equal(job, "writes of the application that were refused", writers.counts().refused, 0)
    session.equal(job, "first run: lost documents, dead letters", (first["missing"], first["dead"]), (0, 0))
    session.run("ingest", "--index", TICKETS, "--quiet")
    last = session.run("ingest", "--index", TICKETS, "--quiet")
    session.equal(job, "last run: documents that lacked a vector", last["indexed"] + last["updated"], 0)
    found = session.documents(TICKETS)
    wrong = differences(expected | writers.expected(), found, is_ours)
    session.equal(job, "documents that are not as the application left them", len(wrong), 0)
    check_vectors(session, job, found)


def nightly_csv(session: Session) -> None:
    """Load products from a file, and the next night's file with `--prune`."""
    job, count = "nightly CSV", session.products
    first, second = session.folder / "products-1.csv", session.folder / "products-2.csv"
    rows = {f"p{number}": product(number) for number in range(count)}
    write_csv(first, rows, broken=BROKEN_ROWS)
    options = ("--index", PRODUCTS, "--id-field", "sku", "--text-template", "{name}. {description}", "--quiet")
    types = ("--types", "price=float,in_stock=boolean")
    loaded = session.run("ingest", *options, *types, first, code=1)
    session.equal(job, "first night: loaded, broken", (loaded["indexed"], loaded["dead"]), (count, BROKEN_ROWS))
    letters = (session.folder / loaded["dead_letters"]).read_text(encoding="utf-8").splitlines()
    session.equal(job, "rows in the dead-letter file", len(letters), BROKEN_ROWS)
    changed, cheaper, gone, new = count // 20, count // 10, count // 50, count // 40
    for number in range(changed):
        rows[f"p{number}"]["description"] += ", improved"
    for number in range(changed, changed + cheaper):
        rows[f"p{number}"]["price"] = "1.50"
    for number in range(count - gone, count):
        del rows[f"p{number}"]
    rows |= {f"n{number}": product(count + number) for number in range(new)}
    write_csv(second, rows, broken=0)
    loaded = session.run("ingest", *options, *types, second, "--prune", "--yes")
    seen = [loaded[name] for name in ("indexed", "updated", "unchanged", "pruned", "dead")]
    wanted = [new + changed, cheaper, count - gone - changed - cheaper, gone, 0]
    session.equal(job, "second night: embedded, updated, unchanged, pruned, broken", seen, wanted)
    found = session.documents(PRODUCTS).values()
    kinds = {f"{type(source['price']).__name__} {type(source['in_stock']).__name__}" for source in found}
    session.equal(
        job, "documents, and types of their prices and stocks", (len(found), kinds), (len(rows), {"float bool"})
    )


def gateway(session: Session) -> None:
    """Search and write through the gateway, as an application that knows nothing of vectors."""
    job = "gateway"
    relevant: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    for number in range(session.tickets):
        relevant[ticket(number)["subject"]].append(f"ticket-{number}")
    lines = [json.dumps({"query": SUBJECTS[subject][1], "ids": ids}) + "\n" for subject, ids in relevant.items()]
    (session.folder / "judged.jsonl").write_text("".join(lines), encoding="utf-8")
    calibrated = session.run("index", "calibrate", TICKETS, "--queries", "judged.jsonl", "--save")["recommended"]
    session.at_least(job, "judged tickets that the calibrated minimum keeps", calibrated["row"]["recall"]["mean"], 0.95)
    session.at_most(job, "other documents that pass it", calibrated["row"]["unrelated"]["mean"], 0.05)
    with serving(session) as url, httpx.Client(base_url=url, trust_env=False, timeout=120) as client:

        def search(text: str, size: int = 10) -> list[Json]:
            body = {"query": {"match": {"text": text}}, "size": size}
            answer = client.post(f"/{TICKETS}/_search", json=body).raise_for_status()
            hits: list[Json] = answer.json()["hits"]["hits"]
            return hits

        found = {subject: search(question) for subject, (_, question) in SUBJECTS.items()}
        right = sum(hit["_source"].get("subject") == subject for subject, hits in found.items() for hit in hits)
        session.at_least(job, "hits about the question's subject, of 50", right, 45)
        shown = [name for hits in found.values() for hit in hits for name in hit["_source"] if is_ours(name)]
        session.equal(job, "vectors and metadata in the hits", len(shown), 0)
        session.equal(job, "hits for nonsense", len(search(NONSENSE)), 0)
        written = {"text": "My card was debited twice", "subject": "billing", "number": -1}
        client.put(f"/{TICKETS}/_doc/twice", json=written, params={"refresh": "true"}).raise_for_status()
        session.equal(job, "first hit: what was written through it", search("paid two times", 1)[0]["_id"], "twice")


def new_model(session: Session) -> None:
    """Train on pairs, migrate while the application writes, and roll back with everything written since."""
    job, tuned = "new model", session.folder / "tuned"
    tickets = [ticket(number) for number in range(80)]
    pairs = [{"anchor": SUBJECTS[one["subject"]][1], "positive": one["text"]} for one in tickets]
    lines = "".join(f"{json.dumps(pair)}\n" for pair in pairs)
    (session.folder / "pairs.jsonl").write_text(lines, encoding="utf-8")
    (session.folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    session.run("train", "recipe.yaml", "-o", tuned, url=False)
    # The application begins anew: its threads know nothing of what those of the first job have left.
    session.delete(TICKETS, prefix="w")
    session.bulk(TICKETS, shared_documents())
    expected = session.documents(TICKETS)
    with application(session, seed=2) as writers:
        session.run("index", "migrate", TICKETS, "--model", tuned, "--quiet")
        session.equal(job, "the alias points to another index", TICKETS_INDEX not in aliased(session), True)
        writers.wait_for(50)
        session.run("index", "migrate", TICKETS, "--rollback", "--quiet")
        session.equal(job, "after the rollback it points to", aliased(session), {TICKETS_INDEX})
        writers.wait_for(50)
    session.run("ingest", "--index", TICKETS, "--quiet")
    found = session.documents(TICKETS)
    wrong = differences(without_ours(expected) | writers.expected(), found, is_ours)
    session.equal(job, "documents that are not as the application left them", len(wrong), 0)
    check_vectors(session, job, found)
    session.run("index", "migrate", TICKETS, "--drop", "--yes")
    kept = session.http.get(f"/_cat/indices/{TICKETS}*", params={"format": "json", "h": "index"}).json()
    session.equal(job, "indices after --drop", [row["index"] for row in kept], [TICKETS_INDEX])


def index_type(session: Session) -> None:
    """Change the index type in place; segments that are there keep the old one until they are merged."""
    job = "index type"
    with closing(connect(EngineSettings(url=session.url))) as engine:
        if engine.info.engine_type is not EngineType.ELASTICSEARCH:
            return
    change = ("index", "change-type", TICKETS, "--index-type", "bbq_hnsw", "--yes")
    session.run(*change, json_output=False)
    measure = ("index", "recall", TICKETS, "--sample", "50", "--num-candidates", "100")
    changed = session.run(*measure)
    session.equal(job, "recall says which share is in the new type", changed["index_type_share"] is not None, True)
    session.run(*change, "--force-merge", json_output=False)
    merged = session.run(*measure)
    session.equal(job, "share in the new type after the merge", merged["index_type_share"], 1.0)
    best = max(row["recall"]["mean"] for row in merged["rows"])
    session.at_least(job, "recall@10 of the best setting after the merge", best, 0.95)


def remove(session: Session) -> None:
    """Take everything of es-sbert out of the tickets' index."""
    job = "remove"
    expected = session.documents(TICKETS)
    session.run("index", "remove", TICKETS, "--yes")
    found = session.documents(TICKETS)
    session.equal(job, "fields of es-sbert", sum(is_ours(name) for source in found.values() for name in source), 0)
    theirs = without_ours(expected)
    session.equal(job, "documents that changed otherwise", sum(theirs[name] != found.get(name) for name in theirs), 0)
    mapping = session.http.get(f"/{TICKETS}/_mapping").json()[TICKETS_INDEX]["mappings"]
    session.equal(job, "_meta of the mapping", mapping.get("_meta", {}), {})


JOBS: dict[str, Callable[[Session], None]] = {
    "in place": in_place,
    "nightly CSV": nightly_csv,
    "gateway": gateway,
    "new model": new_model,
    "index type": index_type,
    "remove": remove,
}
RECIPE: Json = {
    "name": "session-tickets",
    "model": {"base": "all-MiniLM-L6-v2", "max_tokens": 32},
    "stages": [
        {
            "name": "pairs",
            "data": [{"path": "pairs.jsonl", "columns": {"anchor": "anchor", "positive": "positive"}}],
            "objective": {"kind": "in-batch"},
            "batch": 8,
            "learning_rate": 2e-5,
        }
    ],
    "export": {"precisions": ["fp32"]},
}


def ticket(number: int) -> Json:
    """A ticket of one of the subjects; its number makes its text unlike all others."""
    subject = list(SUBJECTS)[number % len(SUBJECTS)]
    text = SUBJECTS[subject][0].format(thing=THINGS[number // len(SUBJECTS) % len(THINGS)])
    return {"text": f"{text}, case {number}.", "subject": subject, "number": number}


def product(number: int) -> dict[str, str]:
    """A row of the CSV file."""
    thing = THINGS[number % len(THINGS)].removeprefix("the ")
    return {
        "name": f"{thing.title()} {number}",
        "description": f"A {thing} of series {number // len(THINGS)}",
        "price": f"{10 + number % 90}.99",
        "in_stock": "true" if number % 3 else "false",
    }


def write_csv(path: Path, rows: dict[str, dict[str, str]], *, broken: int) -> None:
    """A file as another system exports it; broken rows have a price that is not a number."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["sku", *product(0)])
        writer.writeheader()
        writer.writerows({"sku": sku, **row} for sku, row in rows.items())
        writer.writerows({"sku": f"b{number}", **product(number), "price": "on request"} for number in range(broken))


def is_ours(name: str) -> bool:
    """Whether es-sbert puts this field into documents."""
    return name.startswith(DEFAULT_VECTOR_FIELD)


def without_ours(documents: dict[str, Json]) -> dict[str, Json]:
    """The documents as their application knows them."""
    return {
        name: {key: value for key, value in source.items() if not is_ours(key)} for name, source in documents.items()
    }


def aliased(session: Session) -> set[str]:
    """The indices that the alias of the tickets points to."""
    return set(session.http.get(f"/_alias/{TICKETS}").raise_for_status().json())


@contextmanager
def application(session: Session, seed: int) -> Iterator[RandomWriters]:
    """Two threads that write into the tickets' alias while the block runs, begun before it."""
    writers = RandomWriters(session.url, TICKETS, threads=2, seed=seed, scripts=False, embedded=True)
    writers.before_write = lambda: time.sleep(0.01)  # an application has something else to do in between
    with writers.running():
        writers.wait_for(50)
        yield writers


def check_vectors(session: Session, job: str, found: dict[str, Json]) -> None:
    """Compare stored vectors with those of the same texts, embedded anew."""
    without = [name for name, source in found.items() if DEFAULT_VECTOR_FIELD not in source]
    session.equal(job, "documents without a vector", len(without), 0)
    if not without:
        with Encoder() as encoder:
            made = encoder.encode([source["text"] for source in found.values()])  # (documents, dimensions)
        stored = np.stack([read_vector(source[DEFAULT_VECTOR_FIELD]) for source in found.values()])
        session.at_least(
            job, "least cosine with the text embedded anew", float((made * stored).sum(axis=1).min()), 0.99
        )


@contextmanager
def serving(session: Session) -> Iterator[str]:
    """Address of a gateway in hybrid mode in front of the engine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "es_sbert", "serve", "--upstream", session.url, "--port", str(port), "--hybrid"]
    log, url = session.folder / "gateway.log", f"http://127.0.0.1:{port}"
    with log.open("w") as file, subprocess.Popen(command, stderr=file, stdout=file) as process:
        try:
            while not is_ready(url):
                if process.poll() is not None:
                    raise click.ClickException(f"the gateway ended:\n{log.read_text()}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def is_ready(url: str) -> bool:
    """Whether a gateway answers."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", trust_env=False).is_success
    return False


def run_session(url: str, folder: Path, *, tickets: int, products: int) -> list[Check]:
    """Do all jobs on an engine and return their numbers; indices are deleted before and after."""
    session = Session(url, folder, tickets, products)
    with closing(session.http):
        session.delete_indices()
        try:
            for name, job in JOBS.items():
                click.echo(f"{name} …", err=True)
                job(session)
        finally:
            session.delete_indices()
    return session.checks


@click.command()
@click.option("--url", required=True)
@click.option("--tickets", default=5000, show_default=True)
@click.option("--products", default=2000, show_default=True)
def main(url: str, tickets: int, products: int) -> None:
    """Print a table of all numbers."""
    with tempfile.TemporaryDirectory() as folder:
        checks = run_session(url, Path(folder), tickets=tickets, products=products)
    rows = [[check.job, check.what, check.expected, check.seen, "" if check.met else "**no**"] for check in checks]
    click.echo(table(["job", "number", "expected", "seen", ""], rows))
    click.echo(f"\n{tickets} tickets, {products} products; {json.dumps(machine())}")
    if not all(check.met for check in checks):
        raise click.ClickException("not everything is as expected")


if __name__ == "__main__":
    main()
