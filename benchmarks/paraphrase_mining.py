"""sentence-transformers' `paraphrase_mining` as a program, for `benchmarks.pairs`. Runs in the environment of a peer.

    python -m benchmarks.paraphrase_mining REQUEST.json

The request holds `model` (a folder), `threads`, `options` (of `SentenceTransformers` in
`benchmarks.encode_peers.worker`) and `texts`. The last line of standard output is
{"start": seconds until the model is loaded, "mining": seconds, "best": [cosine, first, second], "versions": {…}}.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.encode_peers.worker import SentenceTransformers


def main(file: Path) -> dict[str, Any]:
    """Load the model and find the most similar pairs."""
    begin = time.perf_counter()
    request = json.loads(file.read_text(encoding="utf-8"))
    loaded = SentenceTransformers(request["model"], request["threads"], request["options"])
    from sentence_transformers.util import paraphrase_mining

    start = time.perf_counter()
    [best, *_] = paraphrase_mining(loaded.model, request["texts"], show_progress_bar=False)
    end = time.perf_counter()
    packages = ("sentence-transformers", "transformers", "torch") + (
        ("openvino",) if request["options"]["backend"] == "openvino" else ()
    )
    return {
        "start": start - begin,
        "mining": end - start,
        "best": best,
        "versions": {name: version(name) for name in packages},
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
