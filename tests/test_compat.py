"""The functions of `compat` give the numbers of the libraries they stand for: by restated formulas always, and by the library itself where it is installed."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlscan.crosscheck import formulas
from rlscan.crosscheck.migration import modules
from rlscan.spec.bound import EXP_ERROR, U64
from tests.conftest import by_whitening

N, T, A = 5, 12, 3
GAMMA, LAM = 0.875, 0.75
"""Exact in float32, to which TorchRL rounds these and the bars, whatever the arrays are."""

U32 = float(np.finfo(np.float32).eps) / 2
LARGEST, LARGEST_LOGARITHM = 6.0, 6.0
"""Of what is drawn; `test_what_is_drawn_is_small`."""

OPERATIONS = 12 + 2 * EXP_ERROR + 2 * LARGEST_LOGARITHM
"""Roundings of a term within a step: no formula has more than a dozen, or more than one exp and one log, and exp makes an absolute error a relative one."""

TERMS = 4 + A
"""Of a step: r, γN, V and what is carried, or an expectation."""


def bound(whitened: np.ndarray | None = None, deviation: float = 1.0, *, single: bool = False, stored: bool = False, gradient: bool = False) -> float:
    """On the distance of two computations in float64; `single`: in float32.

    A result is a sum of TERMS numbers of each of T steps, each of LARGEST at most times factors of 1 at most, with OPERATIONS roundings in each of the
    steps that it is carried over (Higham 2002, lemma 3.1). Whitening sums N T elements, and moves results further than these are moved (`by_whitening`).
    The `gradient` of a sum of results, weighed by numbers up to LARGEST, has three times as many roundings for each of T steps. What is `stored` in
    float32 is rounded there once and added to once, each time relative to what is not larger than the two together.
    """
    roundings = OPERATIONS * T + (0 if whitened is None else 2 * N * T)
    amplified = 1.0 if whitened is None else by_whitening(whitened, deviation)
    limit = 2 * roundings * U64 / (1 - roundings * U64) * TERMS * T * LARGEST * amplified
    if gradient:
        limit *= 3 * T * LARGEST
    if single:
        limit *= U32 / U64
    if stored:
        limit += 8 * U32 * TERMS * T * LARGEST
    return limit


class Transition(NamedTuple):
    """Of PureJaxRL's scripts, as far as GAE reads it."""

    done: Any
    value: Any
    reward: Any


