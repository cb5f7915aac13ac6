"""The step `refusals`: without CUDA's libraries `--device cuda` fails, and says what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.gpu_check.arithmetic import Shape
from benchmarks.gpu_check.card import load_libraries, loaded_libraries
from benchmarks.gpu_check.context import Context, say
from benchmarks.gpu_check.random_models import write_model
from benchmarks.gpu_check.results import JSON, NOT_RUN, goal

_CHECKOUT = Path(__file__).parents[2]
_SMALL = Shape(hidden=64, heads=2, layers=1, intermediate=128)
_LIBRARY = re.compile(r"(lib\w+\.so\.\d+)")
_SHOWN = 2_000  # characters of stderr
_NO_LIBRARIES = ("/proc", "/sys", "/dev", "/run")

# Prints the libraries that load: by the system's loader, and then also as es-sbert finds them in NVIDIA's packages.
_PROBE = """
import ctypes, json, sys

def loaded():
    found = []
    for name in sys.argv[1:]:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        found.append(name)
    return found

system = loaded()
from es_sbert.runtime.cuda_session import load_libraries
load_libraries()
print(json.dumps([system, [name for name in loaded() if name not in system]]))
"""


def refusals(context: Context) -> JSON:
    """`encode --device cuda` in processes that lack libraries: an error, an exit code, and nothing on stdout.

    A library that the system's loader or a package would still find is hidden in a mount namespace, which takes root. A
    case is not run if it is found all the same: es-sbert would rightly use it.
    """
    load_libraries()
    needless = context.bundle(write_model(context.scratch / "small", _SMALL, vocabulary=1_000)).folder
    folder = write_model(context.scratch / "small-max", _SMALL, vocabulary=1_000, pooling="max")
    needing = context.bundle(folder).folder
    _encode_here(needless)  # so that this process has loaded what the card needs
    libraries = {name: path for path in loaded_libraries() if (name := _short_name(path))}
    with tempfile.TemporaryDirectory() as name:
        hidden = _Environment(Path(name), libraries)
        cases = {
            "no libraries": _case(hidden, lambda library: library.startswith("libcuda."), needless, refused=True),
            "no cuDNN, a model that does without": _case(hidden, _is_not_cudnn, needless, refused=False),
            "no cuDNN, a model that needs it": _case(hidden, _is_not_cudnn, needing, refused=True),
            "all libraries": _case(hidden, lambda library: True, needless, refused=False),
        }
    return {"libraries": libraries, "cases": cases}


def _encode_here(bundle: Path) -> None:
    from es_sbert.bundle.bundle import open_encoder_bundle
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.runtime.device import Device

    with Encoder.from_bundle(open_encoder_bundle(bundle), "fp16", Device("cuda"), threads=1) as encoder:
        encoder.encode(["baba bebe"])


def _is_not_cudnn(library: str) -> bool:
    return not library.startswith("libcudnn")


def _short_name(path: str) -> str | None:
    """`libcurand.so.10` of /…/libcurand.so.10.4.2: what the loader looks for."""
    found = _LIBRARY.match(Path(path).name)
    return found[1] if found else None


class _Environment:
    """A Python without torch and NVIDIA's packages, and folders with those libraries that a case leaves."""

    def __init__(self, folder: Path, libraries: dict[str, str]) -> None:
        from tests.cuda.isolation import create_environment

        self._folder = folder
        self._libraries = libraries
        self._python = create_environment(folder / "environment")
        self._places = find_libraries(libraries) if can_mount() else {}

    def run(self, keep: Callable[[str], bool], arguments: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
        """Run es-sbert with the libraries that are kept."""
        return self._python_with(keep, ["-m", "es_sbert", *arguments], stdin)

    def not_hidden(self, keep: Callable[[str], bool]) -> str | None:
        """Which libraries are found although they are not kept, and how; None if there are none.

        Raises:
            RuntimeError: the process that looks for them failed.
        """
        hidden = [library for library in self._libraries if not keep(library)]
        if not hidden:
            return None
        done = self._python_with(keep, ["-c", _PROBE, *hidden], "")
        if done.returncode != 0:
            raise RuntimeError(f"libraries cannot be looked for: {done.stderr[-_SHOWN:]}")
        return describe_found(*json.loads(done.stdout))

    def _python_with(
        self, keep: Callable[[str], bool], arguments: list[str], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        left = Path(tempfile.mkdtemp(dir=self._folder))
        hidden = [library for library in self._libraries if not keep(library)]
        for library, path in self._libraries.items():
            if keep(library):
                (left / library).symlink_to(path)
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        paths = [str(_CHECKOUT), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        environment |= {"LD_LIBRARY_PATH": str(left), "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
        command = hiding(self._places, hidden, [str(self._python), *arguments])
        return subprocess.run(
            command, input=stdin, env=environment, capture_output=True, text=True, timeout=240, check=False
        )


# Puts an empty file over each library, for the process that follows and its children alone.
_HIDE = """
while [ "$1" != -- ]; do mount --bind /dev/null "$1" || exit 99; shift; done
shift
exec "$@"
"""


def can_mount() -> bool:
    """Whether this process can create a mount namespace, as root on Linux can."""
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_libraries(names: Iterable[str], root: Path = Path("/")) -> dict[str, list[str]]:
    """Library → all files of this machine that a loader would take for it."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in _NO_LIBRARIES]
        for file in files:
            if (name := _short_name(file)) in found:
                found[name].append(os.path.realpath(os.path.join(folder, file)))
    return {name: sorted(set(places)) for name, places in found.items()}


def hiding(places: Mapping[str, Sequence[str]], hidden: Iterable[str], command: list[str]) -> list[str]:
    """The command in a mount namespace in which libraries are empty files.

    Args:
        places: Files of each library; without any, the command is left as it is.
        hidden: Libraries to hide.
        command: The command.
    """
    files = sorted({file for library in hidden for file in places.get(library, ())})
    return ["unshare", "--mount", "sh", "-c", _HIDE, "sh", *files, "--", *command] if files else command


def describe_found(by_loader: Sequence[str], in_packages: Sequence[str]) -> str | None:
    """Why a case is not run: libraries that are found although it hides them; None if there are none.

    Args:
        by_loader: Names that the system's loader finds.
        in_packages: Names that are found in NVIDIA's pip packages only.
    """
    places = ((by_loader, "by the system's loader"), (in_packages, "in a pip package of NVIDIA"))
    parts = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} found {place}" for names, place in places if names
    ]
    return "; ".join(parts) or None


def _case(hidden: _Environment, keep: Callable[[str], bool], bundle: Path, *, refused: bool) -> JSON:
    arguments = ["encode", "--model", str(bundle), "--device", "cuda"]
    say(f"refusals: {'refused' if refused else 'runs'}: {bundle.name}")
    if reason := hidden.not_hidden(keep):
        return {NOT_RUN: reason}
    done = hidden.run(keep, arguments, "baba bebe\n")
    was_refused = done.returncode != 0 and not done.stdout and "Traceback" not in done.stderr
    ran = done.returncode == 0 and done.stdout.count("\n") == 1
    wanted = "is refused, with an empty stdout and no traceback" if refused else "runs, with one line on stdout"
    return {
        "returncode": done.returncode,
        "stdout_bytes": len(done.stdout),
        "stderr": done.stderr[-_SHOWN:],
        "python": sys.version.split()[0],
        "goals": [goal(f"{wanted} (1 yes, 0 no)", float(was_refused if refused else ran), at_least=1)],
    }
