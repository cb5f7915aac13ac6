"""Which text architectures of transformers es-sbert opens, and how closely its graphs give their vectors.

    python -m benchmarks.architectures [--write] [NAME …]

The names are those of `benchmarks/architectures.toml`: `model_type` of config.json, or a variant of one. A small
network of each architecture with random weights is saved as a sentence-transformers folder, exported, and compared with
sentence-transformers, in a separate process. `--write` puts the table of all architectures into docs/models.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
import tomllib
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.common import replaced, table
from es_sbert.errors import EsSbertError, error_summary

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/models.md"
LISTS = Path(__file__).with_suffix(".toml")
HEADER = ("architecture", "graph", "min cosine fp32", "min cosine int8", "why it is refused")
TIME_LIMIT = 240  # seconds for one architecture

_MAX_TOKENS = 48
_LAYERS, _HIDDEN, _HEADS = 2, 64, 4
# Settings of a small network, under every name that architectures have for them.
_SIZES: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), _LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers"), _LAYERS),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim"), _HIDDEN),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_encoder_attention_heads",), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _HEADS // 2),
    **dict.fromkeys(("head_dim", "d_head", "d_kv", "query_pre_attn_scalar"), _HIDDEN // _HEADS),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_inner", "d_ff", "hidden_dim", "ffn_dim"), 2 * _HIDDEN),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * _HIDDEN),
    # RoBERTa and similar architectures start positions after the padding token.
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), _MAX_TOKENS + 2),
    **dict.fromkeys(("sliding_window", "attention_window"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 32),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": _HIDDEN // 4,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
    "cls_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """One row's subject.

    Attributes:
        name: Name in the list.
        model_type: transformers' name of the architecture.
        is_causal: Whether each token sees only those before it; such models are pooled by the last token.
        settings: Settings in config.json other than sizes.
    """

    name: str
    model_type: str
    is_causal: bool
    settings: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What became of one architecture.

    Attributes:
        name: Name in the list.
        graph: `built`, `traced` or `refused`.
        fp32: Least cosine of the fp32 graph with sentence-transformers.
        int8: The same of int8; None if there is no int8 graph.
        reason: Why it is refused.
        is_clear: Whether the refusal is one of es-sbert's errors, which say what to do.
    """

    name: str
    graph: str
    fp32: float | None = None
    int8: float | None = None
    reason: str = ""
    is_clear: bool = True


@cache
def read_lists() -> dict[str, Any]:
    """The lists of architectures."""
    return tomllib.loads(LISTS.read_text(encoding="utf-8"))


def architectures() -> dict[str, Architecture]:
    """The architectures that are measured, by name."""
    lists = read_lists()
    settings, variants = lists["settings"], lists["variants"]
    found = {}
    for kind in ("bidirectional", "causal"):
        for name in lists[kind]["names"].split():
            variant = variants.get(name, {"model_type": name})
            model_type = variant["model_type"]
            own = {**settings.get(model_type, {}), **variant.get("settings", {})}
            found[name] = Architecture(name, model_type, kind == "causal", own)
    return found


def not_measured() -> dict[str, str]:
    """The architectures that are not measured, and why."""
    return {name: entry["reason"] for entry in read_lists()["not_measured"].values() for name in entry["names"].split()}


