"""The cases in crosscheck/data: all are loaded, every expected result is right, and every faulty variant is told from it.

The loops here are written from the definitions in plain Python, a row at a time, and share nothing with the reference.
"""

import inspect
import itertools
import json
import math

import numpy as np
import pytest

from rlscan.crosscheck import cases
from rlscan.spec import reference

CASES = {case.id: case for case in cases.load()}
EPS_FLOAT64 = float(np.finfo(np.float64).eps)
EPS_FLOAT32 = float(np.finfo(np.float32).eps)

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_function_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES.values() if not case.is_gradient])
each_gradient_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES.values() if case.is_gradient])


def next_values_of(row, valid_steps):
    """N_t at each valid step of a row, by section 3 of the semantics, None where there is none."""
    behind = {}
    for step, following in itertools.pairwise([*valid_steps, None]):
        if row.get("next_values") is not None:
            behind[step] = row["next_values"][step]
        elif row.get("final_values") is not None and row["truncated"][step]:
            behind[step] = row["final_values"][step]
        elif following is not None:
            behind[step] = None if row.get("values") is None else row["values"][following]
        else:
            behind[step] = row.get("bootstrap_value")
    return behind


def loop_of_one_row(op, row):
    """Results of one row, whose arguments are lists along time, by name."""
    num_steps = len(row["rewards"] if "rewards" in row else row["inputs"] if "inputs" in row else row["addend"])
    if op == "affine_scan":
        steps = range(num_steps)[::-1] if row.get("reverse") else range(num_steps)
        y, carry = [0.0] * num_steps, row.get("initial", 0.0)
        for t in steps:
            carry = y[t] = row["addend"][t] + (row["factor"][t] * carry if row["factor"][t] else 0.0)
        return {"y": y}

    valid = row.get("valid", [True] * num_steps)
    steps = [t for t in range(num_steps) if valid[t]]
    if op in ("eligibility_traces", "episodic_prefix_sum"):
        out, carry, factor = [np.zeros_like(row["inputs"][t]) for t in range(num_steps)], row.get("initial", 0.0), 1.0
        for t in steps:
            if "starts" in row and row["starts"][t]:
                carry = 0.0
            carry = out[t] = row["inputs"][t] + factor * carry
            if "starts" not in row and (row["terminated"][t] or row["truncated"][t]):
                carry = 0.0
            factor = row["gamma"][t] * row["lam"][t] if op == "eligibility_traces" else 1.0
        return {"traces" if op == "eligibility_traces" else "sums": out}

    gamma, rewards, terminated = row["gamma"], row["rewards"], row["terminated"]
    behind = {t: row["expected_next_q"][t] for t in steps} if op == "retrace" else next_values_of(row, steps)
    bootstrap = [None if gamma[t] == 0 or terminated[t] or behind[t] is None else gamma[t] * behind[t] for t in range(num_steps) if valid[t]]
    bootstrap = dict(zip(steps, bootstrap, strict=True))
    outputs = {name: [0.0] * num_steps for name in ("advantages", "returns", "vs", "pg_advantages", "targets")}
    following = num_steps
    for t in reversed(steps):
        ended = terminated[t] or row["truncated"][t]
        inside = following < num_steps and not ended and gamma[t] != 0
        if op in ("lambda_returns", "discounted_returns"):
            lam = row["lam"][t] if op == "lambda_returns" else 1.0
            # With the whole weight on the return, the value may be missing.
            value = bootstrap[t] or 0.0
            outputs["returns"][t] = rewards[t] + (gamma[t] * lam * outputs["returns"][following] + (1 - lam) * value if inside else value)
        else:
            base = row["q_values"][t] if op == "retrace" else row["values"][t]
            ratios = [math.exp(log_rho) for log_rho in row.get("log_rhos", [0.0] * num_steps)]
            error = rewards[t] + (bootstrap[t] or 0.0) - base
            if op == "gae":
                error += gamma[t] * row["lam"][t] * outputs["advantages"][following] if inside else 0.0
                outputs["advantages"][t], outputs["returns"][t] = error, error + base
            elif op == "vtrace":
                carried = gamma[t] * (outputs["vs"][following] - row["values"][following]) if inside else 0.0
                outputs["pg_advantages"][t] = min(row.get("pg_rho_bar", 1.0), ratios[t]) * (error + carried)
                outputs["vs"][t] = base + min(row.get("rho_bar", 1.0), ratios[t]) * error + row["lam"][t] * min(row.get("c_bar", 1.0), ratios[t]) * carried
            else:
                carried = gamma[t] * (outputs["targets"][following] - row["q_values"][following]) if inside else 0.0
                trace = row["lam"][following] * min(row.get("c_bar", 1.0), ratios[following]) if inside else 0.0
                outputs["targets"][t] = base + error + trace * carried
                behind_it = gamma[t] * outputs["targets"][following] if inside else bootstrap[t] or 0.0
                outputs["advantages"][t] = min(row.get("rho_bar", 1.0), ratios[t]) * (rewards[t] + behind_it - base)
        following = t
    return outputs


