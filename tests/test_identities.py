"""Equations that hold between results, whatever the implementation, and that one mistake can't satisfy on both sides.

Each side is computed by the implementation; they may differ by what the two bounds allow together.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.draw import defaults, draw, held, variants
from rlscan.crosscheck.scenarios import Problem
from rlscan.spec.bound import distance
from rlscan.spec.recurrences import RECURRENCES

T, ROWS = 12, 3

# JAX compiles anew for each problem, and its results are compared with the oracle elsewhere: some of the identities must do.
everywhere = pytest.mark.parametrize("implementation", ["reference", "torch", "triton"], indirect=True)
with_jax = pytest.mark.parametrize("implementation", ["reference", "torch", "triton", "jax"], indirect=True)
BACKWARD = [recurrence for recurrence in RECURRENCES.values() if recurrence.direction == "backward"]
FORWARD = [recurrence for recurrence in RECURRENCES.values() if recurrence.direction == "forward"]


def each(recurrences):
    return pytest.mark.parametrize("recurrence", recurrences, ids=lambda recurrence: recurrence.name)


each_recurrence = each(RECURRENCES.values())


def dtype_of(implementation):
    """The reference is exact enough for float64 to be demanded of it."""
    return "float64" if implementation.name == "reference" else "float32"


class Side:
    """The results of one call, and how far each may be off."""

    def __init__(self, implementation, op, arguments, dtype=None):
        recurrence = RECURRENCES[op]
        problem = Problem("identities", "", recurrence, defaults(recurrence) | arguments, dtype or dtype_of(implementation))
        self.results = dict(zip(recurrence.output_names, implementation.run(problem), strict=True))
        self.limits = dict(zip(recurrence.output_names, problem.limits, strict=True))

    def __getitem__(self, name):
        return self.results[name].astype(np.float64), self.limits[name]


def agree(one, other, what=""):
    """Both are results with their limits."""
    (left, left_limit), (right, right_limit) = one, other
    assert left.shape == right.shape
    limit = left_limit + right_limit
    assert np.isfinite(limit).all()
    assert distance(left, right, limit).max(initial=0.0) <= 1, f"{what}: {left.tolist()} and {right.tolist()}"


def moved(side, change):
    result, limit = side
    return change(result), change(limit)


def drawn(implementation, recurrence, variant, shape=(ROWS, T), seed=0, **settings) -> dict[str, Any]:
    return draw(recurrence, variant, shape, seed=seed, dtype=dtype_of(implementation), **settings)


def variant_with(recurrence, *names: str, form: Any = "number", without: tuple[str, ...] = ()):
    """A variant that gives all of these, and the least beside."""
    every = [variant for variant in variants(recurrence, (form,)) if variant.gives(*names) and not any(variant.gives(name) for name in without)]
    return min(every, key=lambda variant: len(variant.given) + len(variant.options))


def along(change, arguments, recurrence) -> dict[str, Any]:
    """`change` of everything that has time, which is the last axis of the flags."""
    kinds = {argument.name: argument for argument in recurrence.arguments}
    return {
        name: change(x) if isinstance(x, np.ndarray) and x.ndim >= 2 and kinds[name].shape in ("steps", "inputs", "actions", "parameter") else x
        for name, x in arguments.items()
    }


SPLIT = [
    (RECURRENCES[op], names)
    for op, choices in {
        "gae": [("truncated", "next_values"), ("truncated", "final_values")],
        "vtrace": [("truncated", "next_values"), ("truncated", "final_values")],
        "retrace": [("truncated", "expected_next_q"), ("truncated", "next_policy")],
        "lambda_returns": [("truncated", "next_values"), ("truncated", "final_values")],
        "discounted_returns": [("truncated", "next_values"), ("truncated", "final_values")],
        "eligibility_traces": [("truncated",), ("truncated", "initial")],
        "episodic_prefix_sum": [("terminated", "truncated", "initial"), ("starts",)],
        "affine_scan": [("initial",), ("initial", "reverse")],
    }.items()
    for names in choices
]


@with_jax
@pytest.mark.parametrize(("recurrence", "names"), SPLIT, ids=[f"{recurrence.name}-{'-'.join(names)}" for recurrence, names in SPLIT])
def test_a_row_with_boundaries_is_its_episodes_apart(implementation, recurrence, names):
    """One row of three episodes, and three rows of one: the first terminated, the second truncated, the third open."""
    length = T // 3
    whole = drawn(implementation, recurrence, variant_with(recurrence, *names, form="per step"), (1, T), seed=3)
    for name in ("terminated", "truncated", "starts"):
        if name in whole:
            whole[name][...] = 0
    if "starts" in whole:
        whole["starts"][0, [0, length, 2 * length]] = 1
    elif "terminated" in whole:
        whole["terminated"][0, length - 1] = 1
        whole["truncated"][0, 2 * length - 1] = 1
    else:
        whole["factor"][0, [length - 1, 2 * length - 1] if "reverse" in names else [length, 2 * length]] = 0
    apart = along(lambda x: x.reshape(3, length, *x.shape[2:]), whole, recurrence)
    if "initial" in whole:
        # It flows into one end of the row, and nothing flows into the other episodes.
        apart["initial"] = np.array([0, 0, whole["initial"][0]] if "reverse" in names else [whole["initial"][0], 0, 0], whole["initial"].dtype)
    if "bootstrap_value" in whole:
        behind_second = whole["final_values"][0, 2 * length - 1]
        apart["bootstrap_value"] = np.array([np.nan, behind_second, whole["bootstrap_value"][0]], behind_second.dtype)
        # Where the episodes are rows, the second could as well not be flagged as cut: the window's end cuts it.
        apart["truncated"] = np.zeros_like(apart["truncated"])
    one, three = (Side(implementation, recurrence.name, arguments) for arguments in (whole, apart))
    for output in recurrence.output_names:
        agree(one[output], moved(three[output], lambda x: x.reshape(1, T)), output)


WITH_VALID = [recurrence for recurrence in RECURRENCES.values() if "valid" in recurrence.argument_names]


def compactions(recurrence):
    """A few variants that differ in where values come from."""
    kept = [variant for variant in variants(recurrence, ("per step",)) if variant.gives("valid") and not variant.gives("autoreset")]
    return kept[:1] + kept[-1:]


COMPACTIONS = [(recurrence, variant) for recurrence in WITH_VALID for variant in compactions(recurrence)]


@everywhere
@pytest.mark.parametrize(("recurrence", "variant"), COMPACTIONS, ids=[f"{recurrence.name}-{variant}" for recurrence, variant in COMPACTIONS])
def test_valid_steps_are_the_row_without_the_others(implementation, recurrence, variant):
    kept = 7
    gaps = drawn(implementation, recurrence, variant, seed=5)
    random = np.random.default_rng(0)
    places = np.stack([np.sort(random.choice(T, kept, replace=False)) for _ in range(ROWS)])
    gaps["valid"] = np.zeros((ROWS, T), bool)
    np.put_along_axis(gaps["valid"], places, True, 1)
    chosen = (np.arange(ROWS)[:, None], places)
    dense = along(lambda x: x[chosen], gaps, recurrence)
    del dense["valid"]
    if recurrence.name == "episodic_prefix_sum" and "starts" not in dense:
        dense["terminated"] = dense.get("terminated", np.zeros((ROWS, kept), bool))
    spread, compact = (Side(implementation, recurrence.name, arguments) for arguments in (gaps, dense))
    for output in recurrence.output_names:
        agree(moved(spread[output], lambda x: x[chosen]), compact[output], output)
        assert (spread[output][0][~gaps["valid"]] == 0).all()


def window(implementation, *, lam=None, seed=11) -> dict[str, Any]:
    """Rewards, values and flags of each kind, with the successors' values said as seen from each state."""
    recurrence = RECURRENCES["gae"]
    arguments = drawn(implementation, recurrence, variant_with(recurrence, "truncated", "final_values", form="per step"), seed=seed)
    return arguments if lam is None else arguments | {"lam": lam}


