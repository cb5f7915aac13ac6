"""The example that asks a language model for labeled queries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from es_sbert.evaluation.judgement_files import LabeledQuery, read_labeled_queries

EXAMPLE = Path(__file__).parents[3] / "examples/generate_queries.py"


def test_example_writes_labeled_queries(tmp_path: Path) -> None:
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
        url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
        done = subprocess.run(
            [sys.executable, EXAMPLE],
            input='{"id": "a", "text": "cats"}\n',
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LLM_URL": url, "LLM_MODEL": "small", "LLM_KEY": "secret"},
        )
        server.shutdown()
        thread.join()
    queries = tmp_path / "queries.jsonl"
    queries.write_text(done.stdout)
    assert list(read_labeled_queries(queries)) == [LabeledQuery("What about cats?", ("a",))]
    assert seen == [("/v1/chat/completions", "Bearer secret", "small")]
