"""The paper's tables with our figures: `python -m benchmarks.tables --data DATA [TABLE …]`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import click

from benchmarks.common import machine
from benchmarks.kept_runs import RESULTS_PAGE, write_section
from benchmarks.tables import ablation, argument, speed, sts, stsb, transfer, wiki
from benchmarks.tables.lab import Lab
from benchmarks.tables.profiles import PROFILES

TABLES: dict[str, ModuleType] = {
    "sts": sts, "stsb": stsb, "argument": argument, "wiki": wiki, "transfer": transfer, "ablation": ablation,
    "speed": speed,
}  # fmt: skip


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of the data sets.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path("build/tables"),
    show_default=True,
    help="Folder for models; may be removed at any time.",
)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="cpu", show_default=True)
@click.option("--kept", is_flag=True, help="Run nothing: show what benchmarks/results holds.")
@click.option("--write", is_flag=True, help="Put the tables into docs/results.md.")
def main(tables: tuple[str, ...], data: Path, work: Path, profile: str, kept: bool, write: bool) -> None:
    """Print TABLES (all of them by default). A result that benchmarks/results holds is not made again."""
    lab = Lab(data, work, PROFILES[profile], run=not kept)
    for name in tables or TABLES:
        module = TABLES[name]
        text = section(name, module, lab)
        click.echo(text + "\n")
        if write:
            write_section(RESULTS_PAGE, f"{profile} {name}", text, maker="benchmarks.tables")
    if not kept:
        click.echo(f"{machine()}", err=True)


def section(name: str, module: ModuleType, lab: Lab) -> str:
    """A table with its heading, the command that makes it, and what one must know to read it."""
    seeds = len(lab.profile.ablation_seeds)
    device = "" if lab.profile.name == "cpu" else f" --profile {lab.profile.name}"
    epochs = lab.profile.argument_epochs
    spoken = "one epoch" if epochs == 1 else f"{epochs} epochs"
    note = str(module.NOTE).replace("{seeds}", str(seeds)).replace("{epochs}", spoken)
    return f"### {module.TITLE}\n`python -m benchmarks.tables {name} --data DATA{device}`. {note}\n\n{module.make(lab)}"


if __name__ == "__main__":
    main()
