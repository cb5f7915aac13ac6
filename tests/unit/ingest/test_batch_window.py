"""How many texts a load embeds together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from es_sbert.cli.ingest import ingest
from es_sbert.cli.main import cli
from es_sbert.ingest.load_pipeline import batch_window
from es_sbert.runtime.onnx_session import OnnxCpuModel, OnnxCudaModel


@pytest.mark.parametrize(
    ("asked", "device", "expected"),
    [(None, "cpu", 2048), (None, "cuda:0", 32_768), (500, "cpu", 500), (500, "cuda:0", 500)],
)
def test_batch_window_defaults_to_the_encoder_window_on_cuda(asked: int | None, device: str, expected: int) -> None:
    context: Any = SimpleNamespace(plan=SimpleNamespace(settings=SimpleNamespace(batch_window=asked)))
    model = OnnxCpuModel if device == "cpu" else OnnxCudaModel
    encoder = SimpleNamespace(window=model.window, info=SimpleNamespace(device=device))
    assert batch_window(context, cast(Any, encoder)) == expected


def test_batch_window_option_defaults_to_the_device() -> None:
    with cli.make_context("es-sbert", ["ingest"]) as parent:
        context = ingest.make_context("ingest", ["--index", "docs"], parent=parent)
    assert context.params["batch_window"] is None
