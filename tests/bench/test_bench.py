"""The benchmark on a tiny network: every part runs, and says what it did not do. Times themselves are not judged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from pseudolangevin import cli, integrator, masses, trees
from pseudolangevin.bench import clock, driver, own, rows, scaling, worker
from pseudolangevin.bench.clock import Deadline, Timing
from pseudolangevin.bench.problem import PUBLISHED_SIZES, QUIET_TEMPERATURE_RATIO, Problem, nearest_size
from pseudolangevin.samplers.langevin import DEFAULT_MOMENTUM_RETENTION

SIZE = 2_115  # five hidden units
TINY_RUN = {
    "num_steps": 40,
    "record_every": 10,
    "task": {"num_train": 200, "num_test": 50, "dimension": 10, "num_classes": 3},
    "network": {"sizes": [10, 5, 3]},
    "sampler": {"name": "pseudo_langevin", "batch_size": 20, "variance_block": 10, "variance_max_batches": 20},
}


def results_here(task: dict) -> Iterator[tuple[str, dict]]:
    """What the process of a task would write, without starting it: importing and compiling take longest."""
    found: list[tuple[str, dict]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "emit", lambda kind, value: found.append((kind, json.loads(json.dumps(value)))))
        asked = json.loads(json.dumps(task))
        worker.TASKS[asked["task"]](asked, Deadline.after(asked["until"] - time.time(), asked["repeat_seconds"]))
    yield from found


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    """One small benchmark: the machine by the process that the command line starts, the rest in this one."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    request = driver.Request(
        sizes=[SIZE],
        chains=[2],
        samplers=["pseudo_langevin"],
        seconds=300,
        repeat_seconds=1e-3,
        scaling=False,
        recording_changes=TINY_RUN,
    )
    # PyTorch takes longer to import than all else here; its rows have tests of their own.
    absent = [{"peer": peer, "reason": "left [out]"} for peer in ("torch", "posteriors")]
    by_process = driver._results
    with path.with_suffix(".txt").open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_absent", lambda: absent)
        patch.setattr(driver, "_results", lambda t: (by_process if t["task"] == "machine" else results_here)(t))
        patch.setattr(clock, "BLOCK_SECONDS", 0.01)
        driver.run(request, json_path=path, console=Console(file=file))
    return json.loads(path.read_text()) | {"printed": path.with_suffix(".txt").read_text()}


def test_a_row_holds_times_arithmetic_and_memory(measured):
    row = next(r for r in measured["rows"] if r["sampler"] == "pseudo_langevin" and r["num_chains"] == 2)
    assert row["num_weights"] == SIZE
    assert row["batch_size"] == 106
    assert row["running_chains"] == 2
    assert 0 < row["fastest_seconds_per_step"] <= row["seconds_per_step"] <= row["slowest_seconds_per_step"]
    assert row["seconds_per_chain_step"] == row["seconds_per_step"] / 2
    assert row["seconds_per_step_with_refresh"] == row["seconds_per_step"] + row["refresh_seconds"] / 5_000
    assert row["program_bytes"] > 10_575 * 100  # the data set alone
    assert row["compile_seconds"] > 0
    for name, rate in measured["machine"]["matrix_product_flops_per_second"].items():
        assert row["share_of_matrix_product_rate"][name] == pytest.approx(row["flops_per_second"] / rate)


def test_peers_are_measured_or_named_as_absent(measured):
    assert {r["implementation"] for r in measured["rows"]} == {"pseudolangevin", "blackjax"}
    assert "torch is absent: left [out]" in measured["printed"]
    assert {r["peer"] for r in measured["ratios"]} == {"blackjax sghmc", "blackjax sgld"}
    assert "times faster" in measured["printed"]
    assert not measured["skipped"]


def test_the_cost_of_recording_is_measured(measured):
    assert measured["recording"]["num_records"] == 3
    assert measured["recording"]["settings"]["num_examples_measured"] == 250
    assert measured["recording"]["observe_share"] > 0


def test_where_it_was_measured_is_said(measured):
    assert measured["machine"]["backend"] == jax.default_backend()
    assert measured["provenance"]["versions"]["jax"] == jax.__version__
    assert measured["provenance"]["settings"]["sizes"] == [SIZE]


