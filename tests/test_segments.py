"""Ways between stops are cut into segments of few lengths."""

import math
from itertools import pairwise

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import pseudolangevin as pl
from pseudolangevin import chains
from pseudolangevin.segments import Segments


@given(intervals=st.lists(st.integers(1, 10_000), min_size=1, max_size=3), end=st.integers(1, 100_000))
def test_all_ways_of_a_run_are_covered_by_few_lengths(intervals, end):
    segments = Segments.of(intervals, longest=end)
    met = [i for i in intervals if i < end] or [end]
    stops = sorted({0, end, *(k * i for i in met for k in range(min(200, end // i) + 1))})
    ways = [late - early for early, late in pairwise(stops) if late - early <= min(met)]
    cuts = [segments.cut(way) for way in ways]
    assert all(sum(cut) == way and min(cut) > 0 for cut, way in zip(cuts, ways, strict=True))
    lengths = {length for cut in cuts for length in cut}
    # Doublings of the unit, the whole, and a rest at the end of the run.
    assert len(lengths) <= math.log2(segments.whole / segments.unit) + 3


def test_the_usual_way_is_one_segment():
    assert Segments.of([15_000, 625], longest=600_000).cut(625) == [625]
    assert Segments.of([1_000, 625], longest=100_000) == Segments(unit=125, whole=625)
    assert Segments.of([1_000, 625], longest=100_000).cut(375) == [250, 125]
    assert Segments.of([123], longest=12_345).cut(45) == [45]  # to the end of the run
    assert Segments.of([123, 625], longest=12_345).cut(45) == [32, 8, 4, 1]
    assert Segments.of([2**31 - 1], longest=70).cut(70) == [70]
    # An interval as long as the run stops nothing before its end.
    assert Segments.of([2**31 - 1, 100, 625], longest=2**31 - 1) == Segments(unit=25, whole=100)
    assert Segments.of([2_048, 625], longest=2_048).cut(173) == [173]
    assert Segments.of([1_234, 500], longest=1_234).cut(234) == [234]


def test_intervals_that_do_not_divide_each_other_compile_few_programs(small_task, monkeypatch):
    advance, lengths = chains._advance, []

    def counted(*arguments, num_steps):
        lengths.append(num_steps)
        return advance(*arguments, num_steps=num_steps)

    monkeypatch.setattr(chains, "_advance", counted)
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, batch_size=50, refresh_every=40)
    result = pl.sample(
        sampler, small_task.weights, temperatures=[1e-3], num_steps=437, record_every=23, key=0, progress=False
    )
    assert sum(lengths) == 437
    assert set(lengths) <= {1, 2, 4, 5}  # pieces of five steps, a warm-up's shortest interval
    # The chain is the one that stops nowhere else, to rounding.
    monkeypatch.setattr(Segments, "cut", lambda _, length: [length])
    uncut = pl.sample(
        sampler, small_task.weights, temperatures=[1e-3], num_steps=437, record_every=23, key=0, progress=False
    )
    np.testing.assert_allclose(result.trace.loss, uncut.trace.loss, rtol=1e-4)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-4), result.weights, uncut.weights)
    )
