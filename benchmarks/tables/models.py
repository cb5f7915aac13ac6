"""How each model of the tables is made."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import read_tsv
from benchmarks.tables.cross_encoder import train_cross_encoder
from benchmarks.tables.lab import Lab, Model
from benchmarks.tables.mlm import train_masked_language_model
from es_sbert.bundle.catalog import MODELS
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.exporters.fetch_model import assemble_model

# (label, () → (what `es-sbert evaluate` takes, further options)).
Rows = list[tuple[str, Model]]

# An encoder that has seen little takes larger steps than one that was tuned on a billion pairs.
SMALL = {"stages__0__learning_rate": 1e-4}

# Of the triplets of Wikipedia sections for a model of 12 layers, on a CPU.
WIKI_EPOCHS = 0.4


def word_vectors(lab: Lab) -> Path:
    """word2vec on the short documents: replaces GloVe, which is not available."""
    corpus = lab.data / "ingest/short-docs.jsonl.gz"
    return lab.folder("words.vec.gz", lambda path: _words(lab, corpus, path))


def _words(lab: Lab, corpus: Path, path: Path) -> None:
    lab.baselines("train", "word-vectors", corpus, "-o", path, "--epochs", 3, "--threads", 2)


def masked_start(lab: Lab) -> Path:
    """An encoder without sentence tuning: two layers of 128, masked language modeling on the short documents."""
    return lab.folder("masked-start", lambda path: train_masked_language_model(lab.data, path, lab.profile.device))


def nli(lab: Lab, *, start: str | Path | None = None, name: str = "nli", seed: int = 1, **settings: object) -> Path:
    """Softmax on nli-train, from the sentence-tuned base or from `start`."""
    return lab.train(name, "nli-softmax", model__base=str(start or lab.profile.base), seed=seed, **settings)


def small_nli(lab: Lab) -> Path:
    """Softmax on nli-train from the masked start: the ablation's first run."""
    return ablated(lab, "nli", "mean", ("u", "v", "|u-v|"), 1)


def ablated(lab: Lab, objective: str, pooling: str, features: tuple[str, ...], seed: int) -> Path:
    """Softmax on nli-train (`nli`) or regression on STSb-train (`stsb`) from the masked start."""
    settings: dict[str, object] = {"model__pooling": [pooling], "model__normalize": False, **SMALL}
    name = ablated_name(objective, pooling, features, seed)
    start = masked_start(lab)
    if objective == "nli":
        settings["stages__0__objective__features"] = list(features)
        return nli(lab, start=start, name=name, seed=seed, **settings)
    return lab.train(name, "stsb-regression", model__base=str(start), seed=seed, **settings)


def ablated_name(objective: str, pooling: str, features: tuple[str, ...], seed: int) -> str:
    """Name of the model of `ablated`."""
    slug = {"u": "u", "v": "v", "|u-v|": "d", "u*v": "p"}
    return f"ablation-{objective}-{pooling}-{''.join(slug[each] for each in features)}-{seed}"


def stsb(lab: Lab, seed: int, **settings: object) -> Path:
    """Regression on STSb-train."""
    name = str(settings.pop("name", "stsb"))
    settings.setdefault("model__base", lab.profile.base)
    return lab.train(f"{name}-{seed}", "stsb-regression", seed=seed, **settings)


def nli_then_stsb(lab: Lab, seed: int) -> Path:
    """Regression on STSb-train from the model of `nli`."""
    return stsb(lab, seed, name="nli-stsb", model__base=str(nli(lab)))


def fetched(lab: Lab, name: str) -> Path:
    """A model of the catalog."""
    return lab.folder(name, lambda folder: assemble_model(MODELS[name], folder, None, print))


def cosent(lab: Lab, seed: int) -> Path:
    """CoSENT on STSb-train from bge-small-en-v1.5, 33 million parameters."""
    start = fetched(lab, "bge-small-en-v1.5")
    return lab.train(f"cosent-{seed}", "stsb-cosent", model__base=str(start), seed=seed)


def cross_encoder(lab: Lab, seed: int) -> Path:
    """Cross-encoder on STSb-train from the same base."""

    def pairs(part: str) -> list[tuple[str, str, float]]:
        rows = read_tsv(lab.data / f"sts/stsb-en-{part}.tsv.gz")
        return [(row["sentence1"], row["sentence2"], float(row["score"]) / 5) for row in rows]

    def make(folder: Path) -> None:
        train_cross_encoder(
            resolve_model(lab.profile.base), pairs("train"), folder,
            epochs=4, learning_rate=2e-5, seed=seed, device=lab.profile.device, dev=pairs("dev"),
        )  # fmt: skip

    return lab.folder(f"cross-stsb-{seed}", make)


def wiki(lab: Lab) -> Path:
    """Triplets of Wikipedia sections, one epoch."""
    return lab.train("wiki", "wiki-sections-triplet", model__base=lab.profile.base, seed=1)


def wiki_from_e5(lab: Lab) -> Path:
    """Less than half of the triplets from e5-small-v2, 33 million parameters, with a higher learning rate."""
    return lab.train(
        "wiki-e5-small",
        "wiki-sections-triplet",
        model__base=str(fetched(lab, "e5-small-v2")),
        stages__0__epochs=WIKI_EPOCHS,
        stages__0__learning_rate=5e-5,
        stages__0__checkpoints_per_epoch=1,
        seed=1,
    )


def untuned(lab: Lab) -> Rows:
    """The rows that come before sentence encoders, for tables of several tasks."""
    return [
        ("word2vec averaged", lambda: (f"word2vec:{word_vectors(lab)}", ())),
        ("own masked start, averaged", lambda: (f"average:{masked_start(lab)}", ())),
        ("own masked start, CLS", lambda: (f"cls:{masked_start(lab)}", ())),
    ]
