"""Chains are those that were recorded: a change of the dynamics must be intended."""

import json

import numpy as np
import pytest

from tests.same_chains import FIXTURE, run, run_in_double_precision

RECORDED = json.loads(FIXTURE.read_text())


@pytest.mark.parametrize("name", list(RECORDED))
def test_chains_are_those_recorded(name):
    double = name.endswith(", float64")
    found = run_in_double_precision(name.removesuffix(", float64")) if double else run(name)
    recorded = RECORDED[name]
    assert set(found["trace"]) == set(recorded["trace"])
    for variable, values in recorded["trace"].items():
        np.testing.assert_allclose(found["trace"][variable], values, rtol=1e-6, atol=1e-7, err_msg=variable)
    np.testing.assert_allclose(found["weights"], recorded["weights"], rtol=1e-6, atol=1e-6)
