"""What the parameters of somebody else's function mean, guessed from their names, and calls of it with a window in our terms.

A window is told to the function in its own words: flags as `dones`, as their opposite, as discounts that are 0 where the episode ends, or one step
later as flags of observations; values with the bootstrap behind them; ratios or logarithms of them or two log-probabilities.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck.backends import tensor, wide_numbers
from rlscan.spec.coefficients import cut, ends
from rlscan.spec.recurrences import Recurrence

Framework = Literal["numpy", "torch", "jax"]
Layout = Literal["batch", "time", "row"]
LAYOUTS: tuple[Layout, ...] = ("batch", "time", "row")
SHAPES = {"batch": "[N, T]", "time": "[T, N]", "row": "[T], one row a call"}

Facts = Mapping[str, Any]
"""A window: our arguments by name, arrays with rows first and time last, with all that is known of it, whatever one call would take of it."""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a parameter may be.

    Attributes:
        name: of ours, where it is one of our arguments.
        says: for reports.
        tells: our arguments that the function knows by it.
        aliases: names that are known to mean it.
        value: of a window.
        kind: has an axis of time, or none, or is a number; `flags` have one too, and may be of any type.
    """

    name: str
    says: str
    tells: tuple[str, ...]
    aliases: tuple[str, ...]
    value: Callable[[Facts], Any]
    kind: Literal["steps", "flags", "row", "row flags", "number", "option"] = "steps"


def _ends(facts: Facts) -> np.ndarray:
    return ends(facts["terminated"], facts["truncated"])


def _arrived(facts: Facts) -> np.ndarray:
    ended = _ends(facts)
    return np.concatenate([np.zeros_like(ended[:, :1]), ended], axis=1)[:, : ended.shape[1]]


def _last(array: np.ndarray) -> np.ndarray:
    return array[:, -1] if array.shape[1] else np.zeros(array.shape[0], array.dtype)


def _same(name: str, says: str, aliases: str, kind: Any = "steps") -> Meaning:
    return Meaning(name, says, (name,), (name, *aliases.split()), lambda facts: facts[name], kind)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DONE = "done dones d done_t dones_t flags ends episode_ends end_flag end_flags"

