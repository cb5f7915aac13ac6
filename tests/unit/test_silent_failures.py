"""No error is taken for "nothing to do" in silence.

A handler that only returns an empty or unchanged value, passes or goes on, and each `suppress`, say why nothing is
lost: in a comment at the handler, or in the docstring of the function, which says what its callers get.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a docstring says of a value that stands for an error.
_SAID = re.compile(
    r"\b(?:None|[Ee]mpty|False|[Uu]nchanged|ignored|left out|without an error|[Ww]hether|if this user may)\b"
)


def is_empty(statement: ast.stmt) -> bool:
    """Whether a statement goes on, or returns a value without computing anything."""
    match statement:
        case ast.Pass() | ast.Continue() | ast.Break() | ast.Return(None | ast.Constant() | ast.Name()):
            return True
        case ast.Return(ast.List(elts) | ast.Tuple(elts) | ast.Set(elts)):
            return all(isinstance(each, ast.Constant | ast.Name) for each in elts)
        case ast.Return(ast.Dict(keys)):
            return not keys
        case ast.Return(ast.Call(args=[], keywords=[])):
            return True
    return False


def _is_silent(handler: ast.ExceptHandler) -> bool:
    [first, *more] = handler.body
    returns_error = isinstance(first, ast.Return) and handler.name and ast.unparse(first) == f"return {handler.name}"
    is_end = handler.type is not None and ast.unparse(handler.type) in ("StopIteration", "StopAsyncIteration")
    return not more and is_empty(first) and not returns_error and not is_end


def silent_handlers(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    """First and last line of each silent handler, and the docstring of its function."""

    def visit(node: ast.AST, said: str) -> Iterator[tuple[int, int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node) or ""
        if isinstance(node, ast.ExceptHandler) and _is_silent(node):
            yield node.lineno, node.end_lineno or node.lineno, said
        if isinstance(node, ast.With | ast.AsyncWith) and any(
            re.match(r"(?:contextlib\.)?suppress\(", ast.unparse(item.context_expr)) for item in node.items
        ):
            yield node.lineno, node.end_lineno or node.lineno, said
        for child in ast.iter_child_nodes(node):
            yield from visit(child, said)

    yield from visit(tree, "")


def unexplained(source: str) -> list[int]:
    """The lines of silent handlers without a reason."""
    lines = source.splitlines()
    return [
        first
        for first, last, said in silent_handlers(ast.parse(source))
        if not _SAID.search(said) and not any("#" in line for line in lines[first - 2 : last])
    ]


def test_every_silent_handler_has_its_reason() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("es_sbert", "exporters", "mappings")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "say in a comment why nothing is lost, or raise the error"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("try:\n    a()\nexcept OSError:\n    pass\n", [3]),
        ("try:\n    a()\nexcept OSError:\n    pass  # a() is tried again\n", []),
        ("def f():\n    '''Find it.'''\n    try:\n        a()\n    except OSError:\n        return []\n", [5]),
        ("def f():\n    '''None if it fails.'''\n    try:\n        a()\n    except OSError:\n        return\n", []),
        ("with suppress(OSError):\n    a()\n", [1]),
        ("# It may be gone.\nwith suppress(OSError):\n    a()\n", []),
    ],
)
def test_what_counts_as_a_silent_handler(source: str, lines: list[int]) -> None:
    assert unexplained(source) == lines