def only(arguments, op, **more):
    return {name: x for name, x in arguments.items() if name in RECURRENCES[op].argument_names} | more


def successors(arguments):
    """N_t for the window above, as arrays can say it."""
    following = np.concatenate([arguments["values"][:, 1:], arguments["bootstrap_value"][:, None]], 1)
    return np.where(arguments["truncated"], arguments["final_values"], following)


@everywhere
def test_lambda_1_telescopes_to_discounted_returns(implementation):
    """Every value between a step and the next cut cancels."""
    arguments = window(implementation, lam=1.0)
    wanted = Side(implementation, "discounted_returns", only(arguments, "discounted_returns"))["returns"]
    on_policy = {"log_rhos": np.zeros_like(arguments["rewards"])}
    agree(Side(implementation, "gae", arguments)["returns"], wanted, "gae")
    agree(Side(implementation, "lambda_returns", arguments)["returns"], wanted, "lambda returns")
    agree(Side(implementation, "vtrace", arguments | on_policy)["vs"], wanted, "V-trace")
    # A policy that surely takes the next action expects its value.
    sure = only(arguments, "retrace", **on_policy, q_values=arguments["values"], expected_next_q=successors(arguments))
    agree(Side(implementation, "retrace", sure)["targets"], wanted, "Retrace")


