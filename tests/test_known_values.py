"""Results worked out by hand, one table for every implementation. All numbers are short binary fractions, and the sums are in view."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.draw import defaults
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.bound import distance
from rlscan.spec.recurrences import RECURRENCES

NAN = math.nan
LOG_2, LOG_4 = math.log(2), math.log(4)


@dataclasses.dataclass(frozen=True)
class Known:
    """One row of T steps; what has no time is one number (or one for each feature)."""

    id: str
    op: str
    arguments: dict[str, Any]
    expected: dict[str, list]


def known(op: str, id: str, arguments: dict[str, Any], **expected: Any) -> Known:
    return Known(f"{op}-{id}", op, arguments, expected)


def over(denominator: int, *numerators: float) -> list[float]:
    return [numerator if isinstance(numerator, float) else float(Fraction(numerator, denominator)) for numerator in numerators]


# The same window everywhere, so that the operations can be compared with each other.
GAMMA = {"gamma": 0.5}
HALVES = {"gamma": 0.5, "lam": 0.5}
OPEN = {"terminated": [0, 0, 0]}
VALUES = {"rewards": [1, 2, 3], "values": [4, 2, 6], "bootstrap_value": 8}
Q = {"rewards": [1, 2, 3], "q_values": [4, 2, 6], "expected_next_q": [2, 6, 8]}
CUT = {"terminated": [0, 0, 0], "truncated": [0, 1, 0], "final_values": [NAN, 10, NAN]}
BOTH = {"terminated": [0, 1, 0], "truncated": [0, 1, 0], "final_values": [NAN, NAN, NAN]}
GAP = {"terminated": [0, 0, 0], "valid": [1, 0, 1]}
# The episode is cut with step 0; row 1 is the reset, and its value, 2, is that of the final observation.
RESET = {"terminated": [0, 0, 0], "truncated": [1, 0, 0], "autoreset": "next_step", "rewards": [1, NAN, 3]}

GAE = [
    # δ_0 = 1 + 2/2 - 4 = -2    δ_1 = 2 + 6/2 - 2 = 3     δ_2 = 3 + 8/2 - 6 = 1
    # A_2 = 1                   A_1 = 3 + 1/4 = 13/4      A_0 = -2 + 13/16 = -19/16
    known("gae", "window", VALUES | OPEN | HALVES, advantages=over(16, -19, 52, 16), returns=over(16, 45, 84, 112)),
    # The same window, with the successors' values said one by one, and cut at its last step, where nothing is carried anyway.
    known(
        "gae",
        "next values",
        {"rewards": [1, 2, 3], "values": [4, 2, 6], "next_values": [2, 6, 8], "terminated": [0, 0, 0], "truncated": [0, 0, 1]} | HALVES,
        advantages=over(16, -19, 52, 16),
        returns=over(16, 45, 84, 112),
    ),
    # δ_1 = 2 + 10/2 - 2 = 5, nothing comes from behind: A_1 = 5, A_0 = -2 + 5/4
    known("gae", "truncated inside", VALUES | CUT | HALVES, advantages=over(4, -3, 20, 4), returns=over(4, 13, 28, 28)),
    # δ_1 = 2 - 2 = 0 = A_1, A_0 = -2
    known("gae", "terminated inside", VALUES | {"terminated": [0, 1, 0]} | HALVES, advantages=[-2, 0, 1], returns=[2, 2, 7]),
    known("gae", "both flags", VALUES | BOTH | HALVES, advantages=[-2, 0, 1], returns=[2, 2, 7]),
    known("gae", "terminated at the end", VALUES | {"terminated": [0, 0, 1], "bootstrap_value": NAN} | HALVES,
          # δ_2 = 3 - 6 = -3, A_1 = 3 - 3/4 = 9/4, A_0 = -2 + 9/16 = -23/16
          advantages=over(16, -23, 36, -48), returns=over(16, 41, 68, 48)),
    # Without step 1: δ_0 = 1 + 6/2 - 4 = 0, A_0 = 0 + 1/4
    known("gae", "valid", VALUES | GAP | HALVES | {"values": [4, NAN, 6]}, advantages=over(4, 1, 0, 4), returns=over(4, 17, 0, 28)),
    # δ_0 = 1 + 2/2 - 4 = -2 = A_0, which row 2 does not reach
    known("gae", "next-step autoreset", VALUES | RESET | HALVES, advantages=[-2, 0, 1], returns=[2, 0, 7]),
    known("gae", "next-step autoreset, valid given", VALUES | RESET | HALVES | {"valid": [1, 0, 1]}, advantages=[-2, 0, 1], returns=[2, 0, 7]),
    # δ_0 = 1 - 4 = -3 = A_0; row 1 is a reset too
    known("gae", "next-step autoreset, terminated", VALUES | RESET | HALVES | {"terminated": [1, 0, 0], "truncated": [0, 0, 0], "values": [4, NAN, 6]},
          advantages=[-3, 0, 1], returns=[1, 0, 7]),
    known("gae", "next-step autoreset, cut at the end", VALUES | RESET | HALVES | {"truncated": [0, 0, 1], "rewards": [1, 2, 3]},
          advantages=over(16, -19, 52, 16), returns=over(16, 45, 84, 112)),
    # δ_0 = -2, δ_1 = 2 + 6 - 2 = 6, δ_2 = 3 + 8/4 - 6 = -1;  A_1 = 6 - 1/4 = 23/4, A_0 = -2 + 23/16 = -9/16
    known("gae", "gamma and lam of each step", VALUES | OPEN | {"gamma": [0.5, 1, 0.25], "lam": [0.5, 0.25, 1]},
          advantages=over(16, -9, 92, -16), returns=over(16, 55, 124, 80)),
    # A discount of 0 hides all that is behind it.
    known("gae", "no discount", VALUES | OPEN | {"values": [4, 2, NAN], "gamma": [0.5, 0, 0.5], "lam": 0.5}, advantages=[-2, 0, NAN], returns=[2, 2, NAN]),
]  # fmt: skip

ON_POLICY = {"log_rhos": [0, 0, 0]}
VTRACE = [
    # w = 2, 1/2, 1;  ρ = c = 1, 1/2, 1;  δ = -2, 3/2, 1
    # D_2 = 1           D_1 = 3/2 + 1/2 * 1/2 = 7/4           D_0 = -2 + 1/2 * 7/4 = -9/8
    # pg_2 = 3 + 8/2 - 6 = 1   pg_1 = 1/2 (2 + (6 + 1)/2 - 2) = 7/4   pg_0 = 1 + (2 + 7/4)/2 - 4 = -9/8
    known("vtrace", "window", VALUES | OPEN | GAMMA | {"log_rhos": [LOG_2, -LOG_2, 0]}, vs=over(8, 23, 30, 56), pg_advantages=over(8, -9, 14, 8)),
    # w = 4, 1/2, 1;  ρ = 2, 1/2, 1;  c = 1/2, 1/2, 1/2;  δ = -4, 3/2, 1
    # D_1 = 3/2 + 1/4 = 7/4    D_0 = -4 + 1/4 * 7/4 = -57/16    pg_0 = 4 * -9/8 = -9/2
    known("vtrace", "three bars", VALUES | OPEN | GAMMA | {"log_rhos": [LOG_4, -LOG_2, 0], "rho_bar": 2.0, "c_bar": 0.5, "pg_rho_bar": None},
          vs=over(16, 7, 60, 112), pg_advantages=over(4, -18, 7, 4)),
    # w = 4, 1/2, 1;  ρ = 1/2, 1/2, 1/2;  c = 2, 1/2, 1;  δ = -1, 3/2, 1/2
    # D_1 = 3/2 + 1/4 * 1/2 = 13/8    D_0 = -1 + 13/8 = 5/8
    # pg_1 = 1/2 (2 + (6 + 1/2)/2 - 2) = 13/8    pg_0 = 2 (1 + (2 + 13/8)/2 - 4) = -19/8
    known("vtrace", "three other bars", VALUES | OPEN | GAMMA | {"log_rhos": [LOG_4, -LOG_2, 0], "rho_bar": 0.5, "c_bar": 2, "pg_rho_bar": 2},
          vs=over(8, 37, 29, 52), pg_advantages=over(8, -19, 13, 8)),
    # δ_1 = 2 + 10/2 - 2 = 5 = D_1, D_0 = -2 + 5/2;  pg_1 = 2 + 10/2 - 2, of the value it was cut at and not of vs_2
    known("vtrace", "truncated inside", VALUES | CUT | GAMMA | ON_POLICY, vs=over(2, 9, 14, 14), pg_advantages=over(2, 1, 10, 2)),
    known("vtrace", "both flags", VALUES | BOTH | GAMMA | ON_POLICY, vs=[2, 2, 7], pg_advantages=[-2, 0, 1]),
    # lam is in c alone: D is the A of gae, but pg_1 = 2 + (6 + 1)/2 - 2 = 7/2, pg_0 = 1 + (2 + 13/4)/2 - 4 = -3/8
    known("vtrace", "lam", VALUES | OPEN | HALVES | ON_POLICY, vs=over(16, 45, 84, 112), pg_advantages=over(8, -3, 28, 8)),
    # Without step 1: δ_0 = 0, D_0 = 1/2;  pg_0 = 1 + (6 + 1)/2 - 4 = 1/2
    known("vtrace", "valid", VALUES | GAP | GAMMA | {"log_rhos": [0, NAN, 0]}, vs=over(2, 9, 0, 14), pg_advantages=over(2, 1, 0, 2)),
    known("vtrace", "next-step autoreset", VALUES | RESET | GAMMA | ON_POLICY, vs=[2, 0, 7], pg_advantages=[-2, 0, 1]),
    # rho and c from the clip would hide a NaN that is not clipped
    known("vtrace", "NaN ratio", VALUES | OPEN | GAMMA | {"log_rhos": [0, NAN, 0]}, vs=[NAN, NAN, 7], pg_advantages=[NAN, NAN, 1]),
]  # fmt: skip

RATIOS = {"log_rhos": [LOG_4, -LOG_2, LOG_2]}
RETRACE = [
    # w = 4, 1/2, 2;  c = 1, 1/2, 1;  δ_0 = 1 + 2/2 - 4 = -2, δ_1 = 2 + 6/2 - 2 = 3, δ_2 = 3 + 8/2 - 6 = 1
    # D_2 = 1              D_1 = 3 + 1/2 c_2 * 1 = 7/2      D_0 = -2 + 1/2 c_1 * 7/2 = -9/8
    # adv_2 = 1            adv_1 = 1/2 (2 + (6 + 1)/2 - 2) = 7/4     adv_0 = 1 + (2 + 7/2)/2 - 4 = -1/4
    known("retrace", "window", Q | OPEN | GAMMA | RATIOS, targets=over(8, 23, 44, 56), advantages=over(4, -1, 7, 4)),
    # E = 0/2 + 4/2, 4/2 + 8/2, 8: as before; an action that is never taken has no value
    known("retrace", "policy and action values",
          {"rewards": [1, 2, 3], "q_values": [4, 2, 6], "next_q_values": [[0, 4], [4, 8], [8, NAN]], "next_policy": [[0.5, 0.5], [0.5, 0.5], [1, 0]]}
          | OPEN | GAMMA | RATIOS,
          targets=over(8, 23, 44, 56), advantages=over(4, -1, 7, 4)),
    # D_1 = 3, D_0 = -2 + 1/4 * 3 = -5/4;  adv_1 = 1/2 (2 + 6/2 - 2) = 3/2 from E, adv_0 = 1 + (2 + 3)/2 - 4 = -1/2
    known("retrace", "truncated inside", Q | {"terminated": [0, 0, 0], "truncated": [0, 1, 0]} | GAMMA | RATIOS,
          targets=over(4, 11, 20, 28), advantages=over(2, -1, 3, 2)),
    known("retrace", "both flags", Q | {"terminated": [0, 1, 0], "truncated": [0, 1, 0], "expected_next_q": [2, NAN, 8]} | GAMMA | RATIOS,
          targets=[2, 2, 7], advantages=[-2, 0, 1]),
    # c = .., 1/4, 1/2: D_1 = 3 + 1/4 = 13/4, D_0 = -2 + 1/8 * 13/4 = -51/32;  adv_0 = 1 + (2 + 13/4)/2 - 4 = -3/8
    known("retrace", "lam", Q | OPEN | GAMMA | RATIOS | {"lam": [NAN, 0.5, 0.5]}, targets=over(32, 77, 168, 224), advantages=over(8, -3, 14, 8)),
    # c = .., 1/2, 2: D_1 = 3 + 1 = 4, D_0 = -2 + 1/4 * 4 = -1;  adv_2 = 2 * 1, adv_0 = 4 (1 + 6/2 - 4) = 0
    known("retrace", "no bars", Q | OPEN | GAMMA | RATIOS | {"c_bar": None, "rho_bar": None}, targets=[3, 6, 7], advantages=over(4, 0, 7, 8)),
    # c = .., 1/2, 3/2: D_1 = 3 + 3/4 = 15/4, D_0 = -2 + 1/4 * 15/4 = -17/16;  adv_2 = 2 * 1, adv_0 = 3 (1 + (2 + 15/4)/2 - 4) = -3/8
    known("retrace", "other bars", Q | OPEN | GAMMA | RATIOS | {"c_bar": 1.5, "rho_bar": 3}, targets=over(16, 47, 92, 112), advantages=over(8, -3, 14, 16)),
    # Without step 1: D_0 = -2 + 1/2 c_2 * 1 = -3/2;  adv_0 = 1 + (6 + 1)/2 - 4 = 1/2
    known("retrace", "valid", Q | GAP | GAMMA | {"log_rhos": [LOG_4, NAN, LOG_2]}, targets=over(2, 5, 0, 14), advantages=over(2, 1, 0, 2)),
]  # fmt: skip

SUCCESSORS = {"rewards": [1, 2, 3], "values": [NAN, 2, 6], "bootstrap_value": 8}
LAMBDA_RETURNS = [
    # G_2 = 3 + 8/2 = 7    G_1 = 2 + (6/2 + 7/2)/2 = 21/4    G_0 = 1 + (2/2 + 21/8)/2 = 45/16: the returns of gae
    known("lambda_returns", "window", SUCCESSORS | OPEN | HALVES, returns=over(16, 45, 84, 112)),
    # G_1 = 2 + 10/2 = 7, with the whole weight on the value;  G_0 = 1 + (2/2 + 7/2)/2 = 13/4
    known("lambda_returns", "truncated inside", SUCCESSORS | CUT | HALVES, returns=over(4, 13, 28, 28)),
    known("lambda_returns", "terminated inside", SUCCESSORS | {"terminated": [0, 1, 0]} | HALVES, returns=[2, 2, 7]),
    known("lambda_returns", "both flags", SUCCESSORS | BOTH | HALVES, returns=[2, 2, 7]),
    # G_1 = 2 + 7/2 = 11/2, G_0 = 1 + 11/4: no value inside the window is read
    known("lambda_returns", "lam 1", SUCCESSORS | OPEN | GAMMA | {"lam": 1.0, "values": [NAN, NAN, NAN]}, returns=over(4, 15, 22, 28)),
    known("lambda_returns", "lam 0", SUCCESSORS | OPEN | GAMMA | {"lam": 0.0}, returns=[2, 5, 7]),
    # Without step 1: G_0 = 1 + (6/2 + 7/2)/2 = 17/4
    known("lambda_returns", "valid", SUCCESSORS | GAP | HALVES, returns=over(4, 17, 0, 28)),
    # The last valid step is the window's end: G_1 = 2 + 8/2 = 6, G_0 = 1 + (2/2 + 6/2)/2 = 3
    known("lambda_returns", "valid but for the last", SUCCESSORS | OPEN | HALVES | {"valid": [1, 1, 0], "values": [NAN, 2, NAN]}, returns=[3, 6, 0]),
    known("lambda_returns", "next-step autoreset", SUCCESSORS | RESET | HALVES, returns=[2, 0, 7]),
    known("lambda_returns", "next values", {"rewards": [1, 2, 3], "next_values": [2, 6, 8]} | OPEN | HALVES, returns=over(16, 45, 84, 112)),
]

REWARDS = {"rewards": [1, 2, 3]}
DISCOUNTED_RETURNS = [
    # G_2 = 3, G_1 = 2 + 3/2, G_0 = 1 + 7/4
    known("discounted_returns", "nothing behind", REWARDS | OPEN | GAMMA, returns=over(4, 11, 14, 12)),
    # G_2 = 3 + 8/2 = 7, G_1 = 2 + 7/2, G_0 = 1 + 11/4
    known("discounted_returns", "bootstrap", REWARDS | OPEN | GAMMA | {"bootstrap_value": 8}, returns=over(4, 15, 22, 28)),
    # G_1 = 2 + 10/2 = 7, G_0 = 1 + 7/2; the value behind step 0 is not read
    known("discounted_returns", "truncated inside", REWARDS | GAMMA | {"terminated": [0, 0, 0], "truncated": [0, 1, 0], "next_values": [NAN, 10, 8]},
          returns=over(2, 9, 14, 14)),
    known("discounted_returns", "final values", REWARDS | CUT | GAMMA | {"bootstrap_value": 8}, returns=over(2, 9, 14, 14)),
    known("discounted_returns", "terminated inside", REWARDS | GAMMA | {"terminated": [0, 1, 0], "bootstrap_value": 8}, returns=[2, 2, 7]),
    known("discounted_returns", "both flags", REWARDS | BOTH | GAMMA | {"bootstrap_value": 8}, returns=[2, 2, 7]),
    known("discounted_returns", "valid", REWARDS | GAP | GAMMA | {"bootstrap_value": 8}, returns=over(2, 9, 0, 14)),
    known("discounted_returns", "next-step autoreset", RESET | GAMMA | {"values": [NAN, 2, NAN], "bootstrap_value": 8}, returns=[2, 0, 7]),
    # G_2 = 3 + 8/4 = 5, G_1 = 2 + 5 = 7, G_0 = 1 + 7/2
    known("discounted_returns", "gamma of each step", REWARDS | OPEN | {"gamma": [0.5, 1, 0.25], "bootstrap_value": 8}, returns=over(2, 9, 14, 10)),
]  # fmt: skip

INPUTS = {"inputs": [1, 2, 3]}
ELIGIBILITY_TRACES = [
    # z_1 = 2 + 1/4 = 9/4, z_2 = 3 + 9/16 = 57/16
    known("eligibility_traces", "window", INPUTS | OPEN | HALVES, traces=over(16, 16, 36, 57)),
    # The reset shows one step after the flag: z_1 = 2, z_2 = 3 + 2/4
    known("eligibility_traces", "terminated", INPUTS | {"terminated": [1, 0, 0]} | HALVES, traces=over(2, 2, 4, 7)),
    known("eligibility_traces", "truncated", INPUTS | {"terminated": [0, 0, 0], "truncated": [0, 1, 0]} | HALVES, traces=over(4, 4, 9, 12)),
    # 8 flows in as it is: z_0 = 9, z_1 = 2 + 9/4 = 17/4, z_2 = 3 + 17/16
    known("eligibility_traces", "initial", INPUTS | OPEN | HALVES | {"initial": 8}, traces=over(16, 144, 68, 65)),
    known("eligibility_traces", "valid", INPUTS | GAP | HALVES, traces=over(4, 4, 0, 13)),
    known("eligibility_traces", "gamma and lam of each step", INPUTS | OPEN | {"gamma": [0.5, 0, NAN], "lam": [0.5, NAN, NAN]}, traces=over(4, 4, 9, 12)),
    known("eligibility_traces", "features", {"inputs": [[1, 10], [2, 20], [3, 30]], "terminated": [1, 0, 0], "initial": [8, 80]} | HALVES,
          traces=[[9, 90], [2, 20], [3.5, 35]]),
]  # fmt: skip

EPISODIC_PREFIX_SUM = [
    known("episodic_prefix_sum", "window", INPUTS | OPEN, sums=[1, 3, 6]),
    known("episodic_prefix_sum", "terminated", INPUTS | {"terminated": [1, 0, 0], "initial": 8}, sums=[9, 2, 5]),
    known("episodic_prefix_sum", "truncated", INPUTS | {"terminated": [0, 0, 0], "truncated": [0, 1, 0]}, sums=[1, 3, 3]),
    known("episodic_prefix_sum", "starts", INPUTS | {"starts": [0, 1, 0], "initial": 8}, sums=[9, 2, 5]),
    known("episodic_prefix_sum", "starts at once", INPUTS | {"starts": [1, 0, 0], "initial": NAN}, sums=[1, 3, 6]),
    # The flag of a step that is none ends nothing.
    known("episodic_prefix_sum", "valid", INPUTS | {"terminated": [0, 1, 0], "valid": [1, 0, 1]}, sums=[1, 0, 4]),
]

AFFINE_SCAN = [
    # y_0 = 1 + 4/2 = 3, y_1 = 2 + 2 * 3 = 8, y_2 = 3 + 8/4 = 5
    known("affine_scan", "forward", {"addend": [1, 2, 3], "factor": [0.5, 2, 0.25], "initial": 4}, y=[3, 8, 5]),
    # y_2 = 3 + 4/4 = 4, y_1 = 2 + 2 * 4 = 10, y_0 = 1 + 10/2 = 6
    known("affine_scan", "reverse", {"addend": [1, 2, 3], "factor": [0.5, 2, 0.25], "initial": 4, "reverse": True}, y=[6, 10, 4]),
    known("affine_scan", "one factor", {"addend": [1, 2, 3], "factor": 2.0}, y=[1, 4, 11]),
    known("affine_scan", "cut", {"addend": [1, 2, 3], "factor": [0.5, 0, 0.25], "initial": NAN}, y=[NAN, 2, 3.5]),
    # Nothing was added up yet that an infinite factor could meet.
    known("affine_scan", "infinite factor", {"addend": [0, 0, 3], "factor": [math.inf, math.inf, 1]}, y=[0, 0, 3]),
]

TABLE = [*GAE, *VTRACE, *RETRACE, *LAMBDA_RETURNS, *DISCOUNTED_RETURNS, *ELIGIBILITY_TRACES, *EPISODIC_PREFIX_SUM, *AFFINE_SCAN]


def problem_of(entry: Known, layout: str, dtype: str) -> Problem:
    """The row twice, side by side."""
    recurrence = RECURRENCES[entry.op]
    kinds = {argument.name: argument for argument in recurrence.arguments}
    axis = -1 if layout == "batch-major" else 0

    def whole(name: str, value: Any) -> Any:
        kind = kinds[name]
        if kind.shape in ("option", "number") or value is None or (kind.shape == "parameter" and not isinstance(value, list)):
            return value
        array = np.array(value, bool if kind.flag else dtype)
        if kind.shape == "parameter" and kind.low is not None:
            return array if layout == "batch-major" else array[:, None]
        return np.stack([array, array], axis=0 if kind.shape == "row" or layout == "batch-major" else 1)

    arguments = defaults(recurrence) | {name: whole(name, value) for name, value in entry.arguments.items()} | {"time_axis": axis}
    return Problem("known values", f"{entry.id}, {layout}", recurrence, arguments, dtype)


def check(entry: Known, implementation: Any, layout: str, dtype: str) -> None:
    problem = problem_of(entry, layout, dtype)
    results = dict(zip(problem.recurrence.output_names, implementation.run(problem), strict=True))
    for (name, row), limit in zip(entry.expected.items(), problem.limits, strict=True):
        expected = np.stack([np.array(row, np.float64)] * 2, axis=0 if layout == "batch-major" else 1)
        assert results[name].shape == expected.shape
        assert distance(results[name], expected, limit).max() <= 1, f"{name} is {results[name].tolist()}, wanted {expected.tolist()}"


def test_the_table_has_every_output_of_every_function():
    assert {entry.op for entry in TABLE} == set(RECURRENCES)
    assert all(tuple(entry.expected) == RECURRENCES[entry.op].output_names for entry in TABLE)
    assert len({entry.id for entry in TABLE}) == len(TABLE)


each_entry = pytest.mark.parametrize("entry", TABLE, ids=[entry.id for entry in TABLE])
# JAX compiles anew for each of them, so that one layout must do there; Pallas' interpreter takes seconds for each.
pairs = [
    ("reference", "batch-major"),
    ("torch", "batch-major"),
    ("torch", "time-major"),
    ("triton", "batch-major"),
    ("triton", "time-major"),
    ("jax", "batch-major"),
]


@each_entry
@pytest.mark.parametrize(("implementation", "layout"), pairs, indirect=["implementation"])
def test_known_values(entry, implementation, layout):
    check(entry, implementation, layout, "float64" if implementation.name == "reference" else "float32")


@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.id.endswith(("both flags", "window", "reverse"))], ids=lambda entry: entry.id)
@pytest.mark.parametrize("implementation", ["pallas"], indirect=True)
def test_known_values_in_pallas(entry, implementation):
    check(entry, implementation, "batch-major", "float32")


@each_entry
@pytest.mark.parametrize("implementation", ["torch"], indirect=True)
def test_known_values_in_float64(entry, implementation):
    check(entry, implementation, "batch-major", "float64")
