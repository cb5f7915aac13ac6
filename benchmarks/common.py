"""What the benchmarks share: the machine's description, data files, and figures of repeated runs."""

from __future__ import annotations

import csv
import gzip
import json
import multiprocessing
import platform
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click

from es_sbert.installation import installed_runtimes
from es_sbert.runtime.device import available_cores, has_int8_products

T = TypeVar("T")


def machine() -> dict[str, Any]:
    """CPU, cores, instructions and library versions, for every result."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": available_cores(),
        "int8_products": has_int8_products(),
        "python": platform.python_version(),
        **installed_runtimes(),
        **{name: _version(name) for name in ("torch", "sentence-transformers")},
        "commit": _commit(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip() or None


def read_tsv(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a gzip'd TSV file with a header and no quoting."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a gzip'd JSONL file."""
    with gzip.open(path, "rb") as file:
        yield from map(json.loads, file)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (min–max)` of repeated runs."""
    shown = [f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def replaced(text: str, name: str, section: str, *, maker: str) -> str:
    """A page with the text between its markers replaced.

    Args:
        maker: Module whose command makes the section, as the markers say.

    Raises:
        ValueError: the page has no such markers.
    """
    start, end = f"<!-- {name}: made by {maker} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no markers for {name}: {start} … {end}")
    return pattern.sub(lambda _: f"{start}\n{section}\n{end}", text)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time and result."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def peak_memory() -> float:
    """Megabytes of this process at most; `getrusage` would count what its parent had taken before."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def in_own_process(call: Callable[..., T], *arguments: Any) -> T:
    """What a function of a module returns in a new process, whose memory holds nothing else.

    Raises:
        RuntimeError: the process ended without an answer.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def ingest(url: str, index: str, *arguments: str) -> dict[str, Any]:
    """Run `es-sbert ingest --json` and give its summary; an exit code other than 0 ends the benchmark."""
    command = [sys.executable, "-m", "es_sbert", "ingest", "--url", url, "--index", index, "--json", "--quiet"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise click.ClickException(f"ingest ended with {done.returncode}: {done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def delete(url: str, index: str) -> None:
    """Remove an index of this benchmark."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{index}", method="DELETE")):
        pass
