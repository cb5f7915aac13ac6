"""Parse the call log of the CUDA stand-ins: kernels, copies, synchronizations, matrix products and other calls."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

_TYPES = {0: "32F", 1: "64F", 2: "16F", 3: "8I", 8: "8U", 10: "32I", 14: "16BF", 28: "8F_E4M3", 29: "8F_E5M2"}
_COMPUTE_TYPES = {
    64: "16F",
    65: "16F_PEDANTIC",
    68: "32F",
    69: "32F_PEDANTIC",
    70: "64F",
    72: "32I",
    74: "32F_FAST_16F",
    75: "32F_FAST_16BF",
    77: "32F_FAST_TF32",
}
_MATH_MODES = {0: "DEFAULT", 1: "TENSOR_OP", 2: "PEDANTIC", 3: "TF32_TENSOR_OP"}
_NO_REDUCED_PRECISION_REDUCTION = 16


@dataclass(frozen=True)
class Event:
    """One event. `thread` is the number of the operating system's thread."""

    process: int
    thread: int


@dataclass(frozen=True)
class Load(Event):
    """A stand-in was loaded, by the name of its library."""

    library: str


@dataclass(frozen=True)
class Mark(Event):
    """A place in the log, set by `tests.cuda.marks.mark`."""

    name: str


@dataclass(frozen=True)
class Kernel(Event):
    """A kernel was launched.

    Attributes:
        signature: Its name with template arguments and parameters.
        grid, block: Blocks in the grid and threads in a block, by dimension.
        shared: Dynamic shared memory of a block, in bytes.
        stream: 0 is the default stream; others are counted from 1 as they are made.
        error: What the launch returned; 0 for success.
    """

    signature: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    error: int

    @property
    def name(self) -> str:
        """Name of the function alone, without namespaces, template arguments and parameters."""
        return _function_name(self.signature)

    @property
    def threads(self) -> int:
        """Threads of the whole grid."""
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        return blocks * self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Copy(Event):
    """Memory was copied.

    Attributes:
        direction: `H2D`, `D2H`, `D2D` or `H2H`, by where the memory is.
        pinned: Whether all memory of the host that takes part is pinned; true for `D2D`.
        blocking: Whether the function is a synchronous one (`cudaMemcpy`).
    """

    function: str
    direction: str
    bytes: int
    pinned: bool
    stream: int
    blocking: bool

    @property
    def waits(self) -> bool:
        """Whether the host waits for the card: a synchronous copy, and any copy to pageable memory."""
        return self.blocking or (self.direction == "D2H" and not self.pinned)


@dataclass(frozen=True)
class Memset(Event):
    """Memory of the card was filled."""

    bytes: int
    stream: int


@dataclass(frozen=True)
class Sync(Event):
    """The host waited: `of` is `stream`, `device` or `event`, and `number` says which."""

    of: str
    number: int


@dataclass(frozen=True)
class StreamEvent(Event):
    """An event was recorded in a stream (`record`), or a stream waits for one (`wait`)."""

    action: str
    event: int
    stream: int


@dataclass(frozen=True)
class Allocation(Event):
    """Memory was allocated (`freed` false) or freed; `memory` is `device` or `pinned`."""

    memory: str
    bytes: int
    device: int
    freed: bool
    failed: bool