@everywhere
def test_lambda_0_is_the_td_error(implementation):
    arguments = window(implementation, lam=0.0)
    discounted = np.where(arguments["terminated"], 0, arguments["gamma"].astype(np.float64) * successors(arguments))
    targets = arguments["rewards"] + discounted, np.zeros((ROWS, T))
    errors = targets[0] - arguments["values"], np.zeros((ROWS, T))
    agree(Side(implementation, "gae", arguments)["advantages"], errors, "gae")
    agree(Side(implementation, "lambda_returns", arguments)["returns"], targets, "lambda returns")
    off_policy = {"log_rhos": np.full_like(arguments["rewards"], 3.0)}
    agree(Side(implementation, "vtrace", arguments | off_policy)["vs"], targets, "V-trace, whose ratios are clipped to 1")
    agree(
        Side(implementation, "retrace", only(arguments, "retrace", **off_policy, q_values=arguments["values"], expected_next_q=successors(arguments)))[
            "targets"
        ],
        targets,
        "Retrace",
    )


@everywhere
def test_gae_and_v_trace_on_policy_give_lambda_returns(implementation):
    """For any lambda, where N_t is the value of the next step."""
    arguments = window(implementation)
    wanted = Side(implementation, "lambda_returns", arguments)["returns"]
    agree(Side(implementation, "gae", arguments)["returns"], wanted, "gae")
    agree(Side(implementation, "vtrace", arguments | {"log_rhos": np.zeros_like(arguments["rewards"])})["vs"], wanted, "V-trace")


@everywhere
def test_v_trace_advantages_bootstrap_from_its_own_targets(implementation):
    """pg_t = r_t + g_t vs_(t+1) - V_t inside an episode, for any lambda."""
    arguments = window(implementation) | {"log_rhos": np.zeros((ROWS, T), dtype_of(implementation))}
    side = Side(implementation, "vtrace", arguments | {"terminated": np.zeros((ROWS, T), bool), "truncated": np.zeros((ROWS, T), bool)})
    vs, limit = side["vs"]
    gamma = np.broadcast_to(arguments["gamma"], (ROWS, T)).astype(np.float64)[:, :-1]
    wanted = arguments["rewards"][:, :-1] + gamma * vs[:, 1:] - arguments["values"][:, :-1]
    agree(moved(side["pg_advantages"], lambda x: x[:, :-1]), (wanted, gamma * limit[:, 1:]))


