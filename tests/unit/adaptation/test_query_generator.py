"""Queries of a command: kept as they arrive, asked for once, and every failure with what to do."""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from es_sbert.adaptation.pair_corpus import PairCorpus, PairDocument, add_generated_queries
from es_sbert.adaptation.query_generator import generate_queries
from es_sbert.errors import SourceError, UsageError

TEXTS = {"a": "the cat sleeps", "b": "dogs run in the park", "ç": "rain\nfalls"}
EXAMPLE = Path(__file__).parents[3] / "examples/generate_queries.py"

# Answers each line as it comes, in capitals, and notes which texts it was asked for.
ANSWER = """
import json, sys
asked = open("asked.txt", "a", encoding="utf-8")
for line in sys.stdin:
    row = json.loads(line)
    print(row["id"], file=asked, flush=True)
    print(json.dumps({"id": row["id"], "query": "  " + row["text"].upper() + " "}), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Generate queries with a program in Python."""
    monkeypatch.chdir(tmp_path)

    def generate(program: str, texts: dict[str, str] = TEXTS) -> dict[str, str]:
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        command = f"{shlex.quote(sys.executable)} program.py"
        return generate_queries(command, texts, tmp_path / "generated.jsonl", lambda message: None)

    return generate


def test_each_text_gets_its_query(run: Callable[..., dict[str, str]]) -> None:
    assert run(ANSWER) == {"a": "THE CAT SLEEPS", "b": "DOGS RUN IN THE PARK", "ç": "RAIN FALLS"}


def test_answers_in_another_order_at_the_end_are_taken_and_the_first_of_a_text_counts(
    run: Callable[..., dict[str, str]],
) -> None:
    rows = [{"id": id, "query": f"{id} {n}"} for n in (1, 2) for id in reversed(TEXTS)]
    program = f"import json, sys\nsys.stdin.read()\nprint('\\n'.join(map(json.dumps, {rows!r})), end='')"
    assert run(program) == {"a": "a 1", "b": "b 1", "ç": "ç 1"}


def test_interrupted_run_asks_only_for_the_rest(run: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"ended with exit status 3 after 2 of 3 queries") as caught:
        run(ANSWER + '    if row["id"] == "b": print("{", end="", flush=True); sys.exit(3)\n')
    assert "`resume`" in caught.value.remedy
    with (tmp_path / "generated.jsonl").open("ab") as kept:
        kept.write(b'{"id": "cut sho')  # what a kill in the middle of a line leaves
    (tmp_path / "asked.txt").unlink()
    assert run(ANSWER)["a"] == "THE CAT SLEEPS"
    assert (tmp_path / "asked.txt").read_text(encoding="utf-8").split() == ["ç"]
    # All are there: the command does not run, not even one that is gone.
    assert generate_queries("gone", TEXTS, tmp_path / "generated.jsonl", lambda message: None)["b"]


@pytest.mark.parametrize(
    ("program", "reason", "remedy"),
    [
        (
            "import sys; sys.stdin.read()",
            "ended with exit status 0 after 0 of 3 queries, without that of the id 'a'$",
            '{"id": "the id of the text"',
        ),
        ("print('Loading the model …')", "line 1 of the generator's output is not JSON: Loading", "standard error"),
        ('print(\'\\n{"id": "a"}\')', 'line 2 .* lacks an id or a query: {"id": "a"}', "both are strings"),
        ('print(\'{"id": 1, "query": "q"}\')', "line 1 .* lacks an id or a query", "both are strings"),
        ("print([1])", "line 1 .* lacks an id or a query", "both are strings"),
        ('print(\'{"id": "z", "query": "q"}\')', "has the id 'z', which the generator was not given", "unchanged"),
        (
            'import sys; sys.stdin.read(); print(\'{"id": "a", "query": "q"}\')',
            "after 1 of 3 queries, without that of the id 'b'",
            "an empty query if a text has none",
        ),
        ("import sys; sys.exit(7)", "ended with exit status 7 after 0 of 3", "`resume`"),
        ("import os; os.kill(os.getpid(), 15)", "ended with signal 15 after 0 of 3", "`resume`"),
    ],
)
def test_failures_say_what_to_do(run: Callable[..., dict[str, str]], program: str, reason: str, remedy: str) -> None:
    with pytest.raises(SourceError) as caught:
        run(program)
    assert re.search(reason, caught.value.message)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "is empty"),
        ("python 'generate", "is not a command: No closing quotation"),
        ("no-such-program --now", "no-such-program cannot be started: No such file"),
    ],
)
def test_commands_that_cannot_start_are_refused(tmp_path: Path, command: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        generate_queries(command, TEXTS, tmp_path / "generated.jsonl", lambda message: None)
    assert '`generator="python generate.py"`' in caught.value.remedy


def test_refused_command_is_ended_with_its_processes(run: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """It writes nonsense and does not read: it would wait for ever."""
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('nonsense', flush=True)\ntime.sleep(600)"
    )
    many = {str(number): "a long text " * 100 for number in range(1000)}  # more than a pipe holds
    with pytest.raises(SourceError, match="is not JSON"):
        run(program, many)
    assert "feed generator" not in [thread.name for thread in threading.enumerate()]


def test_copies_and_empty_queries_make_no_pair() -> None:
    texts = {"1": "The cat sleeps on the mat.", "2": "Dogs run.", "3": "Rain falls.", "4": "Not asked for."}
    corpus = PairCorpus(tuple(PairDocument(id, None, text, text) for id, text in texts.items()), {"without text": 2})
    found = add_generated_queries(corpus, {"1": "the cat sleeps on", "2": "", "3": "is it wet outside"})
    assert [document.query for document in found.documents] == [None, None, "is it wet outside", None]
    assert found.left_out == {
        "without text": 2,
        "without a generated query": 1,
        "whose text has the generated query word for word": 1,
    }


def test_example_asks_a_chat_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, self.headers["Authorization"], body["model"]))
            text = body["messages"][0]["content"].rpartition("\n\n")[2]
            answer = json.dumps({"choices": [{"message": {"content": f'"What about\n{text}?"'}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("LLM_URL", f"http://127.0.0.1:{server.server_port}/v1/chat/completions")
        monkeypatch.setenv("LLM_MODEL", "small")
        monkeypatch.setenv("LLM_KEY", "secret")
        command = shlex.join([sys.executable, str(EXAMPLE)])
        found = generate_queries(command, {"a": "cats"}, tmp_path / "generated.jsonl", lambda message: None)
        server.shutdown()
        thread.join()
    assert found == {"a": "What about cats?"}
    assert seen == [("/v1/chat/completions", "Bearer secret", "small")]
