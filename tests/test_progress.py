"""Progress: a bar in a terminal, a line now and then elsewhere."""

import io
import re

import jax
import pytest
from rich.console import Console

import pseudolangevin as pl
from pseudolangevin import _progress
from pseudolangevin._progress import progress_bar


def drawn(*, terminal: bool, show: bool | None, num_chains: int = 3, loss: float = 0.123456) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with progress_bar(1000, num_chains, show=show, console=console) as update:
        for step in range(100, 1001, 100):
            update(step, loss)
    return stream.getvalue()


@pytest.mark.parametrize(("terminal", "show"), [(False, None), (False, False), (True, False)])
def test_it_is_silent_by_choice_and_without_a_terminal(terminal, show):
    assert drawn(terminal=terminal, show=show) == ""


def test_a_terminal_shows_speed_loss_and_steps():
    text = drawn(terminal=True, show=None)
    for words in ("steps/s", "loss 0.1235", "1000/1000", "3 chains", "0:00"):
        assert words in text
    assert "1 chain " in drawn(terminal=True, show=True, num_chains=1)
    assert "nan" not in drawn(terminal=True, show=None, loss=float("nan"))


def test_long_runs_without_a_terminal_print_a_line_now_and_then(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now)
    with progress_bar(1000, 1, show=None) as update:
        for step, loss, share in ((10, 0.5, 0.3), (20, 0.4, 0.3), (30, 0.3, 0.01), (40, 0.2, 0.01)):
            now += 15.0
            update(step, loss, share)
        now += 60.0
        update(50, 0.1, 0.01)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step 20 of 1000, loss 0.4000, 30 s, records 30% of the time: raise record_every"
    assert second == "step 50 of 1000, loss 0.1000, 120 s"


def test_compilations_are_left_out_of_speed_and_remaining_time():
    """A hundred steps per second, and half a minute of compilation before the first record and at a later one."""
    stream, now = io.StringIO(), 0.0
    console = Console(file=stream, force_terminal=True, width=120, color_system=None, get_time=lambda: now)
    with progress_bar(1000, 1, show=None, console=console) as update:
        for step in range(100, 701, 100):
            now += 1.0
            if step in (100, 400):
                jax.jit(lambda x: x + 1)(0.0)
                now += 30.0
            update(step, 0.1)
    assert re.search(r"700/1000 100 steps/s loss 0.1000 +0?0:03", stream.getvalue())


def test_a_run_prints_nothing_to_a_pipe(small_task, capfd):
    sampler = pl.adam(small_task.potential, small_task.train, batch_size=8)
    pl.sample(sampler, small_task.weights, num_steps=2, key=0)
    assert capfd.readouterr() == ("", "")