def loop(op, arguments):
    """The results of all rows, in the layout of the arguments. Axes of features lie behind that of time, in one row."""
    time_axis = arguments["time_axis"]
    steps = next(arguments[name] for name in ("rewards", "inputs", "addend") if name in arguments)
    features = op == "eligibility_traces" and steps.ndim > 1
    row_shape = () if features else tuple(np.delete(steps.shape, time_axis))
    num_steps = steps.shape[0] if features else steps.shape[time_axis]
    by_step = {"rewards", "values", "next_values", "final_values", "log_rhos", "q_values", "expected_next_q", "inputs", "addend", "factor"}
    by_step |= {"terminated", "truncated", "valid", "starts"}
    rows = {name: value if features else np.moveaxis(value, time_axis, -1) for name, value in arguments.items() if name in by_step}
    results = {}
    for index in np.ndindex(row_shape):
        row = {name: list(value[index]) for name, value in rows.items()}
        row.setdefault("truncated", [False] * num_steps)
        for name, default in (("gamma", 0.99), ("lam", 1.0 if op in ("vtrace", "retrace") else 0.95)):
            row[name] = list(np.broadcast_to(arguments.get(name, default), num_steps))
        for name in ("bootstrap_value", "initial"):
            if name in arguments:
                row[name] = arguments[name][index]
        row |= {name: arguments[name] for name in ("rho_bar", "c_bar", "pg_rho_bar", "reverse") if name in arguments}
        for name, result in loop_of_one_row(op, row).items():
            whole = results.setdefault(name, np.empty((*row_shape, *np.shape(result))))
            whole[index] = result
    return results if features else {name: np.moveaxis(result, -1, time_axis) for name, result in results.items()}


def test_there_are_42_cases():
    assert len(CASES) == len(cases.load()) == 42
    assert len([case for case in CASES.values() if case.is_gradient]) == 3


@each_case
def test_arguments_are_those_of_the_public_function(case):
    bound = inspect.signature(getattr(reference, case.op)).bind(**case.arguments)
    assert bound.arguments.keys() == case.arguments.keys()
    flags = {"terminated", "truncated", "valid", "starts"}
    for name, value in case.arguments.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == (np.bool_ if name in flags else np.float64), name
    assert len({"next_values", "bootstrap_value"} & case.arguments.keys()) <= 1


@each_function_case
def test_expected_is_what_the_loop_gives(case):
    assert cases.check(case, loop(case.op, case.arguments)) == []


@each_function_case
def test_expected_is_what_the_reference_gives(case):
    assert cases.check(case, getattr(reference, case.op)(**case.arguments)) == []


@each_gradient_case
def test_expected_gradients_are_those_of_the_loop(case):
    """By central differences, exact up to rounding: the outputs are linear in each single argument."""
    step = 1.0
    gradients = {}
    for expected in case.expected:
        name = expected.removeprefix("grad_")
        gradients[expected] = np.zeros_like(case.arguments[name])
        for index in np.ndindex(gradients[expected].shape):
            sums = []
            for sign in (1, -1):
                moved = case.arguments[name].copy()
                moved[index] += sign * step
                (out,) = [out for out in loop(case.op, case.arguments | {name: moved}).values() if np.any(out)]
                sums.append(float(np.sum(case.grad_out * out)))
            gradients[expected][index] = (sums[0] - sums[1]) / (2 * step)
    assert cases.check(case, gradients) == []


def whole(case, results):
    """Outputs of full length that are these results where the case looks."""
    if case.at is None:
        return {name: result.copy() for name, result in results.items()}
    outputs = {name: np.zeros(len(next(iter(case.arguments.values())))) for name in results}
    for name, result in results.items():
        outputs[name][case.at] = result
    return outputs