class TabularProblem:
    """A deterministic world of 5 states and 3 actions, a policy that depends on the state, and its exact action values."""

    gamma, length = 0.875, 20

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.successor = random.integers(5, size=(5, 3))
        self.reward = random.normal(size=(5, 3))
        self.policy = random.dirichlet(np.ones(3), size=5)
        self.behaviour = random.dirichlet(np.ones(3), size=5)
        # Q = r + gamma P_pi Q, a linear system of 15 equations; state 4 is terminal behind every action that leads there.
        self.is_terminal = self.successor == 4
        transition = np.zeros((15, 15))
        for state, action in np.ndindex(5, 3):
            following = self.successor[state, action]
            if not self.is_terminal[state, action]:
                transition[3 * state + action, 3 * following : 3 * following + 3] = self.policy[following]
        self.q = np.linalg.solve(np.eye(15) - self.gamma * transition, self.reward.ravel()).reshape(5, 3)
        self.random = random

    def rollout(self, behaviour, q):
        """Arguments of `retrace` for a row, from state to state, beginning anew in a state that is not terminal."""
        steps = []
        state = 0
        for _ in range(self.length):
            action = self.random.choice(3, p=behaviour[state])
            following = self.successor[state, action]
            steps.append((state, action, following))
            state = self.random.integers(4) if following == 4 else following
        states, actions, followers = np.array(steps).T
        return {
            "log_rhos": np.log(self.policy[states, actions]) - np.log(behaviour[states, actions]),
            "rewards": self.reward[states, actions],
            "q_values": q[states, actions],
            "next_q_values": q[followers],
            "next_policy": self.policy[followers],
            "terminated": self.is_terminal[states, actions],
            "gamma": self.gamma,
        }


def in_dtype(arguments, dtype):
    return {name: held(x, dtype) if isinstance(x, np.ndarray) and x.dtype != bool else x for name, x in arguments.items()}


@with_jax
@pytest.mark.parametrize("policy", ["on-policy", "off-policy"])
def test_retrace_leaves_exact_action_values_as_they_are(implementation, policy):
    world = TabularProblem(seed=2)
    arguments = world.rollout(world.policy if policy == "on-policy" else world.behaviour, world.q)
    arguments = in_dtype({name: x[None] if isinstance(x, np.ndarray) else x for name, x in arguments.items()}, dtype_of(implementation))
    assert arguments["terminated"].any()
    side = Side(implementation, "retrace", arguments)
    # With q off by one rounding, each TD error is off by what its sum makes of that: the limit of a TD error alone, which lam = 0 gives.
    own = Side(implementation, "retrace", arguments | {"lam": 0.0})["targets"][1]
    result, limit = side["targets"]
    carried = np.cumsum(own[:, ::-1], axis=1)[:, ::-1]
    agree((result, limit), (arguments["q_values"].astype(np.float64), carried))
    # The policy of the state that is left, in the place of that at which one arrives, shows.
    wrong = arguments | {"next_policy": np.roll(arguments["next_policy"], 1, axis=1)}
    off = np.abs(Side(implementation, "retrace", wrong)["targets"][0] - result)
    assert (off > 100 * (limit + carried)).any()


@everywhere
def test_retrace_is_the_sum_of_the_paper(implementation):
    """Munos et al. 2016, equation 3, with an arbitrary Q: the ratios are those of the actions after the first."""
    world = TabularProblem(seed=4)
    q = world.random.normal(size=(5, 3))
    arguments = in_dtype({name: x[None] if isinstance(x, np.ndarray) else x for name, x in world.rollout(world.behaviour, q).items()}, dtype_of(implementation))
    lam = 0.75
    log_rho, reward, own, following, policy, terminated = (
        arguments[name][0].astype(np.float64) for name in ("log_rhos", "rewards", "q_values", "next_q_values", "next_policy", "terminated")
    )
    expected = [sum(p * x for p, x in zip(*pair, strict=True)) for pair in zip(policy, following, strict=True)]
    wanted = np.zeros(world.length)
    for t in range(world.length):
        weight, total = 1.0, own[t]
        for k in range(t, world.length):
            if k > t:
                weight *= world.gamma * lam * min(1.0, math.exp(log_rho[k]))
            total += weight * (reward[k] + (0.0 if terminated[k] else world.gamma * expected[k]) - own[k])
            if terminated[k]:
                break
        wanted[t] = total
    side = Side(implementation, "retrace", arguments | {"lam": lam})["targets"]
    # The sum here is rounded too, but in float64; the other side's bound is that of the same computation.
    own_limit = Side(implementation, "retrace", in_dtype(arguments, "float64") | {"lam": lam}, "float64")["targets"][1]
    agree(side, (wanted[None], own_limit))


