"""Thousands of real documents that every Python carries: the docstrings of its standard library, as JSONL.

    python examples/stdlib_docs.py > stdlib.jsonl

One object a line: `id` (the dotted name), `text` (name and docstring), `module`, `kind`. Python modules are
parsed, not run; modules written in C are imported and inspected.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "lib2to3", "idlelib", "turtledemo", "ensurepip"}
SHORTEST = 20  # characters: shorter docstrings say nothing beyond the name


def parsed_modules() -> Iterator[tuple[str, str, str]]:
    """(dotted name, kind, docstring) of everything public in the modules written in Python."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_FOLDERS & set(parts) or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escape sequences in the library's own strings
            try:
                tree = ast.parse(path.read_bytes())
            except SyntaxError:  # files that are templates or test data
                continue
        yield from parsed_node(tree, module, "module")


def parsed_node(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str,
                kind: str) -> Iterator[tuple[str, str, str]]:  # fmt: skip
    """A node and the public classes and functions inside it."""
    yield name, kind, ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from parsed_node(child, f"{name}.{child.name}", "class")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield f"{name}.{child.name}", "function", ast.get_docstring(child) or ""


def compiled_modules() -> Iterator[tuple[str, str, str]]:
    """(dotted name, kind, docstring) of everything public in the modules written in C."""
    for name in ("builtins", "time", "math", "cmath", "itertools", "sys", "gc", "array", "zlib", "select", "errno"):
        module = importlib.import_module(name)
        for member, value in sorted(vars(module).items()):
            if member.startswith("_"):
                continue
            if inspect.isclass(value):
                yield f"{name}.{member}", "class", inspect.getdoc(value) or ""
                for method, function in sorted(vars(value).items()):
                    if not method.startswith("_"):
                        yield f"{name}.{member}.{method}", "function", inspect.getdoc(function) or ""
            elif callable(value):
                yield f"{name}.{member}", "function", inspect.getdoc(value) or ""


def main() -> None:
    """Write the documents to stdout, each name once."""
    seen: set[str] = set()
    for source in (compiled_modules(), parsed_modules()):
        for name, kind, text in source:
            if len(text) >= SHORTEST and name not in seen:
                seen.add(name)
                module = name.partition(".")[0]
                json.dump({"id": name, "text": f"{name}: {text}", "module": module, "kind": kind}, sys.stdout)
                sys.stdout.write("\n")


if __name__ == "__main__":
    main()
