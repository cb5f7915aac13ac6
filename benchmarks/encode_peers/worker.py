"""A contender in a process: reads requests from standard input and answers on standard output, a JSON object a line.

Runs in the environments of the peers, where neither es-sbert nor this package is installed. Requests:

    {"do": "prepare", "library": …, "source": FOLDER, "target": FOLDER, "options": {…}}
        writes the files that a contender loads, such as an ONNX model → {}
    {"do": "load", "library": …, "model": NAME OR FOLDER, "threads": N, "options": {…}}
        → {"details": what was chosen, "versions": {package: version}}
    {"do": "encode", "texts": JSON FILE, "vectors": FILE.npy or null}
        → {"texts": N, "seconds": S, "processor_seconds": S}
    {"do": "memory"}  → {"megabytes": the process's largest resident set}

A request that fails is answered by {"error": "TypeError: …"}. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Options = dict[str, Any]

# Package → the module whose import says that it is used.
PACKAGES = {
    "es-sbert": "es_sbert",
    "sentence-transformers": "sentence_transformers",
    "fastembed": "fastembed",
    "torch": "torch",
    "transformers": "transformers",
    "optimum-onnx": "optimum.onnxruntime",
    "optimum-intel": "optimum.intel",
    "onnxruntime": "onnxruntime",
    "onnxruntime-gpu": "onnxruntime",
    "openvino": "openvino",
    "tokenizers": "tokenizers",
    "numpy": "numpy",
    "elasticsearch": "elasticsearch",
    "opensearch-py": "opensearchpy",
    "langchain-elasticsearch": "langchain_elasticsearch",
    "langchain-community": "langchain_community",
    "langchain-huggingface": "langchain_huggingface",
    "haystack-ai": "haystack",
    "sentence-transformers-haystack": "haystack_integrations.components.embedders.sentence_transformers",
    "elasticsearch-haystack": "haystack_integrations.document_stores.elasticsearch",
    "opensearch-haystack": "haystack_integrations.document_stores.opensearch",
}
_BATCH = 32


class SentenceTransformers:
    """sentence-transformers with its defaults, by one of its backends.

    Options: `backend` (torch, onnx, openvino), `dtype` for torch, `file` for the others.
    """

    def __init__(self, model: str, threads: int, options: Options) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        backend = options["backend"]
        settings = {"torch": _torch_settings, "onnx": _onnx_settings, "openvino": _openvino_settings}[backend]
        self.model = SentenceTransformer(
            model, device="cpu", backend=backend, model_kwargs=settings(threads, options), local_files_only=True
        )
        self.details = options.get("file", options.get("dtype", ""))

    def encode(self, texts: list[str]) -> Any:
        return self.model.encode(texts, show_progress_bar=False, convert_to_numpy=True)

    @staticmethod
    def prepare(source: str, target: str, options: Options) -> None:
        """Export the model; the options `instructions` or `calibration` ask for int8."""
        from sentence_transformers import SentenceTransformer

        backend = options["backend"]
        model = SentenceTransformer(source, device="cpu", backend=backend, local_files_only=True)
        model.save_pretrained(target)
        _set_longest_text(target, model.max_seq_length)
        if "instructions" in options:
            from sentence_transformers import export_dynamic_quantized_onnx_model

            export_dynamic_quantized_onnx_model(model, options["instructions"], target)
        if "calibration" in options:
            from sentence_transformers import export_static_quantized_openvino_model

            folder, column = options["calibration"], "text"
            export_static_quantized_openvino_model(model, None, target, folder, "default", "train", column)


def _set_longest_text(folder: str, tokens: int | None) -> None:
    """Other libraries read it here, where the tokenizer's own, shorter one may be left."""
    file = Path(folder, "tokenizer_config.json")
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings |= {"max_length": tokens, "model_max_length": tokens}
    file.write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _torch_settings(threads: int, options: Options) -> Options:
    return {"dtype": options["dtype"]}


def _onnx_settings(threads: int, options: Options) -> Options:
    import onnxruntime

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    return {"provider": "CPUExecutionProvider", "file_name": options["file"], "session_options": session}


def _openvino_settings(threads: int, options: Options) -> Options:
    return {"file_name": options["file"], "ov_config": {"INFERENCE_NUM_THREADS": str(threads)}}


