"""The public arguments: what each is, what shape and type it has. One entry a name, whatever function takes it."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Literal

REQUIRED: object = inspect.Parameter.empty

Shape = Literal["steps", "inputs", "row", "actions", "parameter", "number", "option"]


@dataclasses.dataclass(frozen=True)
class Argument:
    """One public argument.

    Attributes:
        name: as the caller writes it.
        shape: `steps` is the frame `[.., T]` itself; `inputs` is it with feature axes behind; `row` is it without the
            time axis; `actions` is it with an action axis behind; a `parameter` is a number or an array that broadcasts to
            the frame; a `number` is a Python number; an `option` is no quantity.
        says: the sentence in the docstring.
        flag: nonzero is True.
        logarithm: of what is computed with, so that infinity in it is a number like any other.
        low, high: what a number must lie between.
        default: what stands in the signature.
        none_is: the number that `None` stands for.
    """

    name: str
    shape: Shape
    says: str
    flag: bool = False
    logarithm: bool = False
    low: float | None = None
    high: float | None = None
    default: object = REQUIRED
    keyword: bool = True
    none_is: float | None = None
    choices: tuple = ()

    def allows(self, number: float) -> bool:
        """Whether a Python number lies where it must."""
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    def with_default(self, default: object) -> Argument:
        return dataclasses.replace(self, default=default)

    @property
    def positional(self) -> Argument:
        return dataclasses.replace(self, keyword=False)


_ALL = (
    Argument("rewards", "steps", "r_t, the reward of the transition s_t, a_t -> s'_t."),
    Argument("values", "steps", "V_t = V(s_t)."),
    Argument("q_values", "steps", "q_t = Q(s_t, a_t)."),
    Argument("log_rhos", "steps", "log pi(a_t|s_t) - log mu(a_t|s_t), target over behaviour policy; w_t = exp(log_rhos).", logarithm=True),
    Argument("inputs", "inputs", "u_t. Axes behind those of the flags are features, each its own row."),
    Argument("addend", "steps", "What each step adds."),
    Argument("factor", "parameter", "What each step multiplies the state by: a number, a 0-d array, or an array of addend's shape."),
    Argument("terminated", "steps", "d_t: s'_t is a terminal state.", flag=True),
    Argument("truncated", "steps", "x_t: the episode was cut after this transition; s'_t is an ordinary state. Default: never.", flag=True, default=None),
    Argument("starts", "steps", "b_t: step t is the first of its segment. Instead of terminated and truncated.", flag=True, default=None),
    Argument(
        "valid",
        "steps",
        "m_t: this is a real transition. Default: all are.",
        flag=True,
        default=None,
    ),
    Argument("next_values", "steps", "V(s'_t) at every step, of the TRUE successor, before any reset. Instead of bootstrap_value.", default=None),
    Argument("bootstrap_value", "row", "V(s'_(T-1)); inside the window V(s'_t) is then `values` of the next valid step. Instead of next_values.", default=None),
    Argument("final_values", "steps", "V(s'_t) where truncated, with bootstrap_value; read nowhere else.", default=None),
    Argument("expected_next_q", "steps", "E_t, the expectation of Q(s'_t, a) over a ~ pi(.|s'_t). Instead of next_q_values and next_policy.", default=None),
    Argument("next_q_values", "actions", "Q(s'_t, a) for every action, on the last axis.", default=None),
    Argument("next_policy", "actions", "pi(a|s'_t) for every action, on the last axis: probabilities at the successor state.", default=None),
    Argument("initial", "row", "What flows into the first step of the scan, as it is: the state beyond the window. Default: 0.", default=None),
    Argument(
        "gamma",
        "parameter",
        "g_t, the discount: a number in [0, 1], or an array that broadcasts to the steps (to the flags, where inputs have feature axes).",
        low=0.0,
        high=1.0,
        default=0.99,
    ),
    Argument("lam", "parameter", "l_t, the trace parameter: a number in [0, 1], or an array that broadcasts like gamma.", low=0.0, high=1.0, default=0.95),
    Argument(
        "rho_bar",
        "number",
        "The bar that clips w_t in the TD error (V-trace) or the advantage (Retrace); None: no clip.",
        low=0.0,
        default=1.0,
        none_is=float("inf"),
    ),
    Argument("c_bar", "number", "The bar that clips w_t in the trace; None: no clip.", low=0.0, default=1.0, none_is=float("inf")),
    Argument("pg_rho_bar", "number", "The bar that clips w_t in the policy-gradient advantage; None: no clip.", low=0.0, default=1.0, none_is=float("inf")),
    Argument(
        "autoreset",
        "option",
        "'next_step' where the row after an ending step is the reset itself and holds V of the final observation (Gymnasium's NEXT_STEP); then "
        "the rows after ending steps are not valid where `valid` does not say which are. None or 'same_step' where every row is a transition. "
        "Beside `valid`, it only says where V of a truncated step is found, with bootstrap_value.",
        default=None,
        choices=(None, "same_step", "next_step"),
    ),
    Argument("reverse", "option", "True: from the last step to the first.", default=False, choices=(False, True)),
    Argument("time_axis", "option", "The time axis of the first argument (of the flags, where inputs have feature axes).", default=-1),
)

ARGUMENTS: dict[str, Argument] = {argument.name: argument for argument in _ALL}

OUT = Argument(
    "out",
    "option",
    "What an earlier call on arrays of these shapes, strides and dtypes returned, to write the results into. It has no derivative, and shares no memory with "
    "an argument.",
    default=None,
)
"""Where arrays can be written to: no argument of a recurrence, but of a function."""