@each_case
def test_each_faulty_variant_differs_by_more_than_rounding(case):
    bound = cases.tolerance(case, EPS_FLOAT32)
    assert cases.recognise(case, whole(case, case.expected)) is None
    for variant, results in case.wrong.items():
        assert results.keys() == case.expected.keys(), variant
        # Twice the bound, for a backend's result in float32 has an error of its own, and so has the variant's.
        assert any(np.any(~(np.abs(results[name] - case.expected[name]) <= 2 * bound)) for name in results), variant
        assert cases.recognise(case, whole(case, results)) == variant
        assert cases.recognise(case, {name: result.astype(np.float32) for name, result in whole(case, results).items()}) == variant


@each_case
def test_expected_in_float32_is_within_the_bound_of_float32(case):
    assert cases.check(case, {name: result.astype(np.float32) for name, result in whole(case, case.expected).items()}) == []


@each_case
def test_a_result_that_is_a_little_off_is_noticed(case):
    """A comparison that nothing can fail says nothing: in float64 an error in the eighth digit has to show."""
    for name, wanted in case.expected.items():
        for number, place in enumerate(np.ndindex(wanted.shape)):
            off = whole(case, case.expected)
            off[name][place if case.at is None else case.at[number]] += 1e-8 * max(1.0, abs(wanted[place]))
            (mismatch,) = cases.check(case, off)
            assert mismatch.startswith(f"{name}[")


def test_check_says_what_is_wrong():
    case = CASES["gae-T1-N1"]
    right = {"advantages": np.array([[2.49]]), "returns": np.array([[2.99]])}
    assert cases.check(case, right) == []
    bound = cases.tolerance(case, EPS_FLOAT64)
    assert cases.check(case, right | {"returns": np.array([[np.nan]])}) == [f"returns[0, 0] is nan, wanted 2.99 within {bound:.1e}"]
    assert cases.check(case, right | {"returns": np.array([2.99])}) == ["returns: has shape (1,), wanted (1, 1)"]
    assert cases.check(case, {"advantages": right["advantages"]}) == ["returns: missing, the outputs are advantages"]


def test_long_rows_must_have_full_length():
    case = CASES["returns-bf16-ones"]
    assert cases.check(case, case.expected) == ["returns: has shape (4,), wanted (1000,)"]


def test_whole_numbers_are_demanded_exactly():
    """Sums of 4099 ones err by nothing in float32; a bound that grew with the length would let a lost element pass."""
    case = CASES["scan-carry-across-blocks"]
    sums = np.arange(1, 4100, dtype=np.float32)
    assert cases.check(case, sums) == []
    sums[4096:] -= 1
    assert len(cases.check(case, sums)) == 2


def test_ragged_lengths_are_the_mask():
    (record,) = [record for record in json.loads(cases.DATA.read_text()) if "lengths" in record["inputs"]]
    valid = CASES[record["id"]].arguments["valid"]
    np.testing.assert_array_equal(valid, np.arange(valid.shape[1]) < np.array(record["inputs"]["lengths"])[:, None])


def test_packed_rows_are_as_rows_on_their_own():
    """The case is one row that is cut where a sequence ends; each sequence by itself, with its own bootstrap, gives the same."""
    (record,) = [record for record in json.loads(cases.DATA.read_text()) if record["layout"] == "packed"]
    inputs, case = record["inputs"], CASES[record["id"]]
    advantages = []
    for number, (first, end) in enumerate(itertools.pairwise(inputs["cu_seqlens"])):
        arguments = {name: case.arguments[name][first:end] for name in ("rewards", "values", "terminated")}
        arguments |= {"bootstrap_value": np.array(inputs["bootstrap_value"][number]), "gamma": 0.99, "lam": 0.95, "time_axis": -1}
        advantages.extend(loop("gae", arguments)["advantages"])
    np.testing.assert_array_equal(advantages, loop("gae", case.arguments)["advantages"])


def test_stated_results_of_the_sources_are_the_expected_ones():
    """Where a report states numbers itself, they are ours."""
    stated = 0
    for record in json.loads(cases.DATA.read_text()):
        case = CASES[record["id"]]
        for entry in record.get("stated_by_source", ()):
            expected = next(iter(case.expected.values())) if case.op == "affine_scan" else case.expected[entry["output"]]
            assert expected.flat[entry["index"]] == pytest.approx(entry["value"], abs=cases.tolerance(case, EPS_FLOAT64))
            stated += 1
    assert stated > 20
