"""Where each parameter of a coefficient function is read.

The name of the parameter is the contract: `next_value` means the same thing in every recurrence, and `TAPS` says
once what it is. With the arguments that a caller gave, `wire` turns the parameters of a recurrence into reads that a
backend performs without knowing what they mean.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rlscan.spec.recurrences import Recurrence

At = Literal["step", "next", "previous", "following", "preceding", "row", "number", "actions"]


@dataclasses.dataclass(frozen=True)
class Read:
    """One array, read at one place relative to step t.

    Attributes:
        source: the argument.
        at: `step` is t; `next` and `previous` are the nearest valid steps after and before t; `following` and
            `preceding` are t+1 and t-1 as they are stored, valid or not; `row` has no time; `number` is a Python number;
            `actions` is the sum over the actions of `source` weighted by `edge`.
        edge: what stands where the place lies outside the window: an argument without a time axis, or a constant.
        option: the read holds only where this option of the call is set.
    """

    source: str
    at: At = "step"
    edge: str | float | bool | None = None
    option: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.source, *([self.edge] if isinstance(self.edge, str) else []), *([self.option] if self.option else []))


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same everywhere, in the place of an argument that was not given."""

    value: float | bool


@dataclasses.dataclass(frozen=True)
class Outside:
    """True where the nearest valid step after (`next`) or before (`previous`) t lies outside the window."""

    at: Literal["next", "previous"]


Source = Read | Constant | Outside

NEXT_STEP = "autoreset=next_step"

_NEXT_VALUE = (Read("next_values"), Read("values", "next", edge="bootstrap_value"), Read("bootstrap_value", "row"), Constant(0.0))

# The first entry whose arguments were all given is the one that holds.
TAPS: dict[str, tuple[Source, ...]] = {
    "reward": (Read("rewards"),),
    "value": (Read("values"),),
    "next_value": _NEXT_VALUE,
    "final_value": (Read("next_values"), Read("final_values"), Read("values", "following", edge="bootstrap_value", option=NEXT_STEP), Constant(0.0)),
    "terminated": (Read("terminated"), Constant(False)),
    "truncated": (Read("truncated"), Constant(False)),
    "start": (Read("starts"), Constant(False)),
    "valid": (Read("valid"), Constant(True)),
    "last": (Outside("next"),),
    "first": (Outside("previous"),),
    "log_rho": (Read("log_rhos"),),
    "next_log_rho": (Read("log_rhos", "next", edge=0.0),),
    "q_value": (Read("q_values"),),
    "next_q_value": (Read("q_values", "next", edge=0.0),),
    "expected_next_q": (Read("expected_next_q"), Read("next_q_values", "actions", edge="next_policy")),
    "input": (Read("inputs"),),
    "addend": (Read("addend"),),
    "factor": (Read("factor"),),
    "gamma": (Read("gamma"),),
    "lam": (Read("lam"),),
    "next_lam": (Read("lam", "next", edge=0.0),),
    "rho_bar": (Read("rho_bar"),),
    "c_bar": (Read("c_bar"),),
    "pg_rho_bar": (Read("pg_rho_bar"),),
    "previous_terminated": (Read("terminated", "previous", edge=False), Constant(False)),
    "previous_truncated": (Read("truncated", "previous", edge=False), Constant(False)),
    "previous_gamma": (Read("gamma", "previous", edge=0.0),),
    "previous_lam": (Read("lam", "previous", edge=0.0),),
    "preceding_terminated": (Read("terminated", "preceding", edge=False), Constant(False)),
    "preceding_truncated": (Read("truncated", "preceding", edge=False), Constant(False)),
}

STATE, STATE_BEYOND = "state", "state_beyond"
"""What an output function may take beside taps: the state of the scan at t, and at the step before it in the scan."""


def parameters(function: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class Wiring:
    """A recurrence for one set of given arguments: hashable, all that a kernel must know at compile time.

    Attributes:
        reads: every read there is, each once.
        coefficients, outputs: for each parameter of the coefficient and the output function, the number of its read, a
            `Constant`, an `Outside`, or the name of a state.
        validity: all steps are valid, or `given` by the last read, or `derived` from the two last reads.
        neighbour: which nearest valid step the reads need.
        seed: the argument that is the state beyond the window, if it was given.
        given: the arguments and options that were.
    """

    recurrence: Recurrence
    reads: tuple[Read, ...]
    coefficients: tuple[int | Constant | Outside | str, ...]
    outputs: tuple[int | Constant | Outside | str, ...]
    validity: Literal["all", "given", "derived"]
    valid_taps: tuple[int | Constant | Outside | str, ...]
    neighbour: Literal["none", "next", "previous"]
    seed: str | None
    given: frozenset[str]

    @property
    def needs_state_beyond(self) -> bool:
        return STATE_BEYOND in self.outputs


@functools.cache
def wire(recurrence: Recurrence, given: frozenset[str], numbers: frozenset[str] = frozenset()) -> Wiring:
    """The reads of `recurrence` when these arguments (and options) were given, some of them as Python numbers."""
    validity: Literal["all", "given", "derived"] = "given" if "valid" in given else "derived" if NEXT_STEP in given else "all"
    # unless told otherwise every step is valid, or every one that a boundary rule lets a step read from
    beside: dict[At, At] = {} if validity == "given" else {"next": "following", "previous": "preceding"}
    reads: dict[Read, int] = {}

    def source(name: str) -> int | Constant | Outside | str:
        if name in (STATE, STATE_BEYOND):
            return name
        for candidate in recurrence.tap(name):
            if not isinstance(candidate, Read):
                return candidate
            if given.issuperset(candidate.needs):
                if candidate.source in numbers:
                    candidate = Read(candidate.source, "number")
                return reads.setdefault(dataclasses.replace(candidate, at=beside.get(candidate.at, candidate.at), option=None), len(reads))
        raise LookupError(f"{recurrence.name}: nothing was given that {name!r} can be read from")

    coefficients = tuple(source(name) for name in parameters(recurrence.coefficients))
    outputs = tuple(source(name) for name in parameters(recurrence.outputs)) if recurrence.outputs else ()
    valid_names = {"given": ("valid",), "derived": ("preceding_terminated", "preceding_truncated"), "all": ()}[validity]
    valid_taps = tuple(source(name) for name in valid_names)
    used = {read.at for read in reads} | {tap.at for tap in (*coefficients, *outputs) if isinstance(tap, Outside)}
    neighbour: Literal["none", "next", "previous"] = (
        "none" if validity != "given" else "next" if "next" in used else "previous" if "previous" in used else "none"
    )
    if validity == "given" and {"next", "previous"} <= used:
        raise TypeError(f"{recurrence.name}: reads both the next and the previous valid step")
    return Wiring(
        recurrence, tuple(reads), coefficients, outputs, validity, valid_taps, neighbour, recurrence.seed if recurrence.seed in given else None, given
    )
