"""The reproductions that compare speeds, on synthetic measurements: rows, verdicts, pictures."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from pseudolangevin import paper
from pseudolangevin.paper import performance, race, spins
from pseudolangevin.tuning.measure import Estimate
from tests.tuning import synthetic


@pytest.fixture
def instant(monkeypatch):
    """Samplers that move as fast as their batches are large, and hybrid Monte Carlo slowly; nothing is run."""

    def measure(sampler, weights, **_):
        speed = 0.1 if "num_leapfrog_steps" in sampler.settings else 1e-2 * sampler.settings["batch_size"]
        speed *= sampler.settings.get("temperature_ratio", 0.001)
        return synthetic.measured(sampler, speed * sampler.settings.get("num_leapfrog_steps", 1))

    def tune(sampler, weights, **arguments):
        report = arguments["report"]
        report("a candidate")
        if sampler.name == "hybrid_monte_carlo":
            candidates = [
                synthetic.tried(0.1, {"num_leapfrog_steps": steps, "time_step": 0.1}, bias=0.0, milliseconds=steps)
                for steps in arguments["num_leapfrog_steps"]
            ]
        else:
            candidates = [synthetic.tried(0.5, {"batch_size": size}) for size in arguments["batch_sizes"]]
        return synthetic.tuned(sampler, candidates)

    monkeypatch.setattr(race, "measure", measure)
    monkeypatch.setattr(
        race, "_with_raised_masses", lambda course, sampler, weights, seconds: measure(sampler, weights)
    )
    monkeypatch.setattr(performance, "tune", tune)
    monkeypatch.setattr(race, "spin_task", lambda hidden, **_: spins.spin_task(hidden, num_train=500))
    monkeypatch.setattr(race, "quick_start", lambda task, **_: task.network.init(jax.random.key(0)))


@pytest.mark.parametrize("name", ["performance", "variants", "batch-size", "suboptimal"])
def test_rows_and_pictures(name, instant, tmp_path, capsys):
    assert paper.reproduce(name, "smoke", tmp_path) in (0, 1)
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["name"] == name
    for line in content["rows"]:
        assert set(line) == {"quantity", "published", "measured", "standard_error", "tolerance", "passed"}
        assert np.isfinite(line["measured"])
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "D*/N" in capsys.readouterr().out
    assert any("at least" in line["quantity"] for line in content["rows"])


def test_several_run_in_turn(instant, tmp_path, capsys):
    assert paper.reproduce(["variants", "batch-size"], "smoke", tmp_path) in (0, 1)
    assert {path.name for path in tmp_path.glob("*.json")} == {"variants.json", "batch-size.json"}
    assert capsys.readouterr().out.count("batch-size.json") == 1


def test_pseudo_langevin_is_measured_with_masses_of_many_places():
    task = spins.spin_task(3, num_train=500)
    course = race.Course(3, 1e-3, 0, 1, 0.05, 0.05, 500)
    sampler = race.pseudo_langevin(task.potential, task.train, batch_size=50, refresh_every=200, reset_probability=0.0)
    run = race.run_one(course, sampler, task.network.init(jax.random.key(0)))
    assert not run.stopped
    assert run.diffusion is not None
    assert run.diffusion.steps[0] == 100
    # Measured ten times, a hundred steps apart, before the clock runs; the first is the only reset.
    assert int(run.states.num_refreshes[0]) >= 10
    assert int(run.states.num_resets[0]) == 1
    stirred = performance.stir(replace(course, temperature=1e-5), task, task.network.init(jax.random.key(0)))
    assert all(np.shape(leaf)[:2] == (1, 1) and np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(stirred))


@pytest.mark.usefixtures("instant")
def test_the_start_of_a_race_is_made_with_masses_that_are_only_raised():
    task = spins.spin_task(3, num_train=500)
    course = race.Course(3, 1e-3, 0, 1, 0.05, 0.05, 500)
    made = race.equilibrate(course, task, task.network.init(jax.random.key(0)))
    assert made.sampler.settings["reset_probability"] == 0


def outcome(leapfrog_steps, langevin=0.5, hybrid=0.1, squared_norm=1e9):
    case = replace(performance.CASES["paper"][2], leapfrog_steps=leapfrog_steps)
    task = spins.spin_task(50, num_train=10)
    sampler = race.pseudo_langevin(task.potential, task.train, batch_size=5)
    candidates = [
        synthetic.tried(hybrid, {"num_leapfrog_steps": steps, "time_step": 0.1}, milliseconds=steps)
        for steps in leapfrog_steps
    ]
    return performance.Outcome(
        case,
        11_160,
        synthetic.measured(sampler, 0.05),
        synthetic.tuned(sampler, [synthetic.tried(langevin, {"batch_size": 5}, bias=0.015)]),
        synthetic.tuned(sampler, candidates),
        squared_norm,
        {},
    )


def rows(made, scale="paper"):
    return {r.quantity: r for r in performance.rows_of(made, scale)}


def test_gains_are_measured_against_the_best_hybrid_monte_carlo():
    found = rows(outcome((100, 1_000)))
    gain = found["D* at N = 11160, T = 1e-06, pL over hMC, both tuned (at least 1.4)"]
    assert gain.measured == pytest.approx(5.0)
    assert gain.passed
    assert not rows(outcome((100, 1_000), langevin=0.13))[gain.quantity].passed
    published = found["D* at N = 11160, T = 1e-06, pL over hMC, both as in the paper"].published
    assert published == pytest.approx(1.79e-5 / 2.12e-4)
    assert found["seconds per hMC move of 1000 steps at N = 11160, T = 1e-06"].measured == pytest.approx(1.0)
    assert found["bias of loss at N = 11160, T = 1e-06, pL, tuned"].passed


def test_moves_that_were_not_measured_count_with_their_upper_bound():
    # Steps of 1 ms and δt = 0.1 at T = 1e-6: a free flight of 1000 steps goes 1e-6·100² in one second.
    made = outcome((5, 10))
    assert made.hybrid_move == (pytest.approx(0.01), pytest.approx(1.0), False)
    assert made.best_hybrid == pytest.approx(0.1)  # that of 10 steps, which was measured
    # Across the sphere of |w|² = 2.79 it is 4·2.79/11160 = 0.001 at most, which the flight reaches at 306 steps.
    near = outcome((5, 10), hybrid=1e-4, squared_norm=2.79)
    assert near.hybrid_move[0] == pytest.approx(0.001)
    assert near.best_hybrid == pytest.approx(0.001 / 0.306, rel=0.1)
    made = outcome((5, 10), langevin=0.13)
    found = rows(made)
    (gain,) = [r for quantity, r in found.items() if "both tuned, lower bound (at least 1.4)" in quantity]
    assert not gain.passed
    assert any("upper bound" in quantity for quantity in found)
    assert any("extrapolated" in quantity for quantity in found)
    # Where one length alone was measured, its ends must not pass for steps: 1 ms is three gradients.
    assert outcome((1,)).hybrid_move[:2] == (pytest.approx(0.03), pytest.approx(1 / 3))


def test_a_long_flight_goes_no_further_than_its_pieces():
    # Moves of 100 steps, 0.1 s each, have d² = 1.25e-5 with half of them accepted: flights of 0.005, where a free one
    # of δt = 0.1 at T = 1e-6 would be 0.01.
    made = outcome((10, 100), hybrid=1.25e-4)
    longest = replace(made.hybrid.tried[-1], acceptance=Estimate(0.5, 0.0, 10.0), standard_error=0.0)

    def after(move, squared_norm=1e9):
        hybrid = replace(made.hybrid, tried=(made.hybrid.tried[0], move))
        return replace(made, hybrid=hybrid, squared_norm=squared_norm)

    # All moves of a smaller δt might be accepted and go as far.
    assert after(longest).hybrid_move[0] == pytest.approx(0.05**2, rel=1e-3)
    # In between, pieces and single steps: one piece and 30 steps, or two pieces and back by 10.
    assert after(longest)._most(130) == pytest.approx((0.005 + 0.003) ** 2 / 0.13, rel=1e-3)
    assert after(longest)._most(190) == pytest.approx((2 * 0.005 + 0.001) ** 2 / 0.19, rel=1e-3)
    # Where none was accepted nothing is known but the free flight.
    nowhere = replace(longest, acceptance=Estimate(0.0, 0.0, 3.0), relative_diffusion=0.0)
    assert after(nowhere).hybrid_move[0] == pytest.approx(0.2404 / 1.386 * 0.01, rel=1e-3)
    # What is measured counts with one standard error more: of d², 44 %; of the acceptance, to 0.9.
    unsure = replace(longest, acceptance=Estimate(0.8, 0.1, 16.0), standard_error=5.5e-5)
    assert after(unsure).hybrid_move[0] == pytest.approx(0.2404 / 0.08886 * 1.44 * 100 * 1.25e-5 / 0.8, rel=1e-3)
    # Half of free flights accepted: another δt gets at most 0.2404/erfcinv(0.5) = 0.504 of it.
    free = replace(longest, relative_diffusion=5e-4)
    assert after(free).hybrid_move[0] == pytest.approx(0.504 * 0.01, rel=1e-3)
    # All accepted: no δt is too large, and only the sphere ends the flight.
    every = replace(longest, acceptance=Estimate(0.97, 0.04, 16.0))
    assert after(every, squared_norm=2.79).hybrid_move[0] == pytest.approx(0.001)


def test_distances_of_equilibrium_are_shown_and_not_judged():
    (judged,) = [q for q in rows(outcome((100, 1_000))) if q.startswith("d² at")]
    assert judged.endswith("after 0.1 s (at least 1)")
    made = outcome((100, 1_000))
    curve = made.langevin.best.diffusion
    arrived = replace(made.langevin.best, diffusion=replace(curve, displacement=np.full_like(curve.displacement, 1e-4)))
    made = replace(made, langevin=replace(made.langevin, best=arrived))
    (shown,) = [r for q, r in rows(made).items() if q.startswith("d² at")]
    assert shown.quantity.endswith("by when the start is forgotten")
    assert shown.measured < 1
    assert shown.passed


def test_moves_that_were_all_rejected_pass_nothing():
    found = rows(outcome((100, 1_000), hybrid=0.0))
    gain = found["D* at N = 11160, T = 1e-06, pL over hMC, both tuned (at least 1.4)"]
    assert np.isnan(gain.measured)
    assert not gain.passed


def test_a_cached_start_is_used_where_it_fits(tmp_path):
    task = spins.spin_task(3, num_train=10)
    cache = tmp_path / "starts.npz"
    assert spins.cached_start(cache, task) is None
    weights = task.network.init(jax.random.key(0))
    np.savez(cache, *[np.stack([leaf, leaf + 1])[None] for leaf in jax.tree.leaves(weights)])
    jax.tree.map(np.testing.assert_array_equal, spins.cached_start(cache, task), weights)
    with pytest.raises(ValueError, match="another network"):
        spins.cached_start(cache, spins.spin_task(4, num_train=10))