def test_absent_peers_are_named(monkeypatch):
    monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    absent = driver._absent()
    assert [peer["peer"] for peer in absent] == ["torch", "posteriors"]
    assert "pip install" in absent[0]["reason"]
    tasks = driver._tasks(driver.Request(), {"torch", "posteriors", "blackjax"})
    assert {task["task"] for task, _ in tasks} == {"machine", "steps", "scaling", "recording"}
    assert all(case[0] == "pseudolangevin" for task, _ in tasks for case in task.get("cases", []))


def test_without_time_everything_is_skipped_with_a_reason():
    content = driver.run(driver.Request(seconds=1e-3), console=Console(quiet=True))
    assert not content["rows"]
    assert len(content["skipped"]) >= 5
    assert {row["reason"] for row in content["skipped"]} == {"no time was left"}


def test_a_process_that_fails_leaves_its_last_words(monkeypatch):
    monkeypatch.setattr(driver.sys, "executable", "false")
    request = driver.Request(sizes=[SIZE], recording=False, scaling=False, peers=False)
    reasons = [row["reason"] for row in driver.run(request, console=Console(quiet=True))["skipped"]]
    assert reasons == ["its process ended with 1: no message", "the machine's rate is not known"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--sizes", "11161"],
            "size 11161: the network 100, L1, 100, 10 has 201·L1 + 1110 weights; the nearest is 11160",
        ),
        (["--sizes", "many"], "--sizes many: give whole numbers"),
        (["--chains", "0"], "--chains: 0 is not a number of chains"),
        (["--samplers", "gibbs"], "--samplers: 'gibbs' is unknown; choose from pseudo_langevin"),
        (["--seconds", "-1"], "--seconds: -1 is not a time"),
    ],
)
def test_bad_requests_get_one_line(arguments, words, capsys):
    assert cli.run(["bench", *arguments]) == cli.BAD_INPUT
    assert words in " ".join(capsys.readouterr().err.split())


def test_tables_or_json_are_printed_and_a_file_is_written(monkeypatch, capsys, tmp_path):
    row = {"kind": "row", "num_weights": SIZE, "implementation": "pseudolangevin", "sampler": "adam", "num_chains": 2}
    row |= {"seconds_per_step": 1e-3, "seconds_per_gradient": 1e-3, "flops_per_second": 1e9}
    monkeypatch.setattr(driver, "_results", lambda task: iter([("row", row)] if task["task"] == "steps" else []))
    monkeypatch.setattr(driver, "ratios", lambda rows: [])
    command = ["bench", "--sizes", str(SIZE), "--no-peers", "--no-scaling", "--no-recording"]
    assert cli.run(command) == 0
    printed = capsys.readouterr()
    assert "time of a step" in printed.out
    assert not printed.err

    file = tmp_path / "new" / "bench.json"
    assert cli.run([*command, "--json", "--out", str(file)]) == 0
    printed = capsys.readouterr()
    content = json.loads(printed.out)  # and nothing else
    assert content["rows"][0]["seconds_per_step"] == 1e-3
    assert "time of a step" in printed.err
    assert json.loads(file.read_text()) == content

    assert cli.run([*command, "--json", str(file)]) == 2  # a flag, without a file
    assert "unexpected extra argument" in capsys.readouterr().err
    assert cli.run([*command, "--out", str(tmp_path)]) == 2
    assert f"error: --out {tmp_path}: is a folder; give a .json file" in capsys.readouterr().err


def test_the_problem_is_the_papers():
    for size in PUBLISHED_SIZES:
        shapes = jax.eval_shape(Problem(size).network().init, jax.random.key(0))
        assert trees.num_weights(shapes) == size
    problem = Problem(11_160)
    assert problem.batch_size == 558
    assert problem.temperature == pytest.approx(3e-5, rel=1e-4)
    # Forward 2·(100·50 + 50·100 + 100·10); backward twice that, without the gradient by the input.
    assert problem.gradient_flops == 3 * 22_000 - 10_000
    inputs, labels = problem.arrays()
    assert inputs.shape == (55_800, 100)
    means = np.stack([inputs[labels == c].mean(axis=0) for c in range(10)])
    assert np.abs(means) == pytest.approx(1 - 2 * 0.355, abs=5 / np.sqrt(5_000))
    assert nearest_size(1e5) == 100_203 + 201 * round((1e5 - 100_203) / 201)


def fake_row(size: int, step: float, sampler: str = "pseudo_langevin", implementation: str = rows.OWN, **more) -> dict:
    timing = Timing(step, step, step, 1)
    return rows.row(Problem(size), implementation, sampler, num_chains=1, timing=timing, steps_per_block=1, **more)