MEANINGS: dict[str, Meaning] = {
    meaning.name: meaning
    for meaning in (
        _same("rewards", "rewards", "reward rews rew r r_t reward_t token_level_rewards token_rewards"),
        _same("values", "V(s_t)", "value val vals v v_tm1 values_t state_value state_values value_preds baseline baselines"),
        Meaning(
            "values and bootstrap",
            "V(s_t), and behind it V of the state after the window",
            ("values", "bootstrap_value"),
            ("values", "value", "vals", "v", "value_preds", "values_with_bootstrap"),
            lambda facts: np.concatenate([facts["values"], facts["bootstrap_value"][:, None]], axis=1),
        ),
        _same("terminated", "the episode terminates with this step", f"terminateds terminations termination terminal terminals term {_DONE}", "flags"),
        Meaning("done", "the episode ends with this step", ("terminated", "truncated"), (*_DONE.split(), "traj_flag", "traj_flags"), _ends, "flags"),
        Meaning(
            "done before",
            "the episode ended with the step before",
            ("terminated",),
            (*_DONE.split(), "episode_starts", "is_first", "firsts"),
            _arrived,
            "flags",
        ),
        Meaning(
            "done at last",
            "the episode ends with the last step",
            (),
            (*_DONE.split(), "next_done", "next_dones", "last_done", "last_dones", "next_terminal", "next_terminated"),
            lambda facts: _last(_ends(facts)),
            "row flags",
        ),
        _same("truncated", "the episode is truncated at this step", "truncateds truncations truncation truncation_t trunc timeout timeouts time_outs", "flags"),
        Meaning(
            "nonterminal",
            "1 where the episode goes on, 0 where it ends",
            ("terminated",),
            _words("mask masks nonterminal nonterminals non_terminal not_done not_dones continues cont conts continuation live next_nonterminal"),
            lambda facts: np.where(_ends(facts), 0.0, 1.0),
        ),
        Meaning(
            "discounts",
            "gamma, and 0 where the episode terminates",
            ("gamma", "terminated"),
            _words("discounts discount discount_t pcontinues pcont_t pcontinue"),
            lambda facts: cut(np.broadcast_to(facts["gamma"], facts["terminated"].shape), facts["terminated"]),
        ),
        _same("next_values", "V(s'_t) at every step", "next_value next_vals next_v next_state_value next_state_values values_next v_t bootstrapped_values"),
        _same(
            "bootstrap_value",
            "V of the state after the window",
            "bootstrap bootstrap_val bootstrap_values next_value next_v last_value last_values last_val last_v last_vf v_last final_value",
            "row",
        ),
        _same("final_values", "V(s'_t) where truncated", "final_value terminal_value terminal_values final_vals bootstrap_values"),
        _same("valid", "this step is a transition", "valids mask masks response_mask loss_mask action_mask token_mask attention_mask", "flags"),
        _same("starts", "the first step of a segment", "starts_at segment_starts is_first resets boundaries", "flags"),
        _same("gamma", "gamma", "γ discount discount_factor disc g", "number"),
        _same("lam", "lambda", "λ lambda_ lambd lmbda lamda lmbd gae_lambda gae_lam td_lambda lambda_t trace_decay", "number"),
        _same("log_rhos", "log of the ratios", "log_rho log_ratio log_ratios log_importance_weights log_is"),
        Meaning(
            "ratios",
            "target over behaviour policy",
            ("log_rhos",),
            _words("rhos rho rho_tm1 ratio ratios importance_weights importance_ratios is_ratios weights"),
            lambda facts: np.exp(facts["log_rhos"]),
        ),
        # Each a half, so that to read one of them alone, or the two in each other's place, is noticed.
        Meaning(
            "target log-probabilities",
            "log pi(a_t|s_t)",
            ("log_rhos",),
            _words("target_log_probs target_action_log_probs target_logp target_logprobs log_pi new_log_probs curr_log_probs target_logits_logp"),
            lambda facts: np.ldexp(facts["log_rhos"], -1),
        ),
        Meaning(
            "behaviour log-probabilities",
            "log mu(a_t|s_t)",
            ("log_rhos",),
            _words(
                "behaviour_log_probs behavior_log_probs behaviour_action_log_probs behavior_action_log_probs behavior_logp behaviour_logp "
                "behavior_logprobs log_mu old_log_probs old_logprobs"
            ),
            lambda facts: np.negative(np.ldexp(facts["log_rhos"], -1)),
        ),
        _same("rho_bar", "the bar of the TD error", "rho_clip clip_rho_threshold clip_rho rho_thresh rho_max", "number"),
        _same("c_bar", "the bar of the trace", "c_clip clip_c_threshold clip_c c_thresh c_max", "number"),
        _same("pg_rho_bar", "the bar of the policy-gradient advantage", "clip_pg_rho_threshold clip_pg_rho pg_rho_clip pg_clip", "number"),
        _same("q_values", "Q(s_t, a_t)", "q_value q qs q_tm1 qa chosen_q"),
        _same("expected_next_q", "the expectation of Q(s'_t, a)", "next_expected_q next_v next_values next_value v_t expected_q next_q"),
        _same("inputs", "what is summed", "input x features u data grads"),
        _same("addend", "what each step adds", "addends b bias u x inputs"),
        _same("factor", "what the state is multiplied by", "factors a decay decays gate gates g coefficients coeffs"),
        _same("initial", "the state before the first step", "init seed carry h0 x0 z0 y0 initial_value initial_state", "row"),
        _same("reverse", "from the last step to the first", "backward", "option"),
        Meaning("time_axis", "the axis of time", (), ("time_axis", "time_dim", "axis", "dim"), lambda facts: facts["time_axis"], "option"),
        Meaning("time_major", "time is the first axis", (), ("time_major",), lambda facts: facts["time_axis"] == 0, "option"),
    )
}

