"""Open a graph with the CUDA provider, run it a few times and write what came of it. Started by `StandIns.run_graph`.

python -m tests.cuda.run_graph FOLDER: reads `request.json` and `feeds.npz` from the folder and writes `result.json`.
Marks the log with `run 0`, `run 1`, … and `close`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.cuda.marks import mark


def main(folder: Path) -> None:
    """Run the request in the folder. What onnxruntime raises is part of the result."""
    request = json.loads((folder / "request.json").read_text())
    with np.load(folder / "feeds.npz") as arrays:
        feeds = dict(arrays)
    result: dict[str, Any] = {"providers": [], "nodes": [], "outputs": [], "error": None}
    try:
        _run(request, feeds, result)
    except Exception as error:
        mark("close")
        result["error"] = f"{type(error).__name__}: {error}"
    (folder / "result.json").write_text(json.dumps(result))


def _run(request: dict[str, Any], feeds: dict[str, np.ndarray], result: dict[str, Any]) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = [("CUDAExecutionProvider", request["provider_options"]), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(request["model"], options, providers=providers, enable_fallback=0)
    result["providers"] = session.get_providers()
    result["nodes"] = [
        [node.name, node.op_type, part.ep_name]
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    for number in range(request["runs"]):
        mark(f"run {number}")
        outputs = session.run(None, feeds)
        result["outputs"].append([[list(output.shape), str(output.dtype)] for output in outputs])
    mark("close")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
