"""Whether a GPU can be used: onnxruntime's package, the driver and its cards, and CUDA's libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import onnxruntime

from es_sbert.doctor.findings import Finding, Level, failure, ok, warning
from es_sbert.encoder.cuda import CudaLibraries, cuda_major, install_remedy, load_libraries, provider_problem
from es_sbert.encoder.device import INSTALL_PROVIDER
from es_sbert.encoder.hardware import Driver, cuda_driver

_PACKAGES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class CudaState:
    """What there is of CUDA on a machine.

    Attributes:
        packages: Installed packages of onnxruntime.
        version: Of the onnxruntime that is imported.
        major: The CUDA major version that it was built for; None where it has no CUDA provider.
        driver: The NVIDIA driver; None where there is none.
        problem: Why the CUDA provider does not load; None where it does, or was not tried.
    """

    packages: tuple[str, ...]
    version: str
    major: int | None
    driver: Driver | None
    problem: str | None = None

    @property
    def cards(self) -> int:
        return 0 if self.driver is None else len(self.driver.cards)


def check_cuda(device: str) -> list[Finding]:
    """What is there of CUDA, and what is missing.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`, as the user asks for it.
    """
    installed = tuple(name for name in _PACKAGES if _is_installed(name))
    state = CudaState(installed, onnxruntime.__version__, cuda_major(), cuda_driver())
    matters = state.cards > 0 or device.startswith("cuda")
    if not matters or state.major is None:
        return list(judge_cuda(state, CudaLibraries(), device))
    libraries = load_libraries()
    return list(judge_cuda(replace(state, problem=provider_problem()), libraries, device))


def judge_cuda(state: CudaState, libraries: CudaLibraries, device: str) -> Iterator[Finding]:
    """The findings; one line suffices where there is no card and none is asked for.

    Args:
        state: What there is.
        libraries: Which of CUDA's libraries were found.
        device: As for `check_cuda`.
    """
    asked = device.startswith("cuda")
    package = " and ".join(state.packages) or "onnxruntime"
    built = "without CUDA" if state.major is None else f"for CUDA {state.major}"
    if len(state.packages) > 1:
        yield warning(
            "cuda", f"{package} are both installed, and have overwritten each other's files", f"{INSTALL_PROVIDER}."
        )
    if not state.cards and not asked:
        yield ok("cuda", f"no NVIDIA GPU; {package} {state.version}, built {built}, runs on the CPU")
        return
    # What stops a GPU that was asked for is an error; under `auto` the CPU does its work.
    level = Level.ERROR if asked else Level.WARNING
    if state.major is None:
        yield Finding(level, "cuda", f"{package} {state.version} was built {built}", f"{INSTALL_PROVIDER}.")
    else:
        yield ok("cuda", f"{package} {state.version}, built {built}")
    yield from _judge_driver(state)
    for library, path in libraries.found:
        yield ok("cuda", f"{library.name}: {path}")
    for library in libraries.missing:
        remedy = install_remedy([library], state.major)
        if library.required:
            yield Finding(level, "cuda", f"{library.name}: not found", remedy)
        else:
            yield warning("cuda", f"{library.name}: not found; only some models need it", remedy)
    if state.problem is not None and not any(library.required for library in libraries.missing):
        remedy = "Install CUDA of the version that onnxruntime was built for."
        yield Finding(level, "cuda", f"onnxruntime's CUDA provider does not load: {state.problem}", remedy)


def _judge_driver(state: CudaState) -> Iterator[Finding]:
    driver = state.driver
    if driver is None:
        yield failure("cuda", "there is no NVIDIA driver", "Install it; in a container, start it with `--gpus all`.")
        return
    if not driver.cards:
        why = f" ({driver.problem})" if driver.problem else ""
        yield failure(
            "cuda", f"the NVIDIA driver offers no GPU{why}", "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES."
        )  # fmt: skip
    for number, card in enumerate(driver.cards):
        yield ok("cuda", f"cuda:{number} is {card}")
    if driver.cuda is not None and state.major is not None and driver.cuda[0] < state.major:
        yield warning(
            "cuda",
            "the NVIDIA driver runs CUDA up to {}.{}, ".format(*driver.cuda) + f"onnxruntime needs {state.major}",
            "Update the driver; inside a container, that of the host.",
        )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
