"""Ask a language model for the query that a text answers: labeled queries for `es-sbert adapt`.

    export LLM_URL=http://localhost:8080/v1/chat/completions LLM_MODEL=my-model     # and LLM_KEY, if it needs one
    python examples/generate_queries.py < articles.jsonl > queries.jsonl

Reads {"id": …, "text": …} a line on standard input and writes {"query": …, "ids": […]} a line on standard output. Any
server with the chat API of OpenAI will do, such as llama.cpp, vLLM or Ollama on your own machine.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request

PROMPT = (
    "Write the search query that somebody would type who is looking for the following text. Use other words than the "
    "text where you can. Answer with the query alone.\n\n"
)


def ask(text: str) -> str:
    """The query of a text, in one line."""
    message = {"role": "user", "content": PROMPT + text}
    body = json.dumps({"model": os.environ["LLM_MODEL"], "messages": [message], "max_tokens": 64})
    headers = {"Content-Type": "application/json"}
    if "LLM_KEY" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['LLM_KEY']}"
    request = urllib.request.Request(os.environ["LLM_URL"], body.encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    return " ".join(answer.split()).strip('"')


for line in sys.stdin:
    document = json.loads(line)
    print(json.dumps({"query": ask(document["text"]), "ids": [document["id"]]}), flush=True)