_FLAGS = ("terminated", "done", "done before", "nonterminal")
_BEHIND = ("next_values", "bootstrap_value", "final_values", "expected_next_q")
MOST_READINGS = 24
"""That are tried of one function."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One way to understand a function: what each parameter means, how arrays are laid out, and whether gamma and lambda are arrays always."""

    parameters: tuple[tuple[str, str], ...]
    layout: Layout
    flags: str
    by_step: bool = False

    @property
    def tells(self) -> frozenset[str]:
        told = {name for _, meaning in self.parameters for name in MEANINGS[meaning].tells}
        # one flag for both ends can't say which, and is then given for terminations alone
        meanings = {meaning for _, meaning in self.parameters}
        apart = "truncated" in meanings or {"done", "terminated"} <= meanings or {"done", "discounts"} <= meanings
        return frozenset(told if apart else told - {"truncated"})

    @property
    def time_axis(self) -> int:
        return {"batch": 1, "time": 0, "row": 0}[self.layout]

    @property
    def says(self) -> dict[str, str]:
        """What each parameter was taken for."""
        return {parameter: MEANINGS[name].says + (" of each step" if self.by_step and name in ("gamma", "lam") else "") for parameter, name in self.parameters}

    def told(self, facts: Facts, float_dtype: str, flag_dtype: str | None = None) -> dict[str, Any]:
        """The arguments by the names of the function, as new NumPy arrays, numbers and options; numbers that are another at each step are arrays."""
        facts = {**facts, "time_axis": self.time_axis}
        arguments: dict[str, Any] = {}
        for parameter, name in self.parameters:
            meaning = MEANINGS[name]
            value = meaning.value(facts)
            if self.by_step and name in ("gamma", "lam"):
                value = np.broadcast_to(value, facts["terminated"].shape)
            if meaning.kind == "number" and np.ndim(value) == 0:
                arguments[parameter] = float(value)
            elif meaning.kind == "option":
                arguments[parameter] = value
            else:
                value = np.array(value, (flag_dtype or self.flags) if "flags" in meaning.kind else float_dtype)
                if "row" not in meaning.kind and self.layout == "time":
                    value = np.ascontiguousarray(value.T)
                arguments[parameter] = value[0] if self.layout == "row" else value
        return arguments


class Raised(Exception):  # noqa: N818  (what it raised is a finding, and no error)
    """The function raised."""


