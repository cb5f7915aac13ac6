"""Tiny models of each kind that differs in how it is read, exported or found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from es_sbert.bundle.bundle import cached_bundle_path
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_bundle
from tests.tiny import HIDDEN, tiny_tokenizer, write_tiny_bert

# A table of token vectors; vectors that are cut; a network with fewer layers than its weights hold.
KINDS = ("static", "cut", "layers")


def write_tiny_static(folder: Path, *, seed: int = 0) -> Path:
    """Write a StaticEmbedding with random vectors."""
    folder.mkdir(parents=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(seed).normal(size=(tokenizer.get_vocab_size(), HIDDEN)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    modules = [("StaticEmbedding", ""), ("Normalize", "1_Normalize")]
    kind = "sentence_transformers.models"
    entries = [
        {"idx": number, "name": str(number), "path": place, "type": f"{kind}.{name}"}
        for number, (name, place) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def write_model_kinds(folder: Path) -> dict[str, str]:
    """Write a model of each of `KINDS`; what --model takes for it.

    Their graphs are put into the cache, compared with numpy: the first use would import torch.
    """
    bert = write_tiny_bert(folder / "bert")
    layers = write_tiny_bert(folder / "layers", seed=1)
    config = json.loads((layers / "config.json").read_text())
    (layers / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    static = write_tiny_static(folder / "static")
    names = {"static": str(static), "cut": f"{bert}@8", "layers": str(layers)}
    for name in (str(bert), names["static"], names["cut"], names["layers"]):
        model = read_sentence_model(resolve_model(name))
        export_bundle(model, cached_bundle_path(model.fingerprint), [Variant.FP32])
    return names
