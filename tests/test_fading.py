"""Where factors lie in [0, 1], kernels compose maps in fewer operations: where that is claimed, and that nothing else comes of it."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from rlscan.crosscheck.draw import FORMS, draw, variants
from rlscan.spec import coefficients
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays, Steps

CLAIMED = [recurrence for recurrence in RECURRENCES.values() if recurrence.fading is not None]
NUMBERS = (0.0, 1e-45, 1.1754943508222875e-38, 1e-30, 0.25, 0.99, 1.0)


@pytest.mark.parametrize("recurrence", CLAIMED, ids=lambda recurrence: recurrence.name)
@pytest.mark.parametrize("form", FORMS)
def test_where_it_is_claimed_factors_lie_within_0_and_1(recurrence, form):
    """Whatever the ratios are, and the flags."""
    claims = set()
    for seed, variant in enumerate(variants(recurrence, (form,))):
        arguments = draw(recurrence, variant, (4, 17), seed=seed)
        if "log_rhos" in arguments:
            arguments["log_rhos"][:3, :4] = [[-np.inf, np.inf, np.nan, 0.0], [300.0, -300.0, 1e-9, 5.0], [2.0, -2.0, 0.1, -0.1]]
        call = check(recurrence, arguments, NumPyArrays())
        claims.add(call.fades)
        if call.fades:
            with np.errstate(all="ignore"):
                beta = Steps(call, np.dtype(np.float64)).coefficients()[1]
            assert (((beta >= 0) & (beta <= 1)) | np.isnan(beta)).all()
    # arrays may hold anything, and so may a bar
    assert (True in claims) == (not recurrence.fading or form == "number")


def test_a_bar_above_1_is_a_factor_above_1():
    recurrence = RECURRENCES["vtrace"]
    arguments = draw(recurrence, variants(recurrence)[0], (2, 3))
    assert check(recurrence, arguments | {"c_bar": 1.0}, NumPyArrays()).fades
    assert not check(recurrence, arguments | {"c_bar": 1.5}, NumPyArrays()).fades
    assert not check(recurrence, arguments | {"c_bar": None}, NumPyArrays()).fades
    assert not check(dataclasses.replace(recurrence, fading=None), arguments, NumPyArrays()).fades


states = st.sampled_from((0.0, 1.0, -2.5, 3e38, np.inf, -np.inf, np.nan)) | st.floats(-1e6, 1e6, width=32)
factors = st.sampled_from((*NUMBERS, np.nan)) | st.floats(0, 1, width=32)


@hypothesis.given(states, factors, states, factors)
def test_the_same_map_comes_of_it(first_addend, first_factor, second_addend, second_factor):
    given_maps = [np.asarray(x, np.float32) for x in (first_addend, first_factor, second_addend, second_factor)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(coefficients.fading_then(*given_maps), coefficients.then(*given_maps))


@hypothesis.given(states, factors, states)
def test_the_same_state_comes_of_it(addend, factor, state):
    with np.errstate(all="ignore"):
        given = [np.asarray(x, np.float32) for x in (addend, factor, state)]
        one, other = (step(*given) for step in (coefficients.fading_step, coefficients.step))
    np.testing.assert_array_equal(one, other)