class Target:
    """A function of somebody's, which takes NumPy arrays here, whatever it is written for.

    Attributes:
        changes: the parameters that it wrote to.
    """

    def __init__(self, function: Callable, framework: Framework, adapter: Callable | Mapping[str, str | None] | None) -> None:
        if not callable(function):
            raise TypeError(f"function is {function!r}; wanted one that can be called")
        if not (adapter is None or callable(adapter) or isinstance(adapter, Mapping)):
            raise TypeError(f"adapter is {adapter!r}; wanted a mapping or a function")
        self.function, self.framework = function, framework
        self.adapter = adapter if callable(adapter) else None
        self.said = adapter if isinstance(adapter, Mapping) else {}
        self.changes: set[str] = set()
        self.float_dtype = "float32" if framework == "jax" else "float64"

    @property
    def signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self.adapter or self.function)
        except (TypeError, ValueError):
            return inspect.Signature()

    def call(self, told: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The results, each with its name, or its number where it has none; `Raised` where there are none."""
        given = {name: self._array(value) if isinstance(value, np.ndarray) else value for name, value in told.items()}
        try:
            with np.errstate(all="ignore"), _wide(self.framework, told):
                results = _named(self._call(given))
                # copied, for it may write the next ones into the same memory
                found = [(name, _without_last_axis(_as_numpy(result), told).copy()) for name, result in results]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever it raises is a finding, exits and what a test runner skips by included
            raise Raised(_in_words(error)) from error
        for name, value in told.items():
            if isinstance(value, np.ndarray) and not _same_bits(_as_numpy(given[name]), value):
                self.changes.add(name)
        return found

    def _call(self, given: dict[str, Any]) -> Any:
        if self.adapter is not None:
            handed = self.adapter(**given)
            return self.function(**handed) if isinstance(handed, Mapping) else self.function(*handed)
        kinds = self.signature.parameters
        positional = [name for name, parameter in kinds.items() if parameter.kind is parameter.POSITIONAL_ONLY and name in given]
        return self.function(*(given[name] for name in positional), **{name: value for name, value in given.items() if name not in positional})

    def _takes(self, name: Any) -> bool:
        """By what is known of the signature, of which builtin functions tell nothing."""
        kinds = self.signature.parameters
        return not kinds or name in kinds or any(parameter.kind is parameter.VAR_KEYWORD for parameter in kinds.values())

    def _array(self, array: np.ndarray) -> Any:
        if self.framework == "torch":
            return tensor(array, "cpu", array.dtype.name)
        if self.framework == "jax":
            with _wide("jax", {"": array}):
                return importlib.import_module("jax").numpy.asarray(array.copy())
        return array.copy() if array.flags.c_contiguous else _laid_out_alike(array)

    def readings(self, recurrence: Recurrence, layout: Layout | None) -> list[Reading]:
        """The likely ones, the likeliest first; a `ValueError` names a parameter that is not understood."""
        facts = {*recurrence.argument_names, *({"terminated"} if recurrence.name != "affine_scan" else ())}
        parameters = {
            name: parameter for name, parameter in self.signature.parameters.items() if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        theirs: dict[str, str] = {}
        for ours, name in self.said.items():
            if ours not in MEANINGS:
                raise ValueError(f"adapter: {ours} is no meaning; wanted some of {', '.join(MEANINGS)}")
            if not set(MEANINGS[ours].tells) <= facts:
                raise ValueError(f"adapter: {ours} is nothing that {recurrence.name} takes; wanted some of {', '.join(sorted(facts))}")
            if name is not None and not self._takes(name):
                raise ValueError(f"adapter: {ours} is {name!r}; wanted one of the function's parameters, {', '.join(parameters) or 'of which none has a name'}")
            if name in theirs:
                raise ValueError(f"adapter: {theirs[name]} and {ours} are both {name!r}; wanted a parameter for each")
            if name is not None:
                theirs[name] = ours
        candidates: dict[str, list[str]] = {name: [ours] for name, ours in theirs.items()}
        for name in parameters:
            if name not in candidates:
                known = [m.name for m in MEANINGS.values() if name.lower().strip("_") in [x.strip("_") for x in m.aliases] and set(m.tells) <= facts]
                candidates[name] = [meaning for meaning in known if meaning not in self.said]
        missing = [name for name, known in candidates.items() if not known and name in parameters and parameters[name].default is inspect.Parameter.empty]
        if missing:
            raise ValueError(
                f"the parameter {missing[0]} is not understood; wanted adapter={{meaning: {missing[0]!r}}} with one of {', '.join(MEANINGS)}, or an adapter "
                "that takes our arguments by name and gives those of the function"
            )
        candidates = {name: _in_context(name, candidates) for name, known in candidates.items() if known}
        if not candidates:
            raise ValueError("no parameter of the function is known by its name; wanted an adapter")
        optional = {name for name, parameter in parameters.items() if parameter.default is not inspect.Parameter.empty and name not in theirs}
        layouts = LAYOUTS if layout is None else (layout,)
        chosen: list[Reading] = []
        for meanings in itertools.product(*candidates.values()):
            pairs = tuple(zip(candidates, meanings, strict=True))
            for some in _without_one_source(pairs, optional):
                # a meaning of two parameters is a wrong guess of one
                if len({meaning for _, meaning in some}) == len(some):
                    chosen += [Reading(some, each, flags) for each in layouts for flags in ("bool", self.float_dtype)]
        if not chosen:
            raise ValueError("the parameters can't be told apart by their names; wanted an adapter")
        return chosen[: MOST_READINGS * len(layouts)]


def _in_context(name: str, candidates: Mapping[str, list[str]]) -> list[str]:
    """Of what a name may mean, what it may mean beside the others, the likeliest first."""
    known = candidates[name]
    if len(known) == 1:
        return known
    others = [set(meanings) for other, meanings in candidates.items() if other != name and meanings]

    def sure(meaning: str) -> bool:
        return {meaning} in others

    def possible(*meanings: str) -> bool:
        return any(other & set(meanings) for other in others)

    if "done at last" in known:  # a name for any flag
        if sure("done at last"):
            return ["done before"]
        if any(other <= {"done before", "starts"} for other in others):
            return ["done at last"]
        return ["done"] if sure("terminated") or sure("discounts") else ["terminated"]
    if known[0] == "done before" and "starts" in known:
        return known
    if {"nonterminal", "valid"} <= set(known):
        return ["valid"] if possible(*_FLAGS, "discounts") else ["nonterminal", "valid"]
    if {"discounts", "gamma"} <= set(known):
        return ["gamma", "discounts"] if possible(*_FLAGS) or sure("gamma") else ["discounts", "gamma"]
    if "values and bootstrap" in known:
        # a loop that reads one value more raises where there is none; one that does not would run with it as well
        return ["values"] if possible(*_BEHIND) else ["values", "values and bootstrap"]
    if {"next_values", "bootstrap_value"} <= set(known):
        return ["next_values"] if sure("bootstrap_value") else ["bootstrap_value", "next_values"]
    if {"bootstrap_value", "final_values"} <= set(known):
        return ["final_values"] if sure("bootstrap_value") else ["bootstrap_value", "final_values"]
    return known


def _without_one_source(pairs: tuple[tuple[str, str], ...], optional: set[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Where the successor's value can be said in two ways, neither of which is required, one of them; so also for starts and ends."""
    may_go = {meaning for name, meaning in pairs if name in optional}
    meanings = {meaning for _, meaning in pairs}
    if {"next_values", "bootstrap_value"} <= may_go:
        drops: Sequence[set[str]] = ({"next_values"}, {"bootstrap_value", "final_values"}, set())
    elif {"starts", "terminated"} <= meanings and "starts" in may_go:
        drops = ({"starts"},)
    else:
        drops = (set(),)
    for drop in drops:
        yield tuple((name, meaning) for name, meaning in pairs if meaning not in drop)


def _laid_out_alike(array: np.ndarray) -> np.ndarray:
    """A copy with the strides of `array`, so far as a view can have them."""
    if 0 in array.strides:
        return np.broadcast_to(array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)].copy(), array.shape)
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _in_words(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error of somebody's may not even say what it is
        lines = []
    return printable(f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": "))


