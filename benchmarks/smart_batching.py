"""What `smart_batching` gains in speed and costs in quality while training.

    python -m benchmarks.smart_batching --data DATA [--steps 100] [--seeds 3] [--precision bf16]

The recipe `stsb-regression`, cut after so many steps, with batches of similar length and with random ones in turn, each
with the same seeds; the dev score is that of STSb-dev after the last step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

import click

from benchmarks.common import machine, replaced, spread, table
from benchmarks.train_speed import train_timed

PAGE = Path(__file__).parents[1] / "docs/results.md"
WAYS = {"batches of similar length": "true", "random batches": "false"}


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of the data sets.")
@click.option("--steps", type=int, default=100, show_default=True)
@click.option("--batch", type=int, default=16, show_default=True)
@click.option("--seeds", type=int, default=3, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="bf16", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--way", type=click.Choice(list(WAYS)), help="Train once in this process (what the others call).")
@click.option("--seed", type=int, default=1, help="With --way.")
@click.option("--page", is_flag=True, help="Write the table into docs/results.md.")
def main(
    data: Path, steps: int, batch: int, seeds: int, precision: str, device: str, way: str | None, seed: int, page: bool
) -> None:
    """Print examples a second and dev scores with and without smart batching."""
    if way is not None:
        click.echo(json.dumps(_train(data, steps, batch, precision, device, WAYS[way], seed)))
        return
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for number in range(1, seeds + 1):
        for name in WAYS:
            command = [sys.executable, "-m", "benchmarks.smart_batching", "--data", data, "--steps", steps,
                       "--batch", batch, "--precision", precision, "--device", device, "--way", name,
                       "--seed", number]  # fmt: skip
            done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
            seen[name].append(json.loads(done.stdout.splitlines()[-1]))
    similar, random = seen.values()
    ratios = [one["rate"] / other["rate"] for one, other in zip(similar, random, strict=True)]
    gaps = [one["dev"] - other["dev"] for one, other in zip(similar, random, strict=True)]
    rows = [
        [name, spread([run["rate"] for run in runs]), f"{mean(run['dev'] for run in runs):.2f}"]
        for name, runs in seen.items()
    ]
    rows.append(["similar to random", f"× {spread(ratios, 2)}", ", ".join(f"{gap:+.2f}" for gap in gaps)])
    text = (
        f"`python -m benchmarks.smart_batching --data DATA --steps {steps} --seeds {seeds}`: {steps} steps of the "
        f"recipe `stsb-regression`, {precision}, median (min–max) of the seeds' examples a second; dev is Spearman "
        f"× 100 on STSb-dev, the last row its difference for each seed.\n\n" + table(["", "examples/s", "dev"], rows)
    )
    click.echo(text)
    if page:
        PAGE.write_text(replaced(PAGE.read_text(), "smart batching", text, maker="benchmarks.smart_batching"))
    click.echo(json.dumps(machine()), err=True)


def _train(data: Path, steps: int, batch: int, precision: str, device: str, smart: str, seed: int) -> dict[str, float]:
    """One run; examples a second of the steps alone, from the tenth on, and the dev score after the last."""
    changes = {"stages.0.smart_batching": smart, "seed": str(seed), "stages.0.checkpoints_per_epoch": "1"}
    done, clock = train_timed(data, changes, device=device, precision=precision, batch=batch, steps=steps)
    (result,) = done.stages
    assert result.best_dev is not None
    return {"rate": clock.rate(batch)["pairs_per_second"], "dev": result.best_dev}


if __name__ == "__main__":
    main()
