"""Find and load the CUDA libraries that onnxruntime's CUDA provider needs, and name the packages that install them.

`onnxruntime.preload_dlls` does the same but prints to stdout, which is reserved for command output.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime

CUDA_EXTRA_COMMAND = "pip install 'es-sbert[cuda]'"
_EXTRA_MAJOR = 13  # the CUDA that the extra brings
_LINK_MAP = 2  # RTLD_DI_LINKMAP of dlinfo(3)


@dataclass(frozen=True)
class CudaLibrary:
    """A shared library that the CUDA provider loads.

    Attributes:
        name: What the system's loader looks for (`libcurand.so.10`).
        package: The pip package that brings it.
        required: Whether the provider does not load without it; the others are needed by some operators only.
    """

    name: str
    package: str
    required: bool = True


@dataclass(frozen=True)
class CudaLibraryStatus:
    """What a search for libraries found.

    Attributes:
        found: Each library that was loaded, with its path.
        missing: The others.
    """

    found: tuple[tuple[CudaLibrary, str], ...] = ()
    missing: tuple[CudaLibrary, ...] = ()


def cuda_major() -> int | None:
    """The CUDA major version that the installed onnxruntime was built for; None where it was built without CUDA."""
    try:
        from onnxruntime.capi import build_and_package_info as built
    except ImportError:
        return None
    major = re.match(r"\d+", getattr(built, "cuda_version", None) or "")
    return int(major[0]) if major else None


def needed_libraries(major: int, platform: str = sys.platform) -> tuple[CudaLibrary, ...]:
    """The libraries of a CUDA provider, each behind those that it needs itself.

    Args:
        major: Of the CUDA that onnxruntime was built for.
        platform: As `sys.platform`.
    """
    # From CUDA 13 on the names of the packages carry no version, but for cuDNN, which is a product of its own.
    suffix = "" if major >= 13 else f"-cu{major}"

    def library(stem: str, version: int, package: str, required: bool = True) -> CudaLibrary:
        name = f"{stem}64_{version}.dll" if platform == "win32" else f"lib{stem}.so.{version}"
        return CudaLibrary(name, f"nvidia-{package}", required)

    libraries = (
        library("cudart", major, f"cuda-runtime{suffix}"),
        library("cublasLt", major, f"cublas{suffix}"),
        library("cublas", major, f"cublas{suffix}"),
        library("curand", 10, f"curand{suffix}"),
        library("cudnn", 9, f"cudnn-cu{major}", required=False),
    )
    # Providers built for CUDA 12 were linked with cuFFT too, up to a release that cannot be told from here.
    return libraries if major >= 13 else (*libraries, library("cufft", 11, f"cufft{suffix}", required=False))


def nvidia_package_folders(roots: Iterable[Path], major: int) -> list[Path]:
    """Folders of libraries in NVIDIA's pip packages.

    Args:
        roots: Where the namespace package `nvidia` lies.
        major: The CUDA major whose folder comes first: cuRAND's file has the same name in CUDA 12 and 13.
    """
    found = [
        folder
        for root in roots
        for pattern in ("*/lib", "*/bin/x86_64", "*/bin")
        for folder in sorted(root.glob(pattern))
    ]
    return sorted(found, key=lambda folder: f"cu{major}" not in folder.parts)


def find_libraries(
    libraries: Iterable[CudaLibrary], folders: Sequence[Path], load: Callable[[str], str]
) -> CudaLibraryStatus:
    """Load each library: from where the system's loader finds it, else from a package's folder.

    Args:
        folders: Folders of the packages.
        load: Loads a library by its name or path and returns its path; an OSError where there is none.
    """
    found: list[tuple[CudaLibrary, str]] = []
    missing: list[CudaLibrary] = []
    for library in libraries:
        packaged = (str(folder / library.name) for folder in folders if (folder / library.name).is_file())
        for name in (library.name, *packaged):
            try:
                found.append((library, load(name)))
                break
            except OSError:
                continue
        else:
            missing.append(library)
    return CudaLibraryStatus(tuple(found), tuple(missing))


@cache
def load_libraries() -> CudaLibraryStatus:
    """Load the libraries of the installed onnxruntime's CUDA provider, once per process."""
    major = cuda_major()
    if major is None:
        return CudaLibraryStatus()
    namespace = importlib.util.find_spec("nvidia")
    roots = (namespace.submodule_search_locations if namespace else None) or ()
    folders = nvidia_package_folders(map(Path, roots), major)
    if sys.platform == "win32":
        for folder in folders:
            os.add_dll_directory(str(folder))
    return find_libraries(needed_libraries(major), folders, _load_library)


def provider_problem() -> str | None:
    """Why the CUDA provider does not load, in the words of the system's loader; None where it does.

    onnxruntime itself only logs it and takes the CPU. On Windows, where the loader names no file, nothing is said.
    """
    provider = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not provider.is_file():
        return None
    try:
        ctypes.CDLL(str(provider))
    except OSError as error:
        return str(error)
    return None


def missing_library_names(libraries: CudaLibraryStatus, problem: str) -> list[str]:
    """Names of the libraries without which the provider does not load.

    Args:
        libraries: What was found.
        problem: What the system's loader said; it names one of them at most.
    """
    named = re.match(r"(\S+): cannot open shared object file", problem)
    names = [library.name for library in libraries.missing if library.required]
    return names if named is None or named[1] in names else [*names, named[1]]


def install_command(libraries: Iterable[CudaLibrary]) -> str:
    """The command that installs the packages of these libraries."""
    return " ".join(["pip install", *dict.fromkeys(library.package for library in libraries)])


def install_remedy(libraries: Sequence[CudaLibrary], major: int | None) -> str:
    """How to get missing libraries: their packages, and the extra that brings all, where it is of this CUDA."""
    extra = f"{CUDA_EXTRA_COMMAND} brings all that CUDA needs" if major == _EXTRA_MAJOR else ""
    command = f"Install what is missing: {install_command(libraries)}" if libraries else ""
    return "; ".join(filter(None, (command, extra))) + "." if command or extra else ""


def _load_library(name: str) -> str:
    library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    if os.path.isabs(name):
        return name
    try:
        dlinfo = ctypes.CDLL(None).dlinfo
    except (AttributeError, OSError, TypeError):  # no such function on macOS and Windows
        return name
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    entry = ctypes.POINTER(_LinkMap)()
    if dlinfo(library._handle, _LINK_MAP, ctypes.byref(entry)) != 0:
        return name
    return os.fsdecode(entry.contents.name) or name


class _LinkMap(ctypes.Structure):
    """The first fields of glibc's `struct link_map`."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))