class Draw:
    """Arrays of one case."""

    def __init__(self, *shape: int) -> None:
        self.random, self.shape = np.random.default_rng(0), shape

    def real(self, *more: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
        return self.random.normal(size=(*(self.shape if shape is None else shape), *more))

    def flags(self, rate: float = 0.2, shape: tuple[int, ...] | None = None) -> np.ndarray:
        return self.random.random(self.shape if shape is None else shape) < rate

    def unit(self, *more: int) -> np.ndarray:
        return self.random.uniform(0.1, 1.0, size=(*self.shape, *more))

    def policy(self) -> np.ndarray:
        weights = self.unit(A)
        return weights / weights.sum(-1, keepdims=True)

    def actions(self) -> np.ndarray:
        return self.random.integers(A, size=self.shape)

    def discounts(self) -> np.ndarray:
        return np.where(self.flags(), 0.0, GAMMA)

    def done_and_terminated(self) -> tuple[np.ndarray, np.ndarray]:
        terminated = self.flags()
        return self.flags() | terminated, terminated


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        function: below `compat`, which is also the name of the formula.
        arguments: made from `Draw`.
        original: where the library has it; None where it is no function that could be imported.
        mapped: one sequence at a time there.
        whitened: the first result is.
        narrow: what the library gives, and rounds on its way, is float32.
    """

    function: str
    label: str
    shape: tuple[int, ...]
    arguments: Callable[[Draw], dict[str, Any]]
    original: str | None = None
    mapped: bool = False
    whitened: bool = False
    narrow: bool = False

    @property
    def backend(self) -> str:
        return "jax" if self.function.split(".")[0] in ("rlax", "brax", "purejaxrl") else "torch"

    @property
    def takes_numpy(self) -> bool:
        return self.function.split(".")[0] in ("sb3", "tianshou") or self.function == "rllib.compute_value_targets"

    def drawn(self) -> dict[str, Any]:
        return self.arguments(Draw(*self.shape))

    def formula(self) -> tuple[np.ndarray, ...]:
        return as_tuple(getattr(formulas, self.function.replace(".", "_").replace("_gae_return", "_gae"))(**self.drawn()))

    def ours(self) -> tuple[np.ndarray, ...]:
        module, _, name = self.function.partition(".")
        package = {"torch": "torch_triton", "jax": "jax_pallas"}[self.backend]
        return self.run(getattr(importlib.import_module(f"rlscan.{package}.compat.{module}"), name))

    def run(self, function: Callable[..., Any]) -> tuple[np.ndarray, ...]:
        if self.backend == "jax":
            return self._run_in_jax(function)
        given = self.drawn()
        if not self.takes_numpy:
            given = {name: importlib.import_module("torch").from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        return tuple(np.asarray(result) for result in as_tuple(function(**given)))

    def _run_in_jax(self, function: Callable[..., Any]) -> tuple[np.ndarray, ...]:
        jax = importlib.import_module("jax")
        # strict for rlscan alone
        with jax.enable_x64(True), jax.numpy_dtype_promotion("strict" if function.__module__.startswith("rlscan") else "standard"):
            given = jax.tree.map(lambda x: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x, self.drawn())
            if not self.mapped:
                results = function(**given)
            else:
                arrays = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
                numbers = {name: x for name, x in given.items() if name not in arrays}
                results = jax.vmap(lambda arrays: function(**arrays, **numbers))(arrays)
            return tuple(np.asarray(result) for result in as_tuple(results))

    def agree(self, ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...]) -> None:
        assert len(ours) == len(theirs)
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            limit = bound(stored=self.narrow)
            if self.whitened and number == 0:
                mask = self.drawn().get("response_mask", ~self.drawn().get("padding_mask", np.True_))
                raw = theirs[1] - self.drawn()["values"]
                limit = bound(other, raw[mask].std(), stored=self.narrow)
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple) else (results,)


TORCHRL = "torchrl.objectives.value.functional"
RLAX = "rlax"


def torchrl(draw: Draw, **more: Any) -> dict[str, Any]:
    done, terminated = draw.done_and_terminated()
    return {"gamma": GAMMA, "next_state_value": draw.real(), "reward": draw.real(), "done": done, "terminated": terminated, **more}


def torchrl_vtrace(draw: Draw, **more: Any) -> dict[str, Any]:
    return torchrl(draw, log_pi=draw.real(), log_mu=draw.real(), state_value=draw.real(), **more)


def rl_triton_flags(draw: Draw, exclusive: bool = True, **more: Any) -> dict[str, Any]:
    terminateds, truncateds = draw.flags(), draw.flags()
    truncateds = truncateds & ~terminateds if exclusive else truncateds
    return {"terminateds": terminateds * 1.0, "truncateds": truncateds * 1.0, "gamma": GAMMA, **more}


def vtrace_errors(draw: Draw, **more: Any) -> dict[str, Any]:
    return {
        "v_tm1": draw.real(),
        "v_t": draw.real(),
        "r_t": draw.real(),
        "discount_t": draw.discounts(),
        "rho_tm1": np.exp(draw.real()),
        "clip_rho_threshold": 0.9,
        **more,
    }


def verl(draw: Draw) -> dict[str, Any]:
    return {"token_level_rewards": draw.real(), "values": draw.real(), "response_mask": draw.flags(0.7), "gamma": GAMMA, "lam": LAM}


CASES = [
    *(
        Case(
            f"torchrl.{prefix}generalized_advantage_estimate",
            f"time {axis}",
            shape,
            lambda draw, axis=axis: torchrl(draw, lmbda=LAM, state_value=draw.real(), time_dim=axis),
            f"{TORCHRL}:{prefix}generalized_advantage_estimate",
        )
        for prefix in ("", "vec_")
        for axis, shape in ((-2, (N, T, 1)), (0, (T, N, 2)))
    ),
    Case(
        "torchrl.generalized_advantage_estimate",
        "one flag",
        (N, T, 1),
        lambda draw: torchrl(draw, lmbda=LAM, state_value=draw.real(), terminated=None),
        f"{TORCHRL}:generalized_advantage_estimate",
    ),
    *(
        Case(
            f"torchrl.{prefix}td_lambda_return_estimate",
            "two flags",
            (N, T, 1),
            lambda draw: torchrl(draw, lmbda=LAM),
            f"{TORCHRL}:{prefix}td_lambda_return_estimate",
        )
        for prefix in ("", "vec_")
    ),
    Case(
        "torchrl.vtrace_advantage_estimate",
        "bars",
        (N, T, 1),
        lambda draw: torchrl_vtrace(draw, rho_thresh=0.75, c_thresh=0.5),
        f"{TORCHRL}:vtrace_advantage_estimate",
    ),
    Case(
        "cleanrl.gae",
        "",
        (T, N),
        lambda draw: {
            "rewards": draw.real(),
            "values": draw.real(),
            "dones": draw.flags() * 1.0,
            "next_value": draw.real(shape=(1, N)),
            "next_done": draw.flags(shape=(N,)) * 1.0,
            "gamma": GAMMA,
            "gae_lambda": LAM,
        },
    ),
    Case(
        "sb3.compute_returns_and_advantage",
        "",
        (T, N),
        lambda draw: {
            "rewards": draw.real(),
            "values": draw.real(),
            "episode_starts": draw.flags() * 1.0,
            "last_values": draw.real(shape=(N,)),
            "dones": draw.flags(shape=(N,)),
            "gamma": GAMMA,
            "gae_lambda": LAM,
        },
    ),
    Case(
        "tianshou.gae_return",
        "",
        (N * T,),
        lambda draw: {"v_s": draw.real(), "v_s_": draw.real(), "rew": draw.real(), "end_flag": ends(draw), "gamma": GAMMA, "gae_lambda": LAM},
        "tianshou.algorithm.algorithm_base:_gae",
    ),
    Case(
        "rllib.compute_value_targets",
        "",
        (N * T,),
        lambda draw: {
            "values": draw.real(),
            "rewards": draw.real(),
            "terminateds": draw.flags(0.1),
            "truncateds": ends(draw) * 1.0,
            "gamma": GAMMA,
            "lambda_": LAM,
        },
        "ray.rllib.utils.postprocessing.value_predictions:compute_value_targets",
        narrow=True,
    ),
    Case(
        "rllib.vtrace_torch",
        "",
        (T, N),
        lambda draw: {
            "target_action_log_probs": draw.real(),
            "behaviour_action_log_probs": draw.real(),
            "discounts": draw.discounts(),
            "rewards": draw.real(),
            "values": draw.real(),
            "bootstrap_values": draw.real(shape=(N,)),
            "clip_rho_threshold": 0.9,
            "clip_pg_rho_threshold": 0.8,
        },
        "ray.rllib.algorithms.impala.torch.vtrace_torch_v2:vtrace_torch",
    ),
    Case("verl.compute_gae_advantage_return", "", (N, T), verl, whitened=True),
    Case(
        "trl.gae",
        "",
        (N, T),
        lambda draw: {"rewards": draw.real(), "values": draw.real(), "padding_mask": draw.flags(), "gamma": GAMMA, "lam": LAM},
        whitened=True,
    ),
    Case(
        "rl_triton.compute_gae",
        "both flags",
        (N, T),
        lambda draw: rl_triton_flags(draw, False, rewards=draw.real(), values=draw.real(), lambda_=LAM, bootstrap_values=draw.real()),
    ),
    Case(
        "rl_triton.compute_gae",
        "last value",
        (N, T),
        lambda draw: rl_triton_flags(draw, rewards=draw.real(), values=draw.real(), truncateds=None, last_value=draw.real(shape=(N,))),
    ),
    Case("rl_triton.compute_gae", "no bootstrap", (N, T), lambda draw: rl_triton_flags(draw, rewards=draw.real(), values=draw.real())),
    Case(
        "rl_triton.compute_vtrace",
        "both flags",
        (N, T),
        lambda draw: rl_triton_flags(
            draw,
            False,
            log_pi_target=draw.real(),
            log_pi_behavior=draw.real(),
            values=draw.real(),
            rewards=draw.real(),
            rho_bar=0.9,
            c_bar=0.8,
            bootstrap_values=draw.real(),
        ),
    ),
    Case(
        "rl_triton.compute_retrace",
        "both flags",
        (N, T),
        lambda draw: rl_triton_flags(
            draw,
            False,
            action_probs_target=draw.policy(),
            action_probs_behavior=draw.unit(),
            q_values=draw.real(),
            next_q_values_all=draw.real(A),
            actions=draw.actions(),
            rewards=draw.real(),
            lambda_=LAM,
            c_bar=0.9,
            rho_bar=0.8,
        ),
    ),
    *(
        Case(
            "rl_triton.compute_lambda_returns",
            label,
            (N, T),
            lambda draw, given=given: rl_triton_flags(
                draw, False, rewards=draw.real(), next_values=draw.real(), lambda_=LAM, **({"bootstrap_values": draw.real()} if given else {"truncateds": None})
            ),
        )
        for label, given in (("both flags", True), ("no bootstrap", False))
    ),
    *(
        Case(
            "rl_triton.compute_discounted_returns",
            label,
            (N, T),
            lambda draw, given=given: rl_triton_flags(
                draw, False, rewards=draw.real(), **({"bootstrap_values": draw.real()} if given else {"truncateds": None})
            ),
        )
        for label, given in (("both flags", True), ("no bootstrap", False))
    ),
    *(
        Case(
            "rlax.lambda_returns",
            label,
            (N, T),
            lambda draw, each=each: {"r_t": draw.real(), "discount_t": draw.discounts(), "v_t": draw.real(), "lambda_": draw.unit() if each else LAM},
            f"{RLAX}:lambda_returns",
            mapped=True,
        )
        for label, each in (("a number", False), ("each step", True))
    ),
    Case(
        "rlax.discounted_returns",
        "",
        (N, T),
        lambda draw: {"r_t": draw.real(), "discount_t": draw.discounts(), "v_t": draw.real()},
        f"{RLAX}:discounted_returns",
        mapped=True,
    ),
    *(
        Case(
            "rlax.n_step_bootstrapped_returns",
            f"n {n}",
            (N, T),
            lambda draw, n=n: {"r_t": draw.real(), "discount_t": draw.discounts(), "v_t": draw.real(), "n": n, "lambda_t": draw.unit()},
            f"{RLAX}:n_step_bootstrapped_returns",
            mapped=True,
        )
        for n in (1, 4, T + 3)
    ),
    Case(
        "rlax.truncated_generalized_advantage_estimation",
        "",
        (N, T),
        lambda draw: {"r_t": draw.real(), "discount_t": draw.discounts(), "lambda_": LAM, "values": draw.real(shape=(N, T + 1))},
        f"{RLAX}:truncated_generalized_advantage_estimation",
        mapped=True,
    ),
    *(
        Case(
            f"rlax.vtrace{tail}",
            "masked" if masked else "",
            (N, T),
            lambda draw, tail=tail, masked=masked: vtrace_errors(
                draw, lambda_=draw.unit(), **({"clip_pg_rho_threshold": 0.7} if tail else {}), **({"sample_mask": draw.flags(0.7)} if masked else {})
            ),
            f"{RLAX}:vtrace{tail}",
            mapped=True,
        )
        for tail in ("", "_td_error_and_advantage")
        for masked in (False, True)
    ),
    Case(
        "rlax.retrace",
        "",
        (N, T),
        lambda draw: {
            "q_tm1": draw.real(A),
            "q_t": draw.real(A),
            "a_tm1": draw.actions(),
            "a_t": draw.actions(),
            "r_t": draw.real(),
            "discount_t": draw.discounts(),
            "pi_t": draw.policy(),
            "mu_t": draw.unit(),
            "lambda_": LAM,
        },
        f"{RLAX}:retrace",
        mapped=True,
    ),
    Case(
        "brax.compute_gae",
        "both flags",
        (T, N),
        lambda draw: {
            "truncation": draw.flags() * 1.0,
            "termination": draw.flags() * 1.0,
            "rewards": draw.real(),
            "values": draw.real(),
            "bootstrap_value": draw.real(shape=(N,)),
            "lambda_": LAM,
            "discount": GAMMA,
        },
        "brax.training.agents.ppo.losses:compute_gae",
    ),
    Case(
        "purejaxrl.gae",
        "",
        (T, N),
        lambda draw: {
            "traj_batch": Transition(draw.flags(), draw.real(), draw.real()),
            "last_val": draw.real(shape=(N,)),
            "gamma": GAMMA,
            "gae_lambda": LAM,
        },
    ),
]


def ends(draw: Draw) -> np.ndarray:
    """Episodes end to end, the last one too."""
    flags = draw.flags()
    flags[-1] = True
    return flags


def name_of(case: Case) -> str:
    return f"{case.function} {case.label}".strip()


each_case = pytest.mark.parametrize("case", CASES, ids=name_of)
each_original = pytest.mark.parametrize("case", [case for case in CASES if case.original], ids=name_of)


@each_case
def test_the_numbers_are_those_of_the_formula(case: Case):
    pytest.importorskip(case.backend)
    case.agree(case.ours(), case.formula())


@each_original
def test_the_numbers_are_those_of_the_library(case: Case):
    """Both those of rlscan and those of the formula, so that no formula is one that nobody computes."""
    pytest.importorskip(case.backend)
    module, _, name = str(case.original).partition(":")
    # a library may be there and fail to import, as where it wants another release of its framework
    theirs = case.run(getattr(pytest.importorskip(module, exc_type=ImportError), name))
    case.agree(case.ours(), theirs)
    case.agree(case.formula(), theirs)


@pytest.mark.parametrize("case", [case for case in CASES if not case.function.startswith("tianshou")], ids=name_of)
def test_float32_stays_float32(case: Case):
    """But for Tianshou's results, which are float64 whatever is given."""
    pytest.importorskip(case.backend)

    def narrow(x: Any) -> Any:
        if isinstance(x, tuple):
            return Transition(*map(narrow, x))
        return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x

    narrowed = dataclasses.replace(case, arguments=lambda draw: {name: narrow(x) for name, x in case.arguments(draw).items()})
    for one, other in zip(narrowed.ours(), case.formula(), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=bound(other if case.whitened else None, single=True))


def cut_to(steps: int, case: Case) -> Case:
    """The case with this many steps in the place of T, and of one whose rows lie end to end with one step."""
    axis = case.shape.index(T) if T in case.shape else 0

    def fewer(x: Any) -> Any:
        if isinstance(x, tuple):
            return Transition(*map(fewer, x))
        if not isinstance(x, np.ndarray) or x.ndim <= axis or x.shape[axis] not in (T, T + 1, N * T):
            return x
        return x.take(range(steps + x.shape[axis] - case.shape[axis]), axis)

    return dataclasses.replace(case, arguments=lambda draw: {name: fewer(x) for name, x in case.arguments(draw).items()})


@each_case
@pytest.mark.parametrize("steps", [0, 1])
def test_few_steps(case: Case, steps: int):
    pytest.importorskip(case.backend)
    axis = case.shape.index(T) if T in case.shape else 0
    few = cut_to(steps, case)
    for result in few.ours():
        assert result.shape[axis] == steps
    if steps and not case.whitened:
        few.agree(few.ours(), few.formula())


@pytest.mark.parametrize("case", [case for case in CASES if case.takes_numpy], ids=name_of)
def test_any_view_of_numpy_is_taken(case: Case):
    """Backward, and not to be written to, which PyTorch refuses and warns of."""
    pytest.importorskip(case.backend)

    def viewed(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        view = x[::-1].copy()[::-1]
        view.setflags(write=False)
        return view

    views = dataclasses.replace(case, arguments=lambda draw: {name: viewed(x) for name, x in case.arguments(draw).items()})
    for one, other in zip(views.ours(), case.ours(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_padding_may_be_of_any_type(dtype: str):
    torch = pytest.importorskip("torch")
    from rlscan.torch_triton.compat.trl import gae

    draw = Draw(N, T)
    rewards, values, padding = (torch.from_numpy(x) for x in (draw.real(), draw.real(), draw.flags()))
    for one, other in zip(gae(rewards, values, padding.to(getattr(torch, dtype))), gae(rewards, values, padding), strict=True):
        assert torch.equal(one, other)


def test_the_gradient_by_a_ratio_of_0_is_0():
    jax = pytest.importorskip("jax")
    from rlscan.jax_pallas.compat.rlax import vtrace, vtrace_td_error_and_advantage

    jnp = jax.numpy
    ones = jnp.ones(2)
    # δ = 1 + 1 - 1 = 1 in both steps: the error of the second is its ratio, that of the first ratio (1 + second), here 0 (1 + 1)
    ratios = jnp.array([0.0, 1.0])
    errors = vtrace(ones, ones, ones, ones, ratios, clip_rho_threshold=2.0, stop_target_gradients=False)
    assert errors.tolist() == [0.0, 1.0]
    by_ratio = jax.grad(lambda rho: vtrace(ones, ones, ones, ones, rho, clip_rho_threshold=2.0, stop_target_gradients=False).sum())(ratios)
    assert by_ratio.tolist() == [0.0, 1.0]
    by_ratio = jax.grad(lambda rho: vtrace_td_error_and_advantage(ones, ones, ones, ones, rho, clip_pg_rho_threshold=2.0).pg_advantage.sum())(ratios)
    assert by_ratio.tolist()[0] == 0.0


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if case.original and case.mapped], ids=name_of)
def test_gradients_are_those_of_rlax(case: Case, stop: bool):
    """Of a weighted sum of all results, by every floating array."""
    jax = pytest.importorskip("jax")
    rlax = pytest.importorskip("rlax", exc_type=ImportError)
    ours = importlib.import_module("rlscan.jax_pallas.compat.rlax")
    name = case.function.partition(".")[2]

    def gradients(module: Any) -> dict[str, Any]:
        given = {name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in case.drawn().items()}
        at = {name: x for name, x in given.items() if isinstance(x, jax.Array) and x.dtype == np.float64}
        kept = {name: x for name, x in given.items() if isinstance(x, jax.Array) and name not in at}
        numbers = {name: x for name, x in given.items() if not isinstance(x, jax.Array)}

        def loss(at: dict[str, Any]) -> Any:
            results = jax.vmap(lambda at, kept: getattr(module, name)(**at, **kept, **numbers, stop_target_gradients=stop))(at, kept)
            return sum((result * jax.numpy.asarray(Draw(*result.shape).real())).sum() for result in as_tuple(results))

        return jax.grad(loss)(at)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        found, theirs = gradients(ours), gradients(rlax)
        assert found.keys() == theirs.keys()
        for name_, gradient in found.items():
            np.testing.assert_allclose(gradient, theirs[name_], rtol=0, atol=bound(gradient=True), err_msg=name_)


@each_case
def test_another_discount_is_noticed(case: Case):
    """The bound is far below what any mistake in a convention makes of random numbers."""
    pytest.importorskip(case.backend)
    names = [name for name in ("gamma", "discount", "discounts", "discount_t") if name in case.drawn()]
    other = dataclasses.replace(case, arguments=lambda draw: {name: x * 0.999 if name in names else x for name, x in case.arguments(draw).items()})
    with pytest.raises(AssertionError):
        case.agree(other.ours(), case.formula())


@each_case
def test_what_is_drawn_is_small(case: Case):
    def arrays(x: Any) -> list[np.ndarray]:
        return [x] if isinstance(x, np.ndarray) else [array for part in x for array in arrays(part)] if isinstance(x, tuple) else []

    for name, given in case.drawn().items():
        for array in arrays(given):
            assert np.abs(np.log(array) if name == "rho_tm1" else array).max(initial=0) < (LARGEST_LOGARITHM if name == "rho_tm1" else LARGEST), name


def test_every_function_has_a_case():
    found = {f"{module.name}.{function.name}" for module in modules() for function in module.functions}
    assert found == {case.function for case in CASES}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.path)
def test_every_function_says_what_is_wrong_and_what_repairs_it(module: Any):
    for function in module.functions:
        assert function.wrong, f"{function.name} says nothing wrong"
        assert function.repair, f"{function.name} repairs nothing"
        assert function.replaces, f"{function.name} replaces nothing"
