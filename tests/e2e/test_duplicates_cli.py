"""`es-sbert duplicates` on files and on indices, with bad input."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import contents, open_engine, write_jsonl
from tests.faulty_proxy import Exchange, FaultyProxy, Hold

pytestmark = pytest.mark.one_engine

# The words of the tiny model; equal texts are near-duplicates of any model.
TEXTS = ["a man plays guitar", "the cat sleeps", "a man plays guitar", "query passage", "the cat  sleeps ."]
DOCUMENTS = [{"id": f"d{9 - number}", "text": text} for number, text in enumerate(TEXTS)]
THRESHOLD = ("--min-cosine", "0.9999")


@pytest.fixture
def duplicates(cli: Cli, model: Path) -> Callable[..., Done]:
    return partial(cli, "duplicates", "--model", model, "--precision", "fp32", "--threads", "1")


def groups(text: str) -> dict[int, list[tuple[str, bool, float]]]:
    found: dict[int, list[tuple[str, bool, float]]] = {}
    for line in text.splitlines():
        one = orjson.loads(line)
        found.setdefault(one["group"], []).append((one["id"], one["kept"], one["cosine"]))
    return found


def test_first_of_duplicates_in_a_file_is_kept(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = duplicates("docs.jsonl", "--id-field", "id", "--json", *THRESHOLD)
    assert done.code == 0
    assert groups(done.out) == {1: [("d9", True, 1.0), ("d7", False, 1.0)]}
    assert "1 near-duplicate of 1 text among 5" in done.err
    duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "-o", "out.jsonl")
    assert Path("out.jsonl").read_text() == done.out
    assert duplicates("docs.jsonl", *THRESHOLD).out.splitlines() == [
        "group 1: 2 texts",
        "  kept     docs.jsonl:1  a man plays guitar",
        "  1.00000  docs.jsonl:3  a man plays guitar",
    ]


def test_html_report_replaces_stdout(duplicates: Callable[..., Done]) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    done = duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "--html", "page.html")
    assert (done.code, done.out) == (0, "")
    page = Path("page.html").read_text()
    assert "<title>Near-duplicates of docs.jsonl</title>" in page
    assert "a man plays guitar" in page
    done = duplicates("docs.jsonl", "--id-field", "id", *THRESHOLD, "--html", "page.html", "--json")
    assert groups(done.out) == {1: [("d9", True, 1.0), ("d7", False, 1.0)]}


def test_keep_newest_by_date_field(duplicates: Callable[..., Done]) -> None:
    dates: list[object] = ["2026-01-02", "2026-01-02T01:00:00+02:00", [1e12, "2026-03-01T00:00:00Z"], None, 1.7e12]
    documents = [{"text": "the cat sleeps", "at": {"date": date}} for date in dates]
    write_jsonl(Path("docs.jsonl"), [*documents, {"text": "a man"}])
    done = duplicates("docs.jsonl", "--json", "--keep", "newest", "--date-field", "at.date", *THRESHOLD)
    assert [name for name, kept, _ in groups(done.out)[1] if kept] == ["docs.jsonl:3"]
    write_jsonl(Path("docs.jsonl"), documents[:2])
    done = duplicates("docs.jsonl", "--json", "--keep", "newest", "--date-field", "at.date", *THRESHOLD)
    assert [name for name, kept, _ in groups(done.out)[1] if kept] == ["docs.jsonl:1"]
    rows = ["the cat sleeps,", "the cat sleeps,1700000000000", "the cat sleeps,20230101", "a man,"]
    Path("docs.csv").write_text("\n".join(["text,date", *rows]))
    done = duplicates("docs.csv", "--json", "--keep", "newest", "--date-field", "date", *THRESHOLD)
    assert [name for name, kept, _ in groups(done.out)[1] if kept] == ["docs.csv:3"]


@pytest.mark.parametrize(
    ("date", "message"),
    [("last week", "the date of docs.jsonl:1 in date cannot be read: 'last week'"),
     (True, "cannot be read: True"), (None, "none of the 2 texts has a date in date")],
)  # fmt: skip
def test_unparseable_dates_are_an_error(duplicates: Callable[..., Done], date: object, message: str) -> None:
    write_jsonl(Path("docs.jsonl"), [{"text": "the cat sleeps", "date": date}, {"text": "a man"}])
    done = duplicates("docs.jsonl", "--json", "--keep", "newest", "--date-field", "date")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_index_keeps_lowest_id_and_is_unchanged(cli: Cli, model: Path, engine_url: str, index_name: str) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    load = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *load).code == 0
    before = contents(engine_url, index_name)
    done = cli("duplicates", "--index", index_name, "--url", engine_url, "--json", *THRESHOLD)
    assert groups(done.out) == {1: [("d7", True, 1.0), ("d9", False, 1.0)]}
    assert contents(engine_url, index_name) == before


@pytest.fixture
def index(cli: Cli, model: Path, engine_url: str, index_name: str) -> str:
    """An index of the documents: d7 and d9 have one text."""
    dates = ["2026-01-05", "2026-01-04", "2026-01-03", "2026-01-02", "2026-01-01"]
    documents = [document | {"date": date} for document, date in zip(DOCUMENTS, dates, strict=True)]
    write_jsonl(Path("docs.jsonl"), documents)
    load = ("--url", engine_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index_name, *load).code == 0
    return index_name


@pytest.mark.parametrize("method", ["exact", "knn"])
def test_kept_id_marks_duplicates(cli: Cli, engine_url: str, index: str, method: str) -> None:
    before = contents(engine_url, index)
    arguments = ("--index", index, "--url", engine_url, "--method", method, "--mark-duplicates", "duplicate_of")
    arguments += THRESHOLD
    done = cli("duplicates", *arguments, "--dry-run")
    assert done.code == 0
    assert ("the search is kept in" in done.err) == bool(list(Path().glob("*.state"))) == (method == "knn")
    assert "duplicate_of would be written to 1 document and removed from 0; 0 documents already have" in done.err
    assert contents(engine_url, index) == before

    done = cli("duplicates", *arguments)
    assert done.code == 0
    assert "duplicate_of written to 1 document and removed from 0; 0 documents already had the right value" in done.err
    after = contents(engine_url, index)
    assert after == before | {"d9": before["d9"] | {"duplicate_of": "d7", "_version": before["d9"]["_version"] + 1}}

    newest = ("--keep", "newest", "--date-field", "date")
    done = cli("duplicates", *arguments, *newest)
    assert "duplicate_of written to 1 document and removed from 1; 0 documents already had" in done.err
    found = {name: source.get("duplicate_of") for name, source in contents(engine_url, index).items()}
    assert found == dict.fromkeys(before) | {"d7": "d9"}
    done = cli("duplicates", *arguments, *newest)
    assert "duplicate_of written to 0 documents and removed from 0; 1 document already had" in done.err
    assert not list(Path().glob("*.state"))


@pytest.mark.parametrize("method", ["exact", "knn"])
def test_collapse_on_written_group_shows_one_hit_a_group_and_every_other_document(
    cli: Cli, engine_url: str, index: str, method: str
) -> None:
    with open_engine(engine_url) as engine:
        # Without text and vector: no analysis compares it, and a search with `collapse` must still find it.
        assert engine.bulk(index, b'{"index": {"_id": "empty"}}\n{"date": "2026-01-06"}\n')[0].ok
        engine.refresh(index)
        before = contents(engine_url, index)
        arguments = ("--index", index, "--url", engine_url, "--method", method, "--write-field", "group", *THRESHOLD)
        done = cli("duplicates", *arguments, "--dry-run")
        assert (done.code, contents(engine_url, index)) == (0, before)
        assert "group would be written to 6 documents" in done.err
        done = cli("duplicates", *arguments, "--mark-duplicates", "duplicate_of")
        assert done.code == 0, done.err
        assert "group written to 6 documents\n" in done.err
        found = {name: source["group"] for name, source in contents(engine_url, index).items()}
        assert found == {name: name for name in before} | {"d9": "d7"}
        body = {"query": {"match_all": {}}, "collapse": {"field": "group"}, "sort": "date", "size": 10}
        hits = [hit["_id"] for hit in engine.search(index, body)["hits"]["hits"]]
        assert sorted(hits) == sorted({*before} - {"d9"})
    done = cli("duplicates", *arguments)
    assert "group written to 0 documents\n" in done.err
    done = cli("duplicates", *arguments, "--keep", "newest", "--date-field", "date")
    assert "group written to 2 documents\n" in done.err
    assert contents(engine_url, index)["d7"]["group"] == "d9"


def test_two_commands_that_write_fields_at_once_both_own_theirs(
    cli: Cli, model: Path, es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    write_jsonl(Path("docs.jsonl"), DOCUMENTS)
    commands = {
        "duplicate_of": ("duplicates", "--min-cosine", "0.9999"),
        "cluster": ("cluster", "--k", "2"),
    }
    index = fresh_index(es9_url)
    load = ("--url", es9_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index, *load).code == 0
    where = ("--index", index, "--url", es9_url, "--write-field")
    both = [
        subprocess.Popen([sys.executable, "-m", "es_sbert", *command, *where, field], stdout=subprocess.DEVNULL)
        for field, command in commands.items()
    ]
    assert [process.wait(300) for process in both] == [0, 0]
    for field, command in commands.items():
        done = cli(*command, *where, field)
        assert done.code == 0, done.err
        assert f"{field} written to 0 documents" in done.err


def kept_alive(arguments: list[str | Path], folder: Path, proxy: FaultyProxy, hold: Hold) -> subprocess.Popen[str]:
    """The command in its own process, stopped at the moment of a hold."""
    command = [sys.executable, "-m", "es_sbert", *map(str, arguments), "--url", proxy.url]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may ignore it, as shells let jobs in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert hold.reached.wait(120)
    return process


def stopped(process: subprocess.Popen[str], number: signal.Signals, hold: Hold) -> tuple[str, str]:
    """What the command writes when it gets a signal while its request is held."""
    process.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        # Before the connection breaks, which would end the command too, in another way.
        process.wait(30)
    hold.cut()
    return process.communicate(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_resumes_after_sigkill_or_sigint(
    cli: Cli, model: Path, es9_url: str, fresh_index: Callable[[str], str], tmp_path: Path, number: signal.Signals
) -> None:
    index = fresh_index(es9_url)
    words = ["cat", "guitar", "query", "passage", "man", "mat"]
    texts = [" ".join([words[n % 6], words[n // 6 % 6], words[n // 36 % 6], words[n // 7 % 6]]) for n in range(1200)]
    write_jsonl(Path("docs.jsonl"), [{"id": f"d{n:04}", "text": text} for n, text in enumerate(texts)])
    load = ("--url", es9_url, "--model", model, "--precision", "fp32", "--id-field", "id", "docs.jsonl")
    assert cli("ingest", "--index", index, *load).code == 0
    arguments: list[str | Path] = ["duplicates", "--index", index, "--json", "--method", "knn", *THRESHOLD]
    searches: list[int] = []
    # A page of 500 documents takes up to five requests of 100 searches.
    hold = Hold(lambda: len(searches) > 7)

    def count(exchange: Exchange) -> tuple[int, bytes]:
        searches.append(1)
        return hold(exchange)

    with FaultyProxy(es9_url, always=count, paths="/_msearch") as proxy:
        process = kept_alive(arguments, Path(), proxy, hold)
        state = Path(f"{index}.duplicates.state")
        out, err = stopped(process, number, hold)
    assert (process.returncode, out) == (-9 if number is signal.SIGKILL else 130, "")
    assert number is signal.SIGKILL or "run the same command again to resume" in err
    assert state.exists()
    done = cli(*arguments, "--url", es9_url)
    assert done.code == 0
    assert "resumed from" in done.err
    assert not state.exists()
    exact = cli("duplicates", "--index", index, "--json", "--url", es9_url, *THRESHOLD)
    assert done.out == exact.out != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "neither is given"),
        (("t.txt", "--index", "i"), "both are given"),
        (("--index", "i", "--id-field", "x"), "Leave out --text-field"),
        (("one.txt",), "a comparison needs two texts, but there is one"),
        (("t.txt", "--min-cosine", "-2"), "not in the range -1<=x<=1"),
        (("t.txt", "--keep", "shortest"), "'shortest' is not one of"),
        (("t.txt", "--keep", "newest"), "--keep newest and --date-field require each other"),
        (("t.txt", "--date-field", "date"), "--keep newest and --date-field require each other"),
        (("t.txt", "--method", "knn"), "--method knn requires --index"),
        (("t.txt", "--neighbors", "5", "--state", "s"), "--neighbors and --state are only valid with kNN"),
        (("--index", "i", "--method", "exact", "--num-candidates", "5"), "--num-candidates is only valid with kNN"),
        (("--index", "i", "--method", "knn", "--distinct"), "--distinct cannot be combined"),
        (("t.txt", "--write-field", "f"), "--write-field requires --index"),
        (("t.txt", "--dry-run"), "--dry-run requires a field to write"),
        (("--index", "i", "--write-field", "f", "--distinct"), "Leave --distinct out"),
        (("--index", "i", "--keep", "newest", "--date-field", "f", "--write-field", "f"), "also be a field to write"),
        (("--index", "i", "--write-field", "f", "--mark-duplicates", "f"), "would write the same field"),
        (("--index", "i", "--filter", "{"), "the filter is not JSON"),
        (("t.txt", "-o", "missing/out.jsonl"), "missing/out.jsonl cannot be written: its folder does not exist"),
        (("t.txt", "--html", "missing/page.html"), "missing/page.html cannot be written: its folder does not exist"),
        (("t.txt", "--html", "."), "is a directory"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_remedy(
    duplicates: Callable[..., Done], cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    Path("t.txt").write_text("the cat\na man\n")
    Path("one.txt").write_text("the cat\n")
    done = cli("duplicates", *arguments) if "--index" in arguments else duplicates(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
