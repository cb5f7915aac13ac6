"""What the host can prepare for a card: sentences a second with a session that returns at once.

    python -m benchmarks.host_throughput --data DATA [--sentences 100000] [--page docs/gpu.md]

DATA holds `nli/nli-train.tsv.gz` (columns sentence1, sentence2). The encoder is the real one with its settings
for CUDA: windows of 32,768 texts, the next one tokenized in advance, batches packed without padding, two workers. Only
the ONNX sessions are stubs, which return zero vectors, so no GPU is needed.

CPU time of a stage is that of the whole process while the stage runs alone; so the figures hardly depend on what else
the machine does. The part that may hold Python's lock is the CPU time of the calling thread: tokenizing happens in
threads of the tokenizers library, which do without the lock, while the calling thread waits. It is an upper bound,
since numpy lets the lock go now and then. What holds the lock runs on one core at a time, the rest on all: N cores give
at most 1 / max(lock, CPU / N) sentences a second, and 1 / (lock + (CPU - lock) / N) where nothing overlaps. Both are
computed: they take for granted that tokenizing scales with cores, and that handing over the lock costs nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, read_tsv, replaced, spread, table
from es_sbert.bundle.bundle import EncoderBundle, open_encoder_bundle
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import onnx_session as sessions
from es_sbert.runtime.batching import InputBuilder, plan_batches, unique_rows
from es_sbert.runtime.device import Device
from es_sbert.runtime.onnx_session import CUDA_WORKERS, OnnxCudaModel, OnnxCudaSession
from es_sbert.runtime.tokenizer import SentenceTokenizer

CORES, WANTED = 16, 150_000
_STAGES = ("tokenize", "token ids to numpy", "find identical texts, plan batches", "pack", "bind and gather")


class InstantSession:
    """In place of onnxruntime's session of a packed graph: every run ends at once, with vectors of zeros."""

    def __init__(self) -> None:
        names = ("input_ids", "position_ids", "token_offset", "cumulated_lengths", "padded_rows")
        self._inputs = [SimpleNamespace(name=name, shape=["n"], type="tensor(int32)") for name in names]

    def get_inputs(self) -> list[SimpleNamespace]:
        """Those of a packed graph."""
        return self._inputs

    def get_outputs(self) -> list[SimpleNamespace]:
        """The sentence vectors."""
        return [SimpleNamespace(name="sentence_embedding")]

    def get_modelmeta(self) -> SimpleNamespace:
        """No properties: positions are counted from 0."""
        return SimpleNamespace(custom_metadata_map={})

    def get_providers(self) -> list[str]:
        """What the encoder expects on a card."""
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def io_binding(self) -> InstantBinding:
        """Takes inputs, and remembers where the vectors go."""
        return InstantBinding()

    def run_with_iobinding(self, binding: InstantBinding) -> None:
        """Write the zeros, as the copy from the card would write the vectors."""
        binding.write()


class InstantBinding:
    """In place of onnxruntime's binding."""

    def __init__(self) -> None:
        self._into: NDArray[np.float32] | None = None

    def bind_cpu_input(self, name: str, values: NDArray[Any]) -> None:
        """Nothing: the copy to the card is not the host's work."""

    def bind_output(
        self, name: str, device: str, number: int, dtype: type[np.float32], shape: Sequence[int], pointer: int
    ) -> None:
        """Remember the memory."""
        size = int(np.prod(shape))
        self._into = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (size,))

    def write(self) -> None:
        """Write zeros there."""
        if self._into is not None:
            self._into.fill(0)


@contextlib.contextmanager
def instant_encoder(bundle: EncoderBundle) -> Iterator[Encoder]:
    """The encoder for CUDA on sessions that return at once."""
    with (
        mock.patch.object(sessions, "open_session", return_value=InstantSession()),
        Encoder.from_bundle(bundle, "fp16", Device("cuda"), threads=CUDA_WORKERS) as encoder,
    ):
        yield encoder


def sentences(data: Path, count: int) -> list[str]:
    """The first distinct sentences of NLI."""
    found: dict[str, None] = {}
    for row in read_tsv(data / "nli/nli-train.tsv.gz"):
        found |= dict.fromkeys([row["sentence1"], row["sentence2"]])
        if len(found) >= count:
            break
    return list(found)[:count]


def exported(model: str, folder: Path) -> EncoderBundle:
    """The model's fp16 variant; it is not run."""
    export_bundle(read_sentence_model(resolve_model(model), model), folder / "bundle", [Variant.FP16], force=True)
    return open_encoder_bundle(folder / "bundle")


def whole(bundle: EncoderBundle, texts: list[str], rounds: int) -> dict[str, list[float]]:
    """Texts a second of the whole encoder, the cores that it keeps busy, and microseconds of CPU for a text."""
    rates, cores, costs = [], [], []
    with instant_encoder(bundle) as encoder:
        encoder.encode(texts[: encoder.window])
        for _ in range(rounds):
            begun, cpu = time.perf_counter(), time.process_time()
            for _ in encoder.encode_stream(texts):
                pass
            took = time.perf_counter() - begun
            cpu = time.process_time() - cpu
            rates.append(len(texts) / took)
            cores.append(cpu / took)
            costs.append(1e6 * cpu / len(texts))
    return {"texts_per_second": rates, "busy_cores": cores, "cpu_us": costs}


