"""What a run shows on the terminal."""

from __future__ import annotations

import io

from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from es_sbert.training.trainer import ProgressBarCallback


def run(console: Console) -> list[str]:
    """A run of four steps, measured before and after, as transformers' Trainer calls back."""
    lines: list[str] = []
    bar = ProgressBarCallback("pairs", "dev accuracy", lines.append, console)
    arguments, control = TrainingArguments(output_dir="nowhere", use_cpu=True), TrainerControl()
    state = TrainerState(max_steps=4)
    bar.on_train_begin(arguments, state, control)
    bar.on_log(arguments, state, control, {"eval_dev": 50.0})
    for step in range(1, 5):
        state.global_step = step
        bar.on_step_end(arguments, state, control)
        state.log_history.append({"loss": 1 / step, "step": step})
        bar.on_log(arguments, state, control, {"loss": 1 / step})
    bar.on_log(arguments, state, control, {"eval_dev": 62.5})
    bar.stop()
    return lines


def test_one_line_per_evaluation() -> None:
    silent = io.StringIO()
    assert run(Console(file=silent, force_terminal=False)) == [
        "pairs: step 0 of 4, dev accuracy 50.00",
        "pairs: step 4 of 4, loss 0.2500, dev accuracy 62.50",
    ]
    assert silent.getvalue() == ""


def test_a_terminal_gets_a_bar_with_loss_and_time() -> None:
    text = io.StringIO()
    run(Console(file=text, force_terminal=True, width=120))
    # The last is the cursor, shown again.
    assert all(part in text.getvalue() for part in ("4/4", "loss 0.2500", "left", "\x1b[?25h"))