def installed_model_types() -> set[str]:
    """Every architecture that transformers' AutoModel opens."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return set(MODEL_MAPPING_NAMES)


def make_tokenizer() -> Any:
    """A WordPiece tokenizer of letters and frequent words, with special tokens around a text."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    from es_sbert.exporters.parity import parity_sentences

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    texts = map(normalizer.normalize_str, parity_sentences(_MAX_TOKENS))
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    letters = sorted({letter for word in words for letter in word})
    frequent = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *frequent][:600]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", special.index("[CLS]")), ("[SEP]", special.index("[SEP]"))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_MAX_TOKENS,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def small_settings(architecture: Architecture, vocabulary: int) -> dict[str, Any]:
    """Settings of a small network of an architecture."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[architecture.model_type]().to_dict()
    settings: dict[str, Any] = {key: size for key, size in _SIZES.items() if key in default}
    if "vocab_size" in default:
        settings["vocab_size"] = vocabulary
    kinds = list(dict.fromkeys(default.get("layer_types") or ()))
    if kinds:
        # One layer of every kind at least.
        settings["layer_types"] = kinds if len(kinds) >= _LAYERS else kinds * _LAYERS
        settings |= {key: len(settings["layer_types"]) for key in ("num_hidden_layers", "n_layer") if key in default}
    return {**settings, **architecture.settings}


def write_model(architecture: Architecture, folder: Path) -> Path:
    """Write a sentence-transformers folder of a small random network; returns the folder."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer_folder = folder.with_name(f"{folder.name}-transformer")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(transformer_folder)
    config = transformers.CONFIG_MAPPING[architecture.model_type](**small_settings(architecture, len(tokenizer)))
    config.architectures = []  # AutoModel looks into it for the architectures that have several networks
    network = transformers.AutoModel.from_config(config)
    _randomize(network)
    network.save_pretrained(transformer_folder)
    transformer = Transformer(str(transformer_folder), max_seq_length=_MAX_TOKENS)
    # Not what the configuration says: some networks end in another width.
    with torch.no_grad():
        width = transformer(transformer.preprocess(["the night train is late " * 4]))["token_embeddings"].shape[-1]
    pooling = Pooling(width, pooling_mode="lasttoken" if architecture.is_causal else "mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))
    return folder


def _randomize(network: Any) -> None:
    """Weights so large that every layer matters; norms and biases other than ones and zeros."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.copy_(0.2 * noise + ("norm" in name.lower() and name.endswith("weight")))
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)


def measure(architecture: Architecture) -> Row:
    """Export one architecture in this process and compare it with sentence-transformers."""
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.bundle.variants import Variant
    from es_sbert.exporters.export_bundle import export_bundle

    with tempfile.TemporaryDirectory() as scratch:
        folder, output = write_model(architecture, Path(scratch) / "model"), Path(scratch) / "bundle"
        try:
            model = read_sentence_model(folder)
            fp32 = export_bundle(model, output, [Variant.FP32], reference="auto").variants["fp32"]
        except EsSbertError as error:
            return Row(architecture.name, "refused", reason=short_reason(error, "model"))
        except Exception as error:  # what a user would see as a traceback
            reason = f"{type(error).__name__}: {error_summary(error)}"
            return Row(architecture.name, "refused", reason=reason, is_clear=False)
        graph = "traced" if fp32.attention == "traced" else "built"
        try:
            # Random weights lose more than trained ones: the figure is wanted where the gate would refuse it, too.
            int8 = export_bundle(model, output, [Variant.INT8], reference="auto", force=True).variants["int8"].parity
        except EsSbertError:
            int8 = None
        assert fp32.parity is not None
        return Row(architecture.name, graph, fp32.parity.min_cosine, None if int8 is None else int8.min_cosine)


def short_reason(error: EsSbertError, name: str) -> str:
    """What an error says, without the name of the model, and without its measurements."""
    reason = error.message.removeprefix(f"{name}: ").split(". ")[0]
    reason = re.sub(r" \(onnxruntime: .*", "", reason)
    reason = re.sub(r"^variant fp32 (fails the parity check) \(.*?\): (.*?), rank .*", r"\1: \2", reason)
    return reason if len(reason) <= 160 else f"{reason[:159]}…"


def measure_apart(architecture: Architecture) -> Row:
    """Measure one architecture in a separate process with a time limit."""
    context = multiprocessing.get_context("forkserver")
    # Imported once, in the process that the others are forked from.
    context.set_forkserver_preload(["sentence_transformers", "es_sbert.exporters.tracing"])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "row.json"
        process = context.Process(target=_write_row, args=(architecture, file))
        process.start()
        process.join(TIME_LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
            return _set_up_failed(architecture.name, f"took more than {TIME_LIMIT} seconds")
        if not file.exists():
            return _set_up_failed(architecture.name, f"the process ended with code {process.exitcode}")
        return Row(**json.loads(file.read_text()))


def _write_row(architecture: Architecture, file: Path) -> None:
    """In another process: on one thread, which is enough, and without the bars and warnings of the libraries."""
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        row = measure(architecture)
    except Exception as error:  # of a network that could not be set up
        row = _set_up_failed(architecture.name, f"{type(error).__name__}: {error_summary(error)}")
    file.write_text(json.dumps(asdict(row)))


def _set_up_failed(name: str, why: str) -> Row:
    return Row(name, "refused", reason=f"not measured: {why}", is_clear=False)


def table_row(row: Row) -> list[str]:
    """The cells of a row."""
    figures = ["–" if value is None else f"{value:.5f}" for value in (row.fp32, row.int8)]
    return [f"`{row.name}`", row.graph, *figures, row.reason.replace("|", "\\|")]


def section(rows: list[Row]) -> str:
    """The text between the markers of docs/models.md."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "sentence-transformers", "torch"))
    counts = Counter(row.graph for row in rows)
    said = ", ".join(f"{counts[graph]} {graph}" for graph in ("built", "traced", "refused"))
    return (
        f"`python -m benchmarks.architectures --write`; {packages}; random weights. {said}.\n\n"
        f"{table(HEADER, map(table_row, rows))}"
    )


@click.command()
@click.argument("names", nargs=-1)
@click.option("--write", is_flag=True, help="Write the table into docs/models.md.")
def main(names: tuple[str, ...], write: bool) -> None:
    """Export small random models of each architecture and print a Markdown table."""
    known = architectures()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"not in {LISTS.name}: {', '.join(unknown)}")
    if write and names:
        raise click.UsageError("--write measures all architectures; leave the names out")
    rows = []
    for name in names or known:
        rows.append(measure_apart(known[name]))
        click.echo(" ".join(table_row(rows[-1])), err=True)
    text = section(rows)
    click.echo(text)
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "architectures", text, maker="benchmarks.architectures"))


if __name__ == "__main__":
    main()