@with_jax
@pytest.mark.parametrize("op", ["eligibility_traces", "episodic_prefix_sum"])
def test_forward_sums_are_the_adjoint_of_backward_sums(implementation, op):
    """<a, backward(b)> = <forward(a), b>, with the factor on each edge in the same place."""
    dtype = dtype_of(implementation)
    recurrence = RECURRENCES[op]
    arguments = drawn(implementation, recurrence, variant_with(recurrence, *(["terminated"] if op == "episodic_prefix_sum" else []), "truncated"), seed=8)
    random = np.random.default_rng(1)
    # Products of these are exact, so that both sides have the very same factors.
    gamma, lam = random.choice([0.5, 0.75, 1.0], (ROWS, T)).astype(dtype), random.choice([0.25, 0.5, 1.0], (ROWS, T)).astype(dtype)
    factor = np.where(arguments["terminated"] | arguments["truncated"], 0, gamma * lam if op == "eligibility_traces" else 1).astype(dtype)
    if op == "eligibility_traces":
        arguments |= {"gamma": gamma, "lam": lam}
    a, b = arguments["inputs"], random.normal(size=(ROWS, T)).astype(dtype)
    forward, forward_limit = Side(implementation, op, arguments)[recurrence.output_names[0]]
    backward, backward_limit = Side(implementation, "affine_scan", {"addend": b, "factor": factor, "reverse": True})["y"]
    gap = abs(exact_dot(a, backward) - exact_dot(forward, b))
    assert gap <= np.sum(np.abs(a) * backward_limit) + np.sum(np.abs(b) * forward_limit)
    shifted = np.roll(factor, 1, axis=1)
    wrong = Side(implementation, "affine_scan", {"addend": b, "factor": shifted, "reverse": True})["y"][0]
    assert abs(exact_dot(a, wrong) - exact_dot(forward, b)) > 100 * gap


def exact_dot(x, y):
    return float(sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x.ravel(), y.ravel(), strict=True)))


@everywhere
@each(RECURRENCES.values())
def test_a_window_that_opens_later_or_closes_earlier(implementation, recurrence):
    """A backward result does not know how many steps were before, a forward one not how many come after."""
    variant = variants(recurrence, ("per step",))[-1] if recurrence.direction == "forward" else variants(recurrence, ("per step",))[0]
    whole = drawn(implementation, recurrence, variant, seed=6)
    backward = recurrence.direction == "backward" or bool(whole.get("reverse"))
    part = slice(5, None) if backward else slice(None, T - 5)
    shorter = along(lambda x: x[:, part], whole, recurrence)
    long, short = (Side(implementation, recurrence.name, arguments) for arguments in (whole, shorter))
    for output in recurrence.output_names:
        agree(moved(long[output], lambda x: x[:, part]), short[output], output)


def halves(arguments, recurrence, cut) -> tuple[dict[str, Any], dict[str, Any]]:
    return along(lambda x: x[:, :cut], arguments, recurrence), along(lambda x: x[:, cut:], arguments, recurrence)


