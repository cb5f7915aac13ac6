"""Where es-sbert relies on private names of other libraries, and for which versions of them that was tested."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from es_sbert.errors import UsageError
from es_sbert.gateway.server.uvicorn_server import TESTED_UVICORN, DrainingServer, LimitedHttpProtocol, check_uvicorn
from tests.raised import raises_as_recorded
from tests.unit.test_packaging import ROOT

# Private names of others, by module. Each of these modules says in its docstring why there is no other way.
_PRIVATE = {"es_sbert/gateway/server/uvicorn_server.py": {"_unset_keepalive_if_required"}}
# Python documents these: `os._exit`, members of named tuples.
_DOCUMENTED = {"_exit", "_asdict", "_fields", "_replace"}


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("es_sbert", "exporters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _own_names(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes, fields, module variables, and attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                yield name


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_private_names_of_others_are_gathered_in_few_modules() -> None:
    own = {name for _, tree in _trees() for name in _own_names(tree)} | _DOCUMENTED
    found: dict[str, set[str]] = {}
    for path, tree in _trees():
        for node in ast.walk(tree):
            names: list[str] = []
            match node:
                case ast.Attribute(attr=name) if name not in own:
                    names = [name]
                case ast.ImportFrom(module=str(module)) if not module.startswith("es_sbert"):
                    names = [module, *(alias.name for alias in node.names)]
                case ast.Import():
                    names = [alias.name for alias in node.names]
            for name in filter(_is_private, names):
                found.setdefault(path, set()).add(name)
    assert found == _PRIVATE


@pytest.mark.train
def test_private_methods_of_others_are_not_overridden() -> None:
    from transformers import Trainer, TrainingArguments

    from es_sbert.training.trainer import TaskTrainer
    from es_sbert.training.training_stage import OneGpuArguments

    for ours, theirs in (
        (LimitedHttpProtocol, HttpToolsProtocol),
        (DrainingServer, uvicorn.Server),
        (TaskTrainer, Trainer),
        (OneGpuArguments, TrainingArguments),
    ):
        assert not {name for name in vars(ours).keys() & set(dir(theirs)) if _is_private(name)}, ours


def test_gateway_refuses_a_uvicorn_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new minor version, run tests/gateway/security before it is named as tested."""
    check_uvicorn()
    monkeypatch.setattr(uvicorn, "__version__", f"0.{TESTED_UVICORN[1] + 1}.0")
    with raises_as_recorded(UsageError):
        check_uvicorn()


@pytest.mark.train
def test_one_process_trains_on_one_of_several_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch
    from transformers import TrainingArguments

    from es_sbert.training.training_stage import OneGpuArguments

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert TrainingArguments(output_dir=str(tmp_path)).n_gpu == 4
    arguments = OneGpuArguments(output_dir=str(tmp_path), per_device_train_batch_size=2)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, 2)