def printable(text: str) -> str:
    """What a terminal would obey, and what no file can hold, is shown as a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _wide(framework: str, told: Mapping[str, Any]) -> Any:
    return wide_numbers(told.values()) if framework == "jax" else contextlib.nullcontext()


def _named(results: Any) -> list[tuple[str, Any]]:
    if isinstance(results, Mapping):
        return [(printable(str(name)), result) for name, result in results.items()]
    if hasattr(results, "_fields"):
        return list(zip(results._fields, results, strict=True))
    if dataclasses.is_dataclass(results) and not isinstance(results, type):
        return [(field.name, getattr(results, field.name)) for field in dataclasses.fields(results)]
    # a list of numbers is one result, whatever kind of numbers
    if isinstance(results, tuple | list) and any(len(getattr(result, "shape", ())) for result in results):
        return [(f"result {number}", result) for number, result in enumerate(results)]
    return [("result", results)]


def _as_numpy(result: Any) -> np.ndarray:
    if hasattr(result, "detach"):
        result = result.detach().cpu()
        result = result.float() if str(result.dtype) == "torch.bfloat16" else result
        return result.numpy()
    array = np.asarray(result)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _without_last_axis(result: np.ndarray, told: Mapping[str, Any]) -> np.ndarray:
    """Where libraries keep an axis of one value behind those of rows and time."""
    axes = max((x.ndim for x in told.values() if isinstance(x, np.ndarray)), default=0)
    return result[..., 0] if result.ndim == axes + 1 and result.shape[-1] == 1 else result


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
