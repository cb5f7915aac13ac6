"""The steps in the order in which they are run, and what each imports beyond a plain installation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.results import JSON

# What every step imports, apart from the standard library.
_EVERY = (
    "onnxruntime", "onnx", "numpy", "tokenizers", "safetensors", "huggingface_hub", "pydantic", "orjson",
    "semantic_text_splitter", "zstandard",
)  # fmt: skip
_SENTENCE_TRANSFORMERS = ("torch", "transformers", "sentence_transformers")


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: On the command line, and in the JSON.
        module: Of this package, with a function of the step's name.
        summary: What it measures, in a line.
        needs: Modules without which it does not run.
        uses: Modules without which it skips a part: what es-sbert is compared with.
    """

    name: str
    module: str
    summary: str
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Modules that it needs and that are not installed."""
        return _missing((*_EVERY, *self.needs))

    def missing_parts(self) -> list[str]:
        """Modules that it can do without, at the price of a part."""
        return _missing(self.uses)

    def run(self, context: Context) -> JSON:
        """Run it and return its section of the JSON."""
        module = importlib.import_module(f"benchmarks.gpu_check.{self.module}")
        function: Callable[[Context], JSON] = getattr(module, self.name)
        return function(context)


STEPS = (
    Step("environment", "card", "card, driver, libraries; a model is opened and says that it runs on CUDA",
         uses=("torch",)),
    Step("parity", "parity", "every architecture and pooling in fp16 and fp32 against numpy: least cosine",
         needs=_SENTENCE_TRANSFORMERS),
    Step("speed", "speed", "texts and tokens a second at 15, 64 and 256 tokens, and of sentence-transformers fp16",
         uses=_SENTENCE_TRANSFORMERS),
    Step("pairs", "speed", "10,000 sentences to their most similar pair, in seconds"),
    Step("training", "training", "training steps a second, compared with sentence-transformers' trainer",
         needs=(*_SENTENCE_TRANSFORMERS, "datasets", "accelerate", "yaml", "click")),
    Step("reranker", "training", "cross-encoder pairs a second in fp16, compared with sentence-transformers",
         needs=_SENTENCE_TRANSFORMERS),
)  # fmt: skip


def find_step(name: str) -> Step:
    """The step of a name."""
    return next(step for step in STEPS if step.name == name)


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [module for module in dict.fromkeys(modules) if find_spec(module) is None]