class FastEmbed:
    """fastembed with a folder of the user's own, its defaults otherwise."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        settings = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
        pooling = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS}[_pooling(model)]
        TextEmbedding.add_custom_model(
            "local/model", pooling, _normalizes(model), ModelSource(hf="local/model"), settings["hidden_size"]
        )
        self._model = TextEmbedding(
            "local/model", threads=threads, specific_model_path=model, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: list[str]) -> Any:
        return list(self._model.embed(texts))


class PlainOnnxruntime:
    """A loop as one writes it by hand: batches of 32 in the order of the texts, padded, pooled by numpy."""

    details = ""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        file = str(Path(model, "onnx", "model.onnx"))
        self._session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
        self._inputs = {tensor.name for tensor in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(Path(model, "tokenizer.json")))
        config = json.loads(Path(model, "tokenizer_config.json").read_text(encoding="utf-8"))
        self._tokenizer.enable_truncation(config["model_max_length"])
        padding = self._tokenizer.padding or {}
        pads = {name: padding[name] for name in ("pad_id", "pad_type_id", "pad_token") if name in padding}
        self._tokenizer.enable_padding(**pads)
        self._pooling, self._normalizes = _pooling(model), _normalizes(model)

    def encode(self, texts: list[str]) -> Any:
        import numpy as np

        batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        return np.concatenate([self._batch(batch) for batch in batches])

    def _batch(self, texts: list[str]) -> Any:
        import numpy as np

        encodings = self._tokenizer.encode_batch(texts)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings], np.int64),
        }
        tokens = self._session.run(None, {name: inputs[name] for name in self._inputs})[0]
        if self._pooling == "cls":
            vectors = tokens[:, 0]
        else:
            vectors = (tokens * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        if self._normalizes:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32)


def _pooling(model: str) -> str:
    """`mean` or `cls` of a sentence-transformers folder; KeyError for others."""
    settings = json.loads(Path(model, "1_Pooling", "config.json").read_text(encoding="utf-8"))
    chosen = [name for name in ("mean_tokens", "cls_token") if settings.get(f"pooling_mode_{name}")]
    name = settings.get("pooling_mode") or chosen[0].partition("_")[0]
    return {"mean": "mean", "cls": "cls"}[name]


def _normalizes(model: str) -> bool:
    modules = json.loads(Path(model, "modules.json").read_text(encoding="utf-8"))
    return any(module["type"].endswith("Normalize") for module in modules)


class EsSbert:
    """`Encoder` with its own defaults; the options are its arguments."""

    def __init__(self, model: str, threads: int, options: Options) -> None:
        from es_sbert.encoder.encoder import Encoder

        self._encoder = Encoder(model, device="cpu", threads=threads, **options)
        self.details = self._encoder.info.variant

    def encode(self, texts: list[str]) -> Any:
        return self._encoder.encode(texts)


LIBRARIES = {
    "es-sbert": EsSbert,
    "sentence-transformers": SentenceTransformers,
    "fastembed": FastEmbed,
    "onnxruntime": PlainOnnxruntime,
}


class Contender:
    """Answers the requests.

    Args:
        libraries: Name → class with `encode` and `details`, made from model, threads and options.
        packages: Name → module of the packages whose versions are told.
    """

    def __init__(self, libraries: dict[str, Any], packages: dict[str, str] = PACKAGES) -> None:
        self._libraries = libraries
        self._packages = packages
        self._model: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self, "_" + request["do"])(request)
        return answer

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        self._libraries[request["library"]].prepare(request["source"], request["target"], request["options"])
        return {}

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        library = self._libraries[request["library"]]
        self._model = library(request["model"], request["threads"], request["options"])
        return {"details": self._model.details, "versions": _versions(self._packages)}

    def _encode(self, request: dict[str, Any]) -> dict[str, Any]:
        texts = json.loads(Path(request["texts"]).read_text(encoding="utf-8"))
        used, begin = time.process_time(), time.perf_counter()
        vectors = self._model.encode(texts)
        seconds, used = time.perf_counter() - begin, time.process_time() - used
        if request.get("vectors"):
            import numpy as np

            np.save(request["vectors"], np.asarray(vectors, np.float32))
        return {"texts": len(texts), "seconds": seconds, "processor_seconds": used}

    def _memory(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"megabytes": _peak_megabytes()}


def _versions(packages: dict[str, str]) -> dict[str, str]:
    found = {}
    for name, module in packages.items():
        if module in sys.modules:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return found


def _peak_megabytes() -> float:
    """Of this process alone: on Linux, `ru_maxrss` may be what its parent had taken before."""
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


def serve(libraries: dict[str, Any], kind: type[Contender] = Contender) -> None:
    """As `serve_contender`, by a contender of some libraries.

    Args:
        kind: Answers the requests.
    """
    serve_contender(kind(libraries))


def serve_contender(contender: Contender) -> None:
    """Answer requests until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        try:
            answer = contender.answer(json.loads(line))
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(LIBRARIES)
