"""The steps `stages` and `profile`: where the time of embedding goes, on the host and on the card."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_check.card import CUDA, load_libraries
from benchmarks.gpu_check.context import Context, OutOfTime, say
from benchmarks.gpu_check.random_models import make_texts, whole_words
from benchmarks.gpu_check.results import JSON, goal

_TEXTS = {15: 131_072, 64: 32_768, 256: 8_192}
_KERNELS_SHOWN = 40
# Stages whose work in the calling thread holds the interpreter's lock; onnxruntime lets it go.
_WITH_LOCK = ("tokenize", "plan", "pack", "gather")


def stages(context: Context) -> JSON:
    """Seconds of each stage alone, one after another, and those of the encoder, which overlaps them."""
    load_libraries()
    cases: JSON = {}
    for model, folder in context.named_models.items():
        for tokens, count in _TEXTS.items():
            name = f"{model}/{tokens}"
            if not context.wants(name):
                continue
            say(f"stages: {name}")
            try:
                context.check_time(30)
                cases[name] = _measure(context, folder, tokens, context.at_most(count))
            except OutOfTime as error:
                cases[name] = {"error": str(error)}
    return {"cases": cases}


def _measure(context: Context, folder: Path, tokens: int, count: int) -> JSON:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.runtime.device import Device
    from es_sbert.runtime.onnx_session import CUDA_WORKERS

    words = whole_words(folder / "tokenizer.json")
    bundle = context.bundle(folder)
    alone = _one_after_another(bundle, make_texts(words, count, tokens, seed=1), make_texts(words, count, tokens, 2))
    with Encoder.from_bundle(bundle, "fp16", Device("cuda"), threads=CUDA_WORKERS) as encoder:
        encoder.encode(make_texts(words, count, tokens, seed=3))
        together = _overlapped(encoder, make_texts(words, count, tokens, seed=4))
    total = sum(alone["seconds"].values())
    held = sum(alone["cpu_seconds_of_calling_thread"][stage] for stage in _WITH_LOCK)
    return {
        "texts": count,
        **alone,
        "share": {stage: seconds / total for stage, seconds in alone["seconds"].items()},
        "one_after_another": total,
        "overlapped": together,
        "gained_by_overlapping": total / together["seconds"],
        "share_of_time_that_holds_the_lock": held / together["seconds"],
        "texts_per_second_that_the_lock_allows": count / held if held else None,
    }


def _one_after_another(bundle: Any, warm: list[str], texts: list[str]) -> JSON:
    """Seconds of each stage without any overlap, and CPU seconds of the process and of the calling thread.

    The calling thread's are the upper bound of what holds the interpreter's lock: tokenizing happens in other threads.
    """
    from es_sbert.runtime.batching import InputBuilder, plan_batches, unique_rows
    from es_sbert.runtime.device import Device
    from es_sbert.runtime.onnx_session import OnnxCudaModel, OnnxCudaSession
    from es_sbert.runtime.tokenizer import SentenceTokenizer

    tokenizer = SentenceTokenizer(bundle.model)
    sessions = {short: _open(bundle.variant_file("fp16"), short) for short in (True, False)}
    described = OnnxCudaSession(sessions[False], Device("cuda"))
    inputs = InputBuilder(described.input_names, described.properties)
    spent: defaultdict[str, float] = defaultdict(float)
    process: defaultdict[str, float] = defaultdict(float)
    thread: defaultdict[str, float] = defaultdict(float)
    batches_run = 0

    @contextlib.contextmanager
    def stage(name: str) -> Iterator[None]:
        begun = time.perf_counter(), time.process_time(), time.thread_time()
        yield
        spent[name] += time.perf_counter() - begun[0]
        process[name] += time.process_time() - begun[1]
        thread[name] += time.thread_time() - begun[2]

    for given in (warm, texts):
        for times in (spent, process, thread):
            times.clear()
        with stage("tokenize"):
            rows = tokenizer(given).ids
        with stage("plan"):
            firsts, where = unique_rows(rows)
            rows = [rows[first] for first in firsts]
            lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
            batches = plan_batches(lengths, OnnxCudaModel.batch_limits())
        vectors = np.empty((len(rows), bundle.model.dimensions), np.float32)
        for members in batches:
            with stage("pack"):
                feed = inputs([rows[member] for member in members])
            session = sessions[bool(lengths[members[0]] <= _short_text())]
            _run_in_parts(session, feed, vectors, members, stage)
        with stage("gather"):
            vectors = vectors[where]
        batches_run = len(batches)
    return {
        "batches": batches_run,
        "seconds": dict(spent),
        "cpu_seconds": dict(process),
        "cpu_seconds_of_calling_thread": dict(thread),
        "vectors_are_finite": bool(np.isfinite(vectors).all()),
    }


def _run_in_parts(session: Any, feed: Any, vectors: Any, members: Any, stage: Callable[[str], Any]) -> None:
    """Run a batch with its copies apart; the encoder leaves them to onnxruntime."""
    import onnxruntime

    binding = session.io_binding()
    with stage("copy in"):
        held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(values, "cuda", 0) for name, values in feed.items()}
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        binding.synchronize_inputs()
    binding.bind_output("sentence_embedding", "cuda")
    with stage("run"):
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
    with stage("copy out"):
        (output,) = binding.copy_outputs_to_cpu()
    with stage("gather"):
        vectors[members] = output


def _overlapped(encoder: Any, texts: list[str]) -> JSON:
    """The encoder as it runs: how long the host waits for tokens, and how long for the card and its own packing."""
    waited = embedded = 0.0
    begun, cpu = time.perf_counter(), time.process_time()
    starts = range(0, len(texts), encoder.window)
    windows = encoder.tokenize_ahead(texts[start : start + encoder.window] for start in starts)
    while True:
        started = time.perf_counter()
        tokenized = next(windows, None)
        waited += time.perf_counter() - started
        if tokenized is None:
            break
        started = time.perf_counter()
        encoder.embed(tokenized)
        embedded += time.perf_counter() - started
    took = time.perf_counter() - begun
    return {
        "seconds": took,
        "texts_per_second": len(texts) / took,
        "share_waiting_for_tokens": waited / took,
        "share_embedding": embedded / took,
        "busy_cores": (time.process_time() - cpu) / took,
    }


def _short_text() -> int:
    from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS

    return SHORT_TEXT_TOKENS


def _open(path: Path, short: bool) -> Any:
    from es_sbert.runtime.device import Device
    from es_sbert.runtime.onnx_session import open_session

    return open_session(path, Device("cuda"), short=short)


def profile(context: Context) -> JSON:
    """Kernels by time on the card, and operators by provider: none that computes may be on the CPU."""
    load_libraries()
    cases: JSON = {}
    for model, folder in context.named_models.items():
        bundle, words = context.bundle(folder), whole_words(folder / "tokenizer.json")
        for tokens in (15, 256):
            name = f"{model}/{tokens}"
            if not context.wants(name):
                continue
            say(f"profile: {name}")
            texts = make_texts(words, context.at_most(_TEXTS[tokens]), tokens, seed=1)
            operators, on_cpu = _operators(bundle, texts[: 65_536 // tokens], context.scratch)
            cases[name] = {
                "kernels": _kernels(bundle, texts),
                "operators": operators,
                "computing_on_the_cpu": on_cpu,
                "goals": [goal("operators that compute on the CPU", len(on_cpu), at_most=0)],
            }
    return {"cases": cases}


def _kernels(bundle: Any, texts: list[str]) -> JSON | None:
    """Time on the card by kernel, from torch's profiler, which sees those of every library; None without it."""
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.runtime.device import Device
    from es_sbert.runtime.onnx_session import CUDA_WORKERS

    try:
        import torch
        from torch.profiler import ProfilerActivity
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.zeros(1, device="cuda")
    with Encoder.from_bundle(bundle, "fp16", Device("cuda"), threads=CUDA_WORKERS) as encoder:
        encoder.encode(texts)
        begun = time.perf_counter()
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
            encoder.encode(texts)
            torch.cuda.synchronize()
        took = time.perf_counter() - begun
    found = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    found.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in found)
    return {
        "seconds": took,
        "seconds_on_the_card": total / 1e6,
        "table": [
            {
                "kernel": event.key,
                "calls": event.count,
                "milliseconds": event.self_device_time_total / 1e3,
                "share": event.self_device_time_total / total,
            }
            for event in found[:_KERNELS_SHOWN]
        ],
    }


