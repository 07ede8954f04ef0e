"""Chains are those that were recorded: a change of the dynamics must be intended."""

import json

import numpy as np
import pytest

from tests.same_chains import FIXTURE, run, run_in_double_precision

RECORDED = json.loads(FIXTURE.read_text())


def compare(found, recorded):
    assert set(found["trace"]) == set(recorded["trace"])
    for variable, values in recorded["trace"].items():
        np.testing.assert_allclose(found["trace"][variable], values, rtol=1e-6, atol=1e-9, err_msg=variable)
    np.testing.assert_allclose(found["weights"], recorded["weights"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RECORDED["float32"])
def test_chains_in_single_precision_are_those_recorded(name):
    compare(run(name), RECORDED["float32"][name])


@pytest.mark.parametrize("name", ["balanced_langevin", "pseudo_langevin"])
def test_chains_in_double_precision_are_those_recorded(name):
    compare(run_in_double_precision(name), RECORDED["float64"][name])