@dataclass(frozen=True)
class Gemm(Event):
    """A product of matrices by cuBLAS, column-major as cuBLAS has it: m × k times k × n.

    Attributes:
        types: Of A, B and C, such as `16F` (`CUDA_R_16F`).
        compute_type: Such as `32F_FAST_TF32` (`CUBLAS_COMPUTE_32F_FAST_TF32`).
        math_mode: Such as `TF32_TENSOR_OP` (`CUBLAS_TF32_TENSOR_OP_MATH`).
        reduced_precision_reduction: Whether sums may be formed in the lower precision.
    """

    function: str
    m: int
    n: int
    k: int
    batch: int
    transposed: tuple[bool, bool]
    types: tuple[str, str, str]
    compute_type: str
    math_mode: str
    reduced_precision_reduction: bool
    stream: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, inner, columns) of the product as numpy writes it: (rows, inner) @ (inner, columns)."""
        return self.n, self.k, self.m

    @property
    def tf32(self) -> bool:
        """Whether numbers of 32 bits may be rounded to TF32."""
        in_fp32 = self.types[:2] == ("32F", "32F")
        return in_fp32 and (self.math_mode == "TF32_TENSOR_OP" or self.compute_type == "32F_FAST_TF32")


@dataclass(frozen=True)
class Call(Event):
    """Any other function was called, such as one of cuDNN."""

    name: str


_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True)
class Trace:
    """Events in the order in which they happened."""

    events: tuple[Event, ...]

    def of(self, kind: type[_E]) -> list[_E]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def marked(self, name: str) -> Trace:
        """What came after a mark, up to the next one.

        Raises:
            LookupError: no mark, or several, of this name.
        """
        marks = [(at, event.name) for at, event in enumerate(self.events) if isinstance(event, Mark)]
        starts = [at for at, each in marks if each == name]
        if len(starts) != 1:
            raise LookupError(f"{len(starts)} marks named {name!r} among {[each for _, each in marks]}")
        end = next((at for at, _ in marks if at > starts[0]), len(self.events))
        return Trace(self.events[starts[0] + 1 : end])

    @property
    def kernels(self) -> list[Kernel]:
        return self.of(Kernel)

    @property
    def gemms(self) -> list[Gemm]:
        return self.of(Gemm)

    @property
    def syncs(self) -> list[Sync]:
        return self.of(Sync)

    @property
    def copies(self) -> list[Copy]:
        return self.of(Copy)

    @property
    def h2d(self) -> list[Copy]:
        """Copies from the host to the card."""
        return [copy for copy in self.copies if copy.direction == "H2D"]

    @property
    def d2h(self) -> list[Copy]:
        """Copies from the card to the host."""
        return [copy for copy in self.copies if copy.direction == "D2H"]

    @property
    def waits(self) -> list[Sync | Copy]:
        """Everything that makes the host wait for the card: synchronizations, and copies that synchronize."""
        return [event for event in self.events if isinstance(event, Sync) or (isinstance(event, Copy) and event.waits)]

    @property
    def libraries(self) -> list[str]:
        """Libraries that were loaded."""
        return [load.library for load in self.of(Load)]

    @property
    def cudnn(self) -> list[str]:
        """Names of the functions of cuDNN that were called."""
        return [call.name for call in self.of(Call) if call.name.startswith("cudnn")]

    def summary(self) -> str:
        """Kinds of events with their counts, for people: what a failing test shows."""
        counts = Counter(map(_short, self.events))
        return "\n".join(f"{count:5} {text}" for text, count in counts.items())


def parse_log(text: str, demangler: str) -> Trace:
    """Read a log.

    Args:
        demangler: The program c++filt.

    Raises:
        ValueError: a line is no event.
    """
    lines = [line.split("\t") for line in text.splitlines()]
    fields = [dict(part.split("=", 1) for part in line[3:]) for line in lines]
    signatures = _demangle(
        {field["name"] for line, field in zip(lines, fields, strict=True) if line[2] == "kernel"}, demangler
    )
    return Trace(
        tuple(
            _event(kind, int(process), int(thread), field, signatures)
            for (process, thread, kind, *_), field in zip(lines, fields, strict=True)
        )
    )


def _event(kind: str, process: int, thread: int, field: dict[str, str], signatures: dict[str, str]) -> Event:
    def number(name: str) -> int:
        return int(field[name])

    match kind:
        case "load":
            return Load(process, thread, field["library"])
        case "mark":
            return Mark(process, thread, field["name"])
        case "kernel":
            return Kernel(
                process,
                thread,
                signatures[field["name"]],
                _dimensions(field["grid"]),
                _dimensions(field["block"]),
                number("shared"),
                number("stream"),
                number("error"),
            )
        case "copy":
            return Copy(
                process,
                thread,
                field["name"],
                field["direction"],
                number("bytes"),
                field["pinned"] == "1",
                number("stream"),
                field["blocking"] == "1",
            )
        case "memset":
            return Memset(process, thread, number("bytes"), number("stream"))
        case "sync":
            return Sync(process, thread, field["of"], number("number"))
        case "record" | "wait":
            return StreamEvent(process, thread, kind, number("event"), number("stream"))
        case "alloc" | "free":
            return Allocation(
                process,
                thread,
                field["memory"],
                number("bytes"),
                number("device"),
                kind == "free",
                field.get("failed") == "1",
            )
        case "gemm":
            math = number("math")
            return Gemm(
                process,
                thread,
                field["name"],
                number("m"),
                number("n"),
                number("k"),
                number("batch"),
                (field["transpose_a"] != "0", field["transpose_b"] != "0"),
                (_type(number("a")), _type(number("b")), _type(number("c"))),
                _COMPUTE_TYPES.get(number("compute"), field["compute"]),
                _MATH_MODES.get(math & ~_NO_REDUCED_PRECISION_REDUCTION, field["math"]),
                not math & _NO_REDUCED_PRECISION_REDUCTION,
                number("stream"),
            )
        case "call":
            return Call(process, thread, field["name"])
    raise ValueError(f"unknown kind of event: {kind}")


def _type(number: int) -> str:
    return _TYPES.get(number, str(number))


def _dimensions(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split(","))
    return x, y, z


def _demangle(names: Iterable[str], demangler: str) -> dict[str, str]:
    ordered = sorted(names)
    if not ordered:
        return {}
    done = subprocess.run([demangler], input="\n".join(ordered) + "\n", check=True, capture_output=True, text=True)
    return dict(zip(ordered, done.stdout.splitlines(), strict=True))


def _function_name(signature: str) -> str:
    text = re.sub(r"\(anonymous namespace\)|<unnamed>", "", signature)
    depth, plain = 0, ""
    for character in text:
        depth += (character == "<") - (character == ">" and depth > 0)
        if depth == 0 and character != ">":
            plain += character
    return plain.partition("(")[0].rpartition("::")[2].rpartition(" ")[2]


def _short(event: Event) -> str:
    match event:
        case Kernel():
            return f"kernel {event.name} grid={event.grid} block={event.block}"
        case Copy():
            memory = "" if event.direction == "D2D" else " pinned" if event.pinned else " pageable"
            return f"copy {event.direction} bytes={event.bytes}{memory}{' blocking' if event.blocking else ''}"
        case Sync():
            return f"sync {event.of} {event.number}"
        case Gemm():
            rows, inner, columns = event.shape
            return (
                f"gemm {rows}x{inner}x{columns} batch={event.batch} {','.join(event.types)} "
                f"compute={event.compute_type} math={event.math_mode}"
            )
        case Call():
            return f"call {event.name}"
        case _:
            return re.sub(r"process=\d+, thread=\d+, ", "", repr(event))