def test_ratios_count_the_refresh_and_compare_gradients():
    ours = fake_row(SIZE, 1.0, seconds_per_step_with_refresh=1.5)
    peer = fake_row(SIZE, 30.0, "sghmc", "blackjax", gradients_per_step=10)
    elsewhere = fake_row(11_160, 30.0, "sghmc", "blackjax")
    (ratio,) = rows.ratios([ours, peer, elsewhere])
    assert ratio["times_faster"] == pytest.approx(2.0)
    assert ratio["refresh_included"]


def test_the_largest_size_is_found_between_the_last_that_fits_and_the_first_that_does_not(monkeypatch, tmp_path):
    limit = 300_000

    def measure(problem, *_, **__):
        if problem.num_weights > limit:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return fake_row(problem.num_weights, 1e-12 * problem.num_weights**2, program_bytes=1)

    monkeypatch.setattr(own, "measure", measure)
    monkeypatch.setattr(Problem, "dataset", lambda self: None)
    found: dict[str, list] = {"row": [], "skipped": []}
    scaling.measure({}, Deadline.after(100), lambda kind, value: found[kind].append(value))
    summary = scaling.summary(found["row"], found["skipped"])
    assert 0.9 * limit < summary["largest_num_weights"] <= limit
    assert "memory" in summary["largest_is_limited_by"]
    assert summary["exponent"] == pytest.approx(1.0, abs=0.01)
    scaling.draw(summary, "a device", tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_eager_torch_takes_the_step_of_the_method(monkeypatch):
    torch = pytest.importorskip("torch")
    from pseudolangevin.bench import torch_peers

    problem = Problem(SIZE)
    inputs, labels = problem.arrays()
    task = torch_peers.Task(problem, torch.from_numpy(inputs), torch.from_numpy(labels).long())
    chain = torch_peers.EagerPseudoLangevin(task)

    def numbers(tree: dict) -> dict:
        return {name: jnp.asarray(tensor.numpy()) for name, tensor in tree.items()}

    dynamics = {"momentum_retention": DEFAULT_MOMENTUM_RETENTION, "time_step": 1.0}
    variance, mass = numbers(chain.variance), numbers(chain.masses)
    floored = masses.floor_variance(variance, 0.01)
    temperature = jnp.asarray(problem.temperature)
    wanted = masses.from_noise(floored, temperature, QUIET_TEMPERATURE_RATIO, **dynamics)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), mass, wanted)

    gradient = {name: torch.full_like(w, 1e-3) for name, w in chain.weights.items()}
    monkeypatch.setattr(task, "gradient", lambda weights: gradient)
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    before = numbers(chain.weights), numbers(chain.momenta)
    xi = jax.tree.map(jnp.ones_like, before[0])
    expected = integrator.step(*before, lambda _: numbers(gradient), xi, mass, variance, temperature, **dynamics)
    chain()
    for found, wanted in zip((chain.weights, chain.momenta), expected, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), numbers(found), wanted)


def test_torchs_potential_is_ours():
    torch = pytest.importorskip("torch")
    from pseudolangevin.bench import torch_peers

    problem = Problem(SIZE)
    inputs, labels = problem.arrays()
    task = torch_peers.Task(problem, torch.from_numpy(inputs), torch.from_numpy(labels).long())
    batch = inputs[:50], labels[:50]
    weights: dict = {"layer1": {}, "layer2": {}, "layer3": {}}
    for name, tensor in task.weights.items():
        layer, kind = name.split(".")
        weights[layer][kind] = jnp.asarray(tensor.numpy())
    theirs = task.energy(task.weights, (torch.from_numpy(batch[0]).float(), torch.from_numpy(batch[1]).long()))
    assert float(theirs) == pytest.approx(float(problem.potential().energy(weights, batch)), rel=1e-5)


def test_eager_torch_is_measured(monkeypatch):
    pytest.importorskip("torch")
    from pseudolangevin.bench import torch_peers

    monkeypatch.setattr(torch_peers.importlib.util, "find_spec", lambda name: None)  # posteriors, slow to import
    found = []
    monkeypatch.setattr(clock, "BLOCK_SECONDS", 0.01)
    torch_peers.measure_all(Problem(SIZE), Deadline.after(20, 1e-3), lambda kind, row: found.append((kind, row)))
    kind, row = found[0]
    assert (kind, row["sampler"], row["num_chains"]) == ("row", "pseudo_langevin", 1)
    assert row["seconds_per_gradient"] > 0