class Stages:
    """The stages of one window of texts, each callable on its own."""

    def __init__(self, model: SentenceModel, texts: list[str]) -> None:
        self._raw = SentenceTokenizer(model)._tokenizer
        self._texts = texts
        self._encodings = self._raw.encode_batch_fast(texts)
        self._rows = SentenceTokenizer(model)(texts).ids
        self._session = OnnxCudaSession(InstantSession(), Device("cuda"))  # type: ignore[arg-type]
        self._inputs = InputBuilder(self._session.input_names, self._session.properties)
        self._budget = OnnxCudaModel.batch_limits()
        self._vectors = np.zeros((len(texts), model.dimensions), np.float32)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Stage → what it does with all the texts."""
        works = (self._tokenize, self._to_numpy, self._plan, self._pack, self._bind)
        return dict(zip(_STAGES, works, strict=True))

    def _tokenize(self) -> Any:
        return self._raw.encode_batch_fast(self._texts)

    def _to_numpy(self) -> Any:
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in self._encodings]

    def _plan(self) -> list[NDArray[np.int64]]:
        firsts, _ = unique_rows(self._rows)
        lengths = np.fromiter((len(self._rows[first]) for first in firsts), dtype=np.int64, count=len(firsts))
        return plan_batches(lengths, self._budget)

    def _batches(self) -> list[list[NDArray[np.int64]]]:
        lengths = np.array([len(row) for row in self._rows])
        return [[self._rows[member] for member in batch] for batch in plan_batches(lengths, self._budget)]

    def _pack(self) -> Any:
        return [self._inputs(rows) for rows in self._batches()]

    def _bind(self) -> Any:
        self._session.run({"input_ids": self._vectors}, self._vectors)
        return self._vectors[np.arange(len(self._texts))]


def stage_costs(model: SentenceModel, texts: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU for a sentence by stage: of the process, and of the calling thread, which holds the lock."""
    found = {}
    for name, call in Stages(model, texts).calls().items():
        call()
        process, thread = [], []
        for _ in range(rounds):
            of_process, of_thread = time.process_time(), time.thread_time()
            call()  # what it returns is freed here too
            thread.append(time.thread_time() - of_thread)
            process.append(time.process_time() - of_process)
        found[name] = {
            "cpu_us": 1e6 * statistics.median(process) / len(texts),
            "lock_us": 1e6 * statistics.median(thread) / len(texts),
        }
    return found


def limits(costs: dict[str, dict[str, float]], cores: int) -> dict[str, float]:
    """Sentences a second that so many cores give, with all overlap and with none.

    Args:
        costs: By stage `cpu_us`, microseconds for a sentence, and `lock_us`, those of them that hold the lock.
    """
    total = sum(cost["cpu_us"] for cost in costs.values())
    held = sum(cost["lock_us"] for cost in costs.values())
    return {
        "lock_us": held,
        "cpu_us": total,
        "lock_alone": 1e6 / held,
        "at_most": 1e6 / max(held, total / cores),
        "at_least": 1e6 / (held + (total - held) / cores),
    }


def section(result: dict[str, Any]) -> str:
    """The page's part."""
    costs, bounds = result["stages"], result["limits"]
    rows = [
        [name, f"{cost['cpu_us']:.2f}", f"{cost['lock_us']:.2f}", f"{cost['lock_us'] / cost['cpu_us']:.0%}"]
        for name, cost in (costs | {"together": bounds}).items()
    ]
    shown = table(["stage", "CPU, µs a sentence", "of it in the calling thread", "share"], rows)
    here = result["machine"]
    met = "no" if bounds["at_most"] < WANTED else "yes" if bounds["at_least"] >= WANTED else "with overlap"
    return (
        f"{result['sentences']:,} sentences of NLI, {result['mean_tokens']:.1f} tokens on average, "
        f"{here['cores']} cores ({here['cpu']}). The whole encoder prepares "
        f"{spread(result['whole']['texts_per_second'])} sentences a second and keeps "
        f"{spread(result['whole']['busy_cores'], 2)} cores busy, at {spread(result['whole']['cpu_us'], 1)} µs of CPU "
        f"a sentence. Other programs kept {result['load_of_other_programs']:.1f} threads busy at the time: compare "
        f"CPU times, not seconds.\n\n{shown}\n\n"
        f"Computed from this, not measured, for {CORES} such cores, if tokenizing scales with them and handing over "
        f"the lock costs nothing: between {bounds['at_least']:,.0f} sentences a second, where no "
        f"stage overlaps another, and {bounds['at_most']:,.0f}, where all do. The lock alone allows "
        f"{bounds['lock_alone']:,.0f}. Enough for {WANTED:,}: {met}.\n\n"
        "`python -m benchmarks.host_throughput --data DATA`"
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--sentences", "count", default=100_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every figure here.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Put the section into this page.")
def main(data: Path, model: str, count: int, rounds: int, json_file: Path | None, page: Path | None) -> None:
    """Measure the whole encoder, then each of its stages."""
    load = os.getloadavg()[0]
    texts = sentences(data, count)
    with tempfile.TemporaryDirectory() as folder:
        bundle = exported(model, Path(folder))
        tokens = SentenceTokenizer(bundle.model)(texts[: OnnxCudaModel.window]).tokens
        costs = stage_costs(bundle.model, texts[: OnnxCudaModel.window], rounds)
        result = {
            "machine": machine(),
            "load_of_other_programs": load,
            "sentences": len(texts),
            "mean_tokens": float(tokens.mean()),
            "whole": whole(bundle, texts, rounds),
            "stages": costs,
            "limits": limits(costs, CORES),
        }
    click.echo(section(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if page is not None:
        page.write_text(
            replaced(page.read_text(), "host throughput", section(result), maker="benchmarks.host_throughput")
        )


if __name__ == "__main__":
    main()