@everywhere
@pytest.mark.parametrize("op", ["discounted_returns", "eligibility_traces", "episodic_prefix_sum", "affine_scan", "affine_scan reversed"])
def test_two_windows_are_one(implementation, op):
    """What flows over the edge between two windows is handed over: the result at the edge, decayed where the argument wants it so."""
    name, reverse = op.split()[0], op.endswith("reversed")
    recurrence = RECURRENCES[name]
    names = {"discounted_returns": ("bootstrap_value",), "affine_scan": ("initial",), "episodic_prefix_sum": ("terminated", "truncated", "initial")}.get(
        name, ("truncated", "initial")
    )
    variant = variant_with(recurrence, *names, form="per step", without=("truncated",) if name == "discounted_returns" else ("reverse",))
    whole = drawn(implementation, recurrence, variant, seed=9)
    if reverse:
        whole["reverse"] = True
    cut, output = 5, recurrence.output_names[0]
    dtype = dtype_of(implementation)
    left, right = halves(whole, recurrence, cut)
    full = Side(implementation, name, whole)[output]
    if name == "discounted_returns" or reverse:
        behind = Side(implementation, name, right)[output][0][:, 0]
        left |= {"initial" if reverse else "bootstrap_value": behind.astype(dtype)}
        second, place = Side(implementation, name, left)[output], slice(None, cut)
    else:
        edge = Side(implementation, name, left)[output][0][:, -1]
        if name == "eligibility_traces":
            edge = edge * whole["gamma"][:, cut - 1] * whole["lam"][:, cut - 1]
        if name != "affine_scan":
            edge = np.where(left["terminated"][:, -1] | left["truncated"][:, -1], 0, edge)
        right |= {"initial": edge.astype(dtype)}
        second, place = Side(implementation, name, right)[output], slice(cut, None)
    result, limit = moved(full, lambda x: x[:, place])
    # What is handed over has its own error, which the bound of the whole window contains.
    agree((result, 2 * limit), second)


@everywhere
def test_undiscounted_returns_are_prefix_sums_from_the_other_end(implementation):
    recurrence = RECURRENCES["discounted_returns"]
    arguments = drawn(implementation, recurrence, variant_with(recurrence, without=("truncated",)), seed=10)
    rewards, terminated = arguments["rewards"], arguments["terminated"]
    arguments["gamma"] = 1.0
    assert terminated.any()
    returns = Side(implementation, "discounted_returns", arguments)["returns"]
    sums = Side(implementation, "episodic_prefix_sum", {"inputs": rewards[:, ::-1].copy(), "starts": terminated[:, ::-1].copy()})["sums"]
    agree(returns, moved(sums, lambda x: x[:, ::-1]))


@everywhere
@each_recurrence
def test_layouts_and_orders_of_rows_agree(implementation, recurrence):
    """Time last, first, or in the middle; rows in another order."""
    variant = variants(recurrence, ("per step",))[-1]
    arguments = drawn(implementation, recurrence, variant, seed=12)
    order = np.array([2, 0, 1])
    kinds = {argument.name: argument.shape for argument in recurrence.arguments}

    def each_array(change, change_row):
        return {name: (change_row if kinds[name] == "row" else change)(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}

    base = Side(implementation, recurrence.name, arguments)
    permuted = Side(implementation, recurrence.name, each_array(lambda x: x[order], lambda x: x[order]))
    time_major = Side(implementation, recurrence.name, each_array(lambda x: np.ascontiguousarray(np.swapaxes(x, 0, 1)), lambda x: x) | {"time_axis": 0})
    middle = each_array(lambda x: np.ascontiguousarray(np.moveaxis(x[None], 1, 2)), lambda x: x[None]) | {"time_axis": 1}
    middle = Side(implementation, recurrence.name, middle)
    for output in recurrence.output_names:
        agree(moved(base[output], lambda x: x[order]), permuted[output], output)
        agree(base[output], moved(time_major[output], np.transpose), output)
        agree(base[output], moved(middle[output], lambda x: np.swapaxes(x[0], 0, 1)), output)


@everywhere
def test_the_window_is_its_own_mirror_image(implementation):
    """An affine scan of the reversed arrays, reversed, is the scan with reverse=True."""
    recurrence = RECURRENCES["affine_scan"]
    arguments = drawn(implementation, recurrence, variant_with(recurrence, "initial", "reverse", form="per step"), seed=13)
    mirrored = along(lambda x: x[:, ::-1].copy(), arguments, recurrence) | {"reverse": False}
    agree(Side(implementation, "affine_scan", arguments)["y"], moved(Side(implementation, "affine_scan", mirrored)["y"], lambda x: x[:, ::-1]))