def _operators(bundle: Any, texts: list[str], scratch: Path) -> tuple[list[JSON], list[str]]:
    """Operators by provider with the time that the host spends on them, from onnxruntime's own profile."""
    import onnxruntime

    from es_sbert.runtime.batching import InputBuilder
    from es_sbert.runtime.cuda_session import cuda_provider_options, non_shape_operators
    from es_sbert.runtime.device import Device
    from es_sbert.runtime.onnx_session import OnnxCudaSession, session_options
    from es_sbert.runtime.tokenizer import SentenceTokenizer

    options = session_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(scratch / "profile")
    providers = [(CUDA, cuda_provider_options(Device("cuda"))), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(bundle.variant_file("fp16")), options, providers=providers)
    described = OnnxCudaSession(session, Device("cuda"))
    inputs = InputBuilder(described.input_names, described.properties)
    feed = inputs(SentenceTokenizer(bundle.model)(texts).ids)
    for _ in range(3):
        session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    calls: Counter[tuple[str, str]] = Counter()
    spent: Counter[tuple[str, str]] = Counter()
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and "op_name" in arguments and event["name"].endswith("_kernel_time"):
            key = arguments["op_name"], arguments.get("provider", "")
            calls[key] += 1
            spent[key] += event["dur"]
    table = [
        {"operator": operator, "provider": provider, "calls": calls[operator, provider], "microseconds": micro}
        for (operator, provider), micro in spent.most_common()
    ]
    return table, non_shape_operators(operator for operator, provider in calls if provider == "CPUExecutionProvider")
