"""Parse the call log of the CUDA stand-ins: kernels, copies, synchronizations, matrix products and other calls."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

_TYPES = {0: "32F", 1: "64F", 2: "16F", 3: "8I", 8: "8U", 10: "32I", 14: "16BF"}
_COMPUTE_TYPES = {
    64: "16F",
    65: "16F_PEDANTIC",
    68: "32F",
    69: "32F_PEDANTIC",
    70: "64F",
    72: "32I",
    77: "32F_FAST_TF32",
}
_MATH_MODES = {0: "DEFAULT", 1: "TENSOR_OP", 2: "PEDANTIC", 3: "TF32_TENSOR_OP"}
_NO_REDUCED_PRECISION_REDUCTION = 16


@dataclass(frozen=True)
class Mark:
    """A place in the log, set by `tests.cuda.marks.mark`."""

    name: str


@dataclass(frozen=True)
class Kernel:
    """A kernel was launched with so many threads in its whole grid."""

    signature: str
    threads: int

    @property
    def name(self) -> str:
        """Name of the function alone, without namespaces, template arguments and parameters."""
        return _function_name(self.signature)


@dataclass(frozen=True)
class Copy:
    """Memory was copied: `H2D`, `D2H`, `D2D` or `H2H`, by where it is."""

    direction: str
    bytes: int


@dataclass(frozen=True)
class Sync:
    """The host waited for a `stream`, the `device` or an `event`."""

    of: str


@dataclass(frozen=True)
class Gemm:
    """A product of matrices by cuBLAS; the shape is as numpy writes it: (rows, inner) @ (inner, columns)."""

    shape: tuple[int, int, int]
    types: tuple[str, str, str]
    compute_type: str
    math_mode: str

    @property
    def tf32(self) -> bool:
        """Whether numbers of 32 bits may be rounded to TF32."""
        in_fp32 = self.types[:2] == ("32F", "32F")
        return in_fp32 and (self.math_mode == "TF32_TENSOR_OP" or self.compute_type == "32F_FAST_TF32")


@dataclass(frozen=True)
class Call:
    """Any other function was called, such as one of cuDNN."""

    name: str


Event = Mark | Kernel | Copy | Sync | Gemm | Call


@dataclass(frozen=True)
class Trace:
    """Events in the order in which they happened."""

    events: tuple[Event, ...]

    def marked(self, name: str) -> Trace:
        """What came after a mark, up to the next one."""
        marks = [(at, event.name) for at, event in enumerate(self.events) if isinstance(event, Mark)]
        [start] = [at for at, each in marks if each == name]
        end = next((at for at, _ in marks if at > start), len(self.events))
        return Trace(self.events[start + 1 : end])

    @property
    def kernels(self) -> list[Kernel]:
        return [event for event in self.events if isinstance(event, Kernel)]

    @property
    def gemms(self) -> list[Gemm]:
        return [event for event in self.events if isinstance(event, Gemm)]

    def copies(self, direction: str) -> list[Copy]:
        return [event for event in self.events if isinstance(event, Copy) and event.direction == direction]

    @property
    def cudnn(self) -> list[str]:
        """Names of the functions of cuDNN that were called."""
        return [event.name for event in self.events if isinstance(event, Call) and event.name.startswith("cudnn")]

    def summary(self) -> str:
        """Events with their counts: what a failing test shows."""
        return "\n".join(f"{count:5} {event}" for event, count in Counter(self.events).items())


def parse_log(text: str, demangler: str) -> Trace:
    """Read a log; the demangler is the program c++filt."""
    lines = [line.split("\t") for line in text.splitlines()]
    calls = [(line[2], dict(part.split("=", 1) for part in line[3:])) for line in lines]
    signatures = _demangle({fields["name"] for kind, fields in calls if kind == "kernel"}, demangler)
    events = (_event(kind, fields, signatures) for kind, fields in calls)
    return Trace(tuple(event for event in events if event is not None))


def _event(kind: str, fields: dict[str, str], signatures: dict[str, str]) -> Event | None:
    match kind:
        case "mark":
            return Mark(fields["name"])
        case "kernel":
            sizes = (int(size) for name in ("grid", "block") for size in fields[name].split(","))
            return Kernel(signatures[fields["name"]], prod(sizes))
        case "copy":
            return Copy(fields["direction"], int(fields["bytes"]))
        case "sync":
            return Sync(fields["of"])
        case "gemm":
            rows, inner, columns = (int(fields[name]) for name in ("n", "k", "m"))
            a, b, c = (_TYPES.get(int(fields[name]), fields[name]) for name in ("a", "b", "c"))
            compute = _COMPUTE_TYPES.get(int(fields["compute"]), fields["compute"])
            math = _MATH_MODES.get(int(fields["math"]) & ~_NO_REDUCED_PRECISION_REDUCTION, fields["math"])
            return Gemm((rows, inner, columns), (a, b, c), compute, math)
        case "call":
            return Call(fields["name"])
    return None  # loads, fills, allocations and events of streams, which no test looks at


def _demangle(names: Iterable[str], demangler: str) -> dict[str, str]:
    ordered = sorted(names)
    done = subprocess.run([demangler], input="\n".join(ordered) + "\n", check=True, capture_output=True, text=True)
    return dict(zip(ordered, done.stdout.splitlines(), strict=False))


def _function_name(signature: str) -> str:
    text = re.sub(r"\(anonymous namespace\)|<unnamed>", "", signature)
    depth, plain = 0, ""
    for character in text:
        depth += (character == "<") - (character == ">" and depth > 0)
        if depth == 0 and character != ">":
            plain += character
    return plain.partition("(")[0].rpartition("::")[2].rpartition(" ")[2]
