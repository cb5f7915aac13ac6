"""Where CUDA's libraries are looked for, and what is said of those that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.installation import install_command, install_extra_command
from es_sbert.runtime.cuda_session import (
    CudaLibrary,
    install_remedy,
    missing_libraries,
    missing_library_names,
    needed_libraries,
    nvidia_package_folders,
)

RAND, DNN = (
    CudaLibrary("libcurand.so.10", "nvidia-curand"),
    CudaLibrary("libcudnn.so.9", "nvidia-cudnn-cu13", required=False),
)


def test_cuda_13_libraries() -> None:
    needed = needed_libraries(13, "linux")
    assert {library.name: library.package for library in needed} == {
        "libcudart.so.13": "nvidia-cuda-runtime",
        "libcublasLt.so.13": "nvidia-cublas",
        "libcublas.so.13": "nvidia-cublas",
        "libcurand.so.10": "nvidia-curand",
        "libcudnn.so.9": "nvidia-cudnn-cu13",
    }
    names = [library.name for library in needed]
    assert names.index("libcublasLt.so.13") < names.index("libcublas.so.13"), "a library before what it needs"
    assert [library.name for library in needed if not library.required] == ["libcudnn.so.9"]


def test_cuda_12_package_names() -> None:
    packages = {library.package for library in needed_libraries(12, "linux")}
    assert packages == {f"nvidia-{name}-cu12" for name in ("cuda-runtime", "cublas", "curand", "cudnn", "cufft")}


def test_windows_library_names() -> None:
    names = {library.name for library in needed_libraries(13, "win32")}
    assert {"cudart64_13.dll", "cublasLt64_13.dll", "curand64_10.dll", "cudnn64_9.dll"} <= names


def test_nvidia_package_folders_old_and_new(tmp_path: Path) -> None:
    for folder in ("curand/lib", "cu13/lib", "cudnn/lib", "cu13/bin/x86_64", "cu13/include"):
        (tmp_path / folder).mkdir(parents=True)
    found = [folder.relative_to(tmp_path).as_posix() for folder in nvidia_package_folders([tmp_path], 13)]
    # cuRAND's file has the same name in CUDA 12 and 13: the folder of the right one comes first.
    assert found[0] == "cu13/lib"
    assert {"curand/lib", "cudnn/lib", "cu13/bin/x86_64"} < set(found)
    assert "cu13/include" not in found


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    (tmp_path / RAND.name).touch()
    return tmp_path


def loader(*there: str) -> tuple[Callable[[str], None], list[str]]:
    """A loader that finds these names or paths, and what it was asked for."""
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")

    return load, asked


def test_system_library_precedes_packages(packaged: Path) -> None:
    load, asked = loader(RAND.name, str(packaged / RAND.name))
    assert missing_libraries([RAND], [packaged], load) == ()
    assert asked == [RAND.name]


def test_package_provides_missing_system_library(packaged: Path) -> None:
    load, asked = loader(str(packaged / RAND.name))
    assert missing_libraries([RAND, DNN], [packaged], load) == (DNN,)
    assert asked == [RAND.name, str(packaged / RAND.name), DNN.name]


def test_library_that_fails_to_load_is_missing(packaged: Path) -> None:
    load, _ = loader()
    assert missing_libraries([RAND], [packaged], load) == (RAND,)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("libcurand.so.10: cannot open shared object file: No such file or directory", ["libcurand.so.10"]),
        ("libcufft.so.12: cannot open shared object file: No such file", ["libcurand.so.10", "libcufft.so.12"]),
        ("undefined symbol: cublasLtMatmul", ["libcurand.so.10"]),
    ],
)
def test_missing_library_names(problem: str, names: list[str]) -> None:
    assert missing_library_names((RAND, DNN), problem) == names


def test_install_remedy() -> None:
    twice = [CudaLibrary("libcublasLt.so.13", "nvidia-cublas"), CudaLibrary("libcublas.so.13", "nvidia-cublas"), RAND]
    assert install_remedy(twice, 13) == (
        f"Install the missing libraries: {install_command('nvidia-cublas', 'nvidia-curand')}; "
        f"{install_extra_command('cuda')} installs everything that CUDA needs."
    )
    # The extra is for CUDA 13.
    old = [library for library in needed_libraries(12, "linux") if "curand" in library.name]
    assert install_remedy(old, 12) == f"Install the missing libraries: {install_command('nvidia-curand-cu12')}."
    assert install_remedy([], 12) == ""
