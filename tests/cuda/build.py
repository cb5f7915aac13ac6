"""Build the stand-ins for the CUDA libraries that onnxruntime-gpu's CUDA provider is linked to.

What matters is written by hand in `native/*.c`. All other functions that the provider uses are generated: they log
that they were called and return success, and those that create something give out a handle.
"""

from __future__ import annotations

import mmap
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_SOURCES = Path(__file__).parent / "native"

# The structs in native/ are those of this version of CUDA.
_CUDA_MAJOR = "13"

# By the names of their sources; a version of each is part of its ABI. cuRAND and cuDNN count their own.
LIBRARIES = {
    "cuda": "libcuda.so.1",
    "cudart": f"libcudart.so.{_CUDA_MAJOR}",
    "cublas": f"libcublas.so.{_CUDA_MAJOR}",
    "cublaslt": f"libcublasLt.so.{_CUDA_MAJOR}",
    "curand": "libcurand.so.10",
    "cudnn": "libcudnn.so.9",
}

# Functions of cuDNN are looked up by name when they are first called, so only their names are in the provider.
_CUDNN_FUNCTION = re.compile(rb"\0(cudnn[A-Z][A-Za-z0-9_]+)(?=\0)")
_DECLARATIONS = "int generated_call(const char *name);\nint generated_create(const char *name, void **handle);"
_UNDEFINED = re.compile(r"^\s+U (\w+)(?:@+(\S+))?$", re.MULTILINE)
_DEFINED = re.compile(r"^\w+ [TDB] (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Tools:
    """Paths of the compiler, of the programs that read symbols, and of the CUDA provider."""

    compiler: str
    nm: str
    demangler: str
    provider: Path


def find_tools() -> Tools | str:
    """Find the libraries and the compiler that build the stand-ins."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the stand-ins for CUDA are for Linux on x86-64, not {sys.platform} on {platform.machine()}"
    spec = find_spec("onnxruntime")
    folder = Path(spec.origin).parent / "capi" if spec and spec.origin else None
    provider = folder / "libonnxruntime_providers_cuda.so" if folder else None
    if not provider or not provider.exists():
        return "the installed onnxruntime has no CUDA provider; install onnxruntime-gpu"
    from onnxruntime.capi import build_and_package_info

    version = str(build_and_package_info.cuda_version)
    if version.partition(".")[0] != _CUDA_MAJOR:
        return f"onnxruntime-gpu is built for CUDA {version}; the stand-ins are for CUDA {_CUDA_MAJOR}"
    compiler = shutil.which("gcc") or shutil.which("cc")
    nm, demangler = shutil.which("nm"), shutil.which("c++filt")
    if not compiler or not nm or not demangler:
        missing = [name for name, path in (("gcc", compiler), ("nm", nm), ("c++filt", demangler)) if not path]
        return f"{', '.join(missing)} not on PATH; install gcc and binutils"
    return Tools(compiler, nm, demangler, provider)


def build(folder: Path, tools: Tools) -> None:
    """Write the libraries of `LIBRARIES` into an existing folder."""
    wanted = _functions_of_provider(tools)
    for source, library in LIBRARIES.items():
        _build_library(folder, tools, source, library, wanted[source])


def _functions_of_provider(tools: Tools) -> dict[str, dict[str, str | None]]:
    """Functions that the provider takes from each library, with the version of the symbol, if it has one."""
    by_version = {library: source for source, library in LIBRARIES.items()}
    wanted: dict[str, dict[str, str | None]] = {source: {} for source in LIBRARIES}
    listing = _output([tools.nm, "-D", "--undefined-only", str(tools.provider)])
    for name, version in _UNDEFINED.findall(listing):
        if version in by_version:
            wanted[by_version[version]][name] = version
        elif not version and re.match(r"cu[A-Z]", name):
            wanted["cuda"][name] = None
    with tools.provider.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        wanted["cudnn"].update({found[1].decode(): None for found in _CUDNN_FUNCTION.finditer(content)})
    return wanted


def _build_library(folder: Path, tools: Tools, source: str, library: str, wanted: dict[str, str | None]) -> None:
    work = folder / "build"
    work.mkdir(exist_ok=True)
    options = [
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        str(_SOURCES),
        f'-DLIBRARY="{library}"',
        f"-DCUDA_MAJOR={_CUDA_MAJOR}",
    ]
    written = work / f"{source}.o"
    _output([tools.compiler, "-c", *options, "-o", str(written), str(_SOURCES / f"{source}.c")])
    by_hand = set(_DEFINED.findall(_output([tools.nm, "--defined-only", "--extern-only", str(written)])))

    generated = work / f"{source}_generated.c"
    definitions = map(_definition, sorted(set(wanted) - by_hand))
    generated.write_text("\n".join([_DECLARATIONS, *definitions]) + "\n")
    versions = work / f"{source}.map"
    version = next(filter(None, wanted.values()), "")
    versions.write_text(f"{version} {{ global: *; }};\n")
    _output(
        [
            tools.compiler,
            "-shared",
            *options,
            "-o",
            str(folder / library),
            str(written),
            str(generated),
            f"-Wl,-soname,{library}",
            f"-Wl,--version-script,{versions}",
            "-pthread",
            "-ldl",
        ]
    )


def _definition(function: str) -> str:
    if re.match(r"cudnnCreate|cublasLt\w+Create$", function):
        return f'int {function}(void **handle) {{ return generated_create("{function}", handle); }}'
    # It would have to answer through its arguments, which are not known here.
    if re.match(r"cudnn(Get|Find)", function):
        return f'int {function}(void) {{ generated_call("{function}"); return 3000; }} /* not supported */'
    return f'int {function}(void) {{ return generated_call("{function}"); }}'


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
