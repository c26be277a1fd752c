"""Small windows that show one boundary rule each, for functions of which only the signature is known.

All numbers are small integers and fractions of powers of two, so that whatever order or form a function computes in, it rounds next to nothing. V(s'_t) is that
of the next valid step inside an episode, whatever argument says it: a function may take it from either place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlscan.spec.recurrences import Recurrence
from rlscan.spec.rules import RULES, Rule

FORMULA, PER_STEP = "formula", "per-step"

ASKED: dict[str, Rule] = {
    FORMULA: Rule(FORMULA, "the recurrence itself", "It differs where nothing ends and nothing lies behind the window."),
    PER_STEP: Rule(PER_STEP, "gamma and lambda for each step", "It differs where gamma or lambda is another at each step, though nothing ends."),
    **RULES,
}
"""What a function is asked about: the recurrence where nothing ends, with one gamma and lambda and with one for each step, and the rules."""

PARAMETERS = ((0.5, 0.5), (1.0, 0.5), (0.5, 1.0))
"""Of gamma and lambda; they differ in some, so that the one in the place of the other shows."""

ABOUT_THE_END = ("B4", "B5", "B6", "B8", "B9")
"""Where what lies behind the window, or before it, may show. Elsewhere it is 0 but for rows that are cut there, so that one mistake breaks one rule."""

MADE_HERE = (PER_STEP, "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9")
"""The rules that are about the contents of a window. The others are about its size and its types."""


def _nothing_behind(facts: dict[str, Any]) -> None:
    ended, started = (np.zeros(facts["terminated"].shape[0], bool) for _ in range(2))
    if facts["terminated"].shape[1]:
        ended, started = (facts["terminated"] | facts["truncated"])[:, -1], facts["starts"][:, 0]
    for name, cut in (("bootstrap_value", ended), ("initial", started)):
        if name in facts:
            facts[name] = np.where(cut, facts[name], 0.0)
    for name in {"values", "expected_next_q"} & set(facts):
        facts[name][:, -1:] = np.where(ended[:, None], facts[name][:, -1:], 0.0)


class Chooser(Protocol):
    """Where the numbers come from: a generator of random numbers, or hypothesis, which makes them small."""

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> np.ndarray: ...

    def flags(self, shape: tuple[int, ...]) -> np.ndarray: ...


class AtRandom:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> np.ndarray:
        return self.random.integers(least, most + 1, shape).astype(np.float64)

    def flags(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.random.random(shape) < 0.3


class ByHypothesis:
    """Each number is drawn on its own, so that each can be made small on its own."""

    def __init__(self, draw: Callable[[Any], Any], strategies: Any) -> None:
        self.draw, self.strategies = draw, strategies

    def integers(self, shape: tuple[int, ...], least: int, most: int) -> np.ndarray:
        return self._array(shape, self.strategies.integers(least, most), np.float64)

    def flags(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._array(shape, self.strategies.booleans(), np.bool_)

    def _array(self, shape: tuple[int, ...], strategy: Any, dtype: Any) -> np.ndarray:
        return np.array([self.draw(strategy) for _ in range(int(np.prod(shape)))], dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Which windows.

    Attributes:
        recurrence: what is called.
        tells: our arguments that the function is told.
        rule: what they are to show.
        gamma, lam: of all rows.
        by_step: of these two, those that have a number for each step.
        shared: these are the same for all rows, and `[T]`.
    """

    recurrence: Recurrence
    tells: frozenset[str]
    rule: str
    gamma: float
    lam: float
    by_step: frozenset[str] = frozenset()
    shared: bool = False

    def cannot(self) -> str | None:
        """Why there are no such windows for this function."""
        names, rule = set(self.recurrence.argument_names), self.rule
        behind = {"next_values", "final_values", "bootstrap_value", "values"} & self.tells
        if rule == PER_STEP and not {"gamma", "lam"} & names:
            return "the operation has neither gamma nor lambda"
        if rule == PER_STEP and not {"gamma", "lam"} & self.tells:
            return "no parameter says gamma or lambda"
        if rule == "B5" and "terminated" in names and not self.flags_told | (self.tells & {"valid"}):
            return "no parameter says where an episode ends"
        if rule == "B1" and "terminated" not in self.tells:
            return "no parameter says where an episode terminates" if "terminated" in names else "the operation knows no episodes"
        if rule in ("B2", "B3") and "truncated" not in self.tells:
            if "truncated" not in names:
                return "the operation knows no episodes"
            apart = "no parameter tells truncations from terminations"
            forward = self.recurrence.direction == "forward"
            return apart if forward else f"{apart}, so that a truncation can only be passed as one, which bootstraps from nothing"
        if rule == "B3" and "terminated" not in self.tells:
            return "no parameter says where an episode terminates"
        if rule == "B2" and "bootstrap_value" in names and not behind:
            return "no parameter says V of the state that a truncation cut at"
        if rule == "B4" and not {"bootstrap_value", "next_values", "expected_next_q", "initial"} & self.tells:
            return "no parameter says V of the state after the window" if "bootstrap_value" in names else "no parameter says what lies beyond the window"
        if rule == "B5" and "terminated" not in names:
            return "the operation knows no episodes; what a factor of 0 cuts off is rule B6"
        if rule == "B6" and not {"gamma", "factor"} & self.tells:
            return "no parameter says the discount" if "gamma" in names else "the operation has no discount"
        if rule == "B7" and (self.recurrence.direction == "backward" or "terminated" not in names):
            return "it is about operations that run forward over episodes"
        if rule == "B7" and not self.flags_told:
            return "no parameter says where an episode ends"
        if rule == "B8" and "valid" not in self.tells:
            return "no parameter says which steps are transitions" if "valid" in names else "the operation knows no invalid steps"
        return None

    @property
    def flags_told(self) -> frozenset[str]:
        return self.tells & {"terminated", "truncated", "starts"}

    def window(self, choose: Chooser, rows: int, steps: int) -> dict[str, Any]:
        """All that is known of it: arrays `[rows, steps]`, or `[rows]`, and numbers."""
        shape, rule = (rows, steps), self.rule
        kinds = {argument.name: argument for argument in self.recurrence.arguments}
        facts: dict[str, Any] = {}
        spoilt = rule in ("B5", "B6", "B9")

        def numbers(size: tuple[int, ...], least: int = -4, most: int = 4) -> np.ndarray:
            drawn = choose.integers(size, least, most)
            return np.where(choose.flags(size), np.nan, drawn) if spoilt else drawn

        for name, argument in kinds.items():
            if argument.shape in ("steps", "inputs") and not argument.flag:
                facts[name] = numbers(shape)
            elif argument.shape == "row":
                facts[name] = numbers(shape[:1])
            elif argument.shape == "number":
                # no two bars alike, and each met by some ratio
                facts[name] = {"rho_bar": 1.5, "c_bar": 0.75, "pg_rho_bar": 1.25}[name] if name in self.tells else argument.default
        if "log_rhos" in facts:
            facts["log_rhos"] = np.where(np.isnan(facts["log_rhos"]), np.nan, np.clip(facts["log_rhos"], -1, 1) * np.log(2.0))
        if "reverse" in kinds:
            facts["reverse"] = False
        if "factor" in kinds:
            halves = choose.integers(shape, -2, 2)
            facts["factor"] = np.where(choose.flags(shape), 0.0, halves / 2) if rule == "B6" else np.where(halves == 0, 1.0, halves / 2)
        facts |= {"gamma": 0.0 if rule == "B6" else self.gamma} if "gamma" in kinds else {}
        facts |= {"lam": self.lam} if "lam" in kinds else {}
        if "gamma" in kinds and "gamma" not in self.tells:
            facts["gamma"] = self.gamma
        if rule == PER_STEP:
            facts |= {name: choose.integers(shape[1:] if self.shared else shape, 1, 4) / 4 for name in sorted(self.by_step)}
        self._raise_flags(facts, choose, shape)
        if "initial" in facts and "initial" not in self.tells:
            facts["initial"] = np.zeros(rows)
        if rule not in ABOUT_THE_END:
            _nothing_behind(facts)
        if "next_values" in kinds:
            self._successors(facts)
        return facts

    def _raise_flags(self, facts: dict[str, Any], choose: Chooser, shape: tuple[int, ...]) -> None:
        raised: dict[str, tuple[str, ...]] = {
            "B1": ("terminated",),
            "B2": ("truncated",),
            "B5": ("terminated", "truncated", "starts", "valid"),
            "B7": ("terminated", "truncated", "starts"),
            "B8": ("valid",),
        }
        for name in ("terminated", "truncated", "starts", "valid"):
            known = name in self.tells and name in raised.get(self.rule, ())
            facts[name] = choose.flags(shape) if known else np.zeros(shape, bool)
        if self.rule == "B3":
            facts["terminated"] = facts["truncated"] = choose.flags(shape)
        facts["valid"] = ~facts["valid"]
        if self.rule == "B8":
            # what is stored at steps that are no transitions counts for nothing, flags included
            for name in self.flags_told:
                facts[name] = ~facts["valid"]

    def _successors(self, facts: dict[str, Any]) -> None:
        """V(s'_t) of each step, the same by whatever argument a function takes it."""
        values, valid = facts["values"], facts["valid"]
        cut = facts["terminated"] | facts["truncated"]
        if "bootstrap_value" not in self.tells and "next_values" not in self.tells:
            facts["bootstrap_value"] = np.zeros_like(facts["bootstrap_value"])
        behind, following = facts["bootstrap_value"].copy(), np.empty_like(values)
        for t in reversed(range(values.shape[1])):
            following[:, t] = behind
            behind = np.where(valid[:, t], values[:, t], behind)
        free = facts["next_values"] if "next_values" in self.tells else facts["final_values"] if "final_values" in self.tells else following
        facts["next_values"] = np.where(cut & valid, free, following)
        if "bootstrap_value" in self.tells and "final_values" not in self.tells and values.shape[1]:
            # a function that takes both must find the same in both
            facts["next_values"][:, -1] = np.where(valid[:, -1], facts["bootstrap_value"], facts["next_values"][:, -1])
        if "final_values" not in self.tells or "next_values" in self.tells:
            facts["final_values"] = facts["next_values"].copy()

    def calls(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """The window as arguments of ours: in every way that says the same, and that a known variant may read otherwise."""
        names = set(self.recurrence.argument_names)
        flags = (self.tells | {"terminated"}) & {"terminated", "truncated", "valid"} & names
        if "starts" in self.tells:
            flags = {"starts", *({"valid"} & flags)}
        given = {name: facts[name] for name in facts if name in names and name not in ("terminated", "truncated", "valid", "starts")} | {
            name: facts[name] for name in flags
        }
        given["time_axis"] = -1
        if "next_values" not in names:
            for name in ("next_q_values", "next_policy"):
                given.pop(name, None)
            return [given]
        successor = {"next_values", "bootstrap_value", "final_values"}
        if self.recurrence.arguments[1].name == "values" and self.recurrence.defaults["values"] is None:
            by_step = {name: x for name, x in given.items() if name not in {"bootstrap_value", "final_values", "values"}}
        else:
            by_step = {name: x for name, x in given.items() if name not in {"bootstrap_value", "final_values"}}
        at_last = {name: x for name, x in given.items() if name not in successor} | {"bootstrap_value": facts["bootstrap_value"]}
        if "truncated" in flags:
            at_last["final_values"] = facts["final_values"] if "final_values" in self.tells else facts["next_values"]
        return [by_step, at_last] if "next_values" in self.tells else [at_last, by_step]
