"""The recurrences as data: what each is called, takes, gives, and where it was published.

The names of a coefficient function's parameters say what is read (`taps.py`), the arguments say what the caller may
give (`arguments.py`). Checks, references, docstrings, pages, tests and both backends are made from these
declarations; to add a recurrence is to write its coefficient function and one entry here.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

from rlscan.spec import coefficients
from rlscan.spec.arguments import ARGUMENTS, Argument
from rlscan.spec.taps import STATE, STATE_BEYOND, TAPS, Read, Source, parameters


@dataclasses.dataclass(frozen=True, eq=False)
class Recurrence:
    """`y_t = alpha_t + beta_t y_(t+1)` (backward) or `y_(t-1)` (forward), and what is made of it.

    Attributes:
        name: of the public function.
        title: one line.
        direction: which way the scan runs.
        coefficients: gives (alpha, beta) of a step.
        arguments: of the public function, in order.
        formula: the recurrence as text, for people.
        boundaries: what holds at the boundaries, beside the rules common to all.
        source: paper or book, with the equation.
        outputs: gives the results of a step from the state and taps; the state itself if None.
        output_names: of the results; the field names of a named tuple where there are two.
        output_says: a sentence for each.
        result: the named tuple's name.
        seed: the argument that is the state beyond the window; 0 if None or not given.
        successor: whether N_t is read at every step, or at cuts only, so that nothing need be given where none is cut.
        fading: where these arguments are Python numbers in [0, 1], beta lies in [0, 1] at every step, or is NaN; None: it need not.
        extra_taps: parameters that `taps.TAPS` does not know.
        last_only: the results of which a row has one, that of the scan's last step, whether or not it is valid.
    """

    name: str
    title: str
    direction: Literal["backward", "forward"]
    coefficients: Callable
    arguments: tuple[Argument, ...]
    formula: str
    source: str
    output_names: tuple[str, ...]
    output_says: tuple[str, ...]
    outputs: Callable | None = None
    result: str | None = None
    seed: str | None = None
    successor: Literal["everywhere", "at cuts"] = "everywhere"
    boundaries: tuple[str, ...] = ()
    fading: tuple[str, ...] | None = None
    extra_taps: tuple[tuple[str, tuple[Source, ...]], ...] = ()
    last_only: tuple[str, ...] = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A declared recurrence is one object, of which copies and pickles are that object again: what is kept for it is found by identity."""
        if RECURRENCES.get(self.name) is self:
            return _declared, (self.name,)
        return super().__reduce_ex__(protocol)

    def __post_init__(self) -> None:
        known = {argument.name for argument in self.arguments}
        for name in (*parameters(self.coefficients), *(parameters(self.outputs) if self.outputs else ())):
            if name in (STATE, STATE_BEYOND):
                continue
            reads = [source for source in self.tap(name) if isinstance(source, Read)]
            if reads and not any(known.issuperset(need for need in read.needs if "=" not in need) for read in reads) and len(reads) == len(self.tap(name)):
                raise TypeError(f"{self.name}: its argument list has nothing that {name!r} can be read from")

    def tap(self, name: str) -> tuple[Source, ...]:
        extra = dict(self.extra_taps)
        if name not in extra and name not in TAPS:
            raise TypeError(f"{self.name}: the parameter {name!r} is no known tap")
        return extra.get(name) or TAPS[name]

    @functools.cached_property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.arguments)

    @functools.cached_property
    def defaults(self) -> dict[str, object]:
        """The default of each argument, `REQUIRED` where there is none."""
        return {argument.name: argument.default for argument in self.arguments}

    @functools.cached_property
    def frame(self) -> Argument:
        """The argument whose shape all others are held to."""
        return self.arguments[0] if self.arguments[0].name != "log_rhos" else self.arguments[1]

    @functools.cached_property
    def result_type(self) -> Callable[..., Any] | None:
        if self.result is None:
            return None
        made = collections.namedtuple(self.result, self.output_names)  # noqa: PYI024  (made from the declaration)
        made.__doc__ = f"{self.result}({', '.join(self.output_names)}): " + " ".join(self.output_says)
        made.__module__ = "rlscan.spec.results"  # where pickle finds it
        return made

    def pack(self, outputs: tuple) -> Any:
        return outputs[0] if self.result_type is None else self.result_type(*outputs)


def _arguments(positional: str, keyword: str, **defaults: object) -> tuple[Argument, ...]:
    named = [ARGUMENTS[name].positional for name in positional.split()] + [ARGUMENTS[name] for name in keyword.split()]
    return tuple(argument.with_default(defaults[argument.name]) if argument.name in defaults else argument for argument in named)


_WINDOW = "terminated truncated next_values bootstrap_value final_values autoreset valid"
_VALUES_AS_SUCCESSORS = "values goes with bootstrap_value, to say V(s'_t) inside the window, and with nothing else."
_ADDED_ONCE = "The window's bootstrap enters once, through N_(T-1); what is carried past the window is 0 (B4)."

GAE = Recurrence(
    name="gae",
    title="Generalised advantage estimation.",
    direction="backward",
    coefficients=coefficients.gae,
    outputs=coefficients.gae_outputs,
    arguments=_arguments("rewards values", f"{_WINDOW} gamma lam time_axis"),
    formula="δ_t = r_t + [~d_t] g_t N_t - V_t\nA_t = δ_t + [~e_t] g_t l_t A_(t+1),  A_T = 0",
    boundaries=(_ADDED_ONCE,),
    fading=("gamma", "lam"),
    source="Schulman et al. 2016, arXiv:1506.02438, equation 16",
    result="GAE",
    output_names=("advantages", "returns"),
    output_says=("A_t.", "A_t + V_t, the value targets."),
)

VTRACE = Recurrence(
    name="vtrace",
    title="V-trace value targets and policy-gradient advantages.",
    direction="backward",
    coefficients=coefficients.vtrace,
    outputs=coefficients.vtrace_outputs,
    arguments=_arguments("log_rhos rewards values", f"{_WINDOW} gamma lam rho_bar c_bar pg_rho_bar time_axis", lam=1.0),
    formula=(
        "ρ_t = min(rho_bar, w_t),  c_t = l_t min(c_bar, w_t)\n"
        "D_t = ρ_t (r_t + [~d_t] g_t N_t - V_t) + [~e_t] g_t c_t D_(t+1),  D_T = 0\n"
        "vs_t = V_t + D_t\n"
        "pg_t = min(pg_rho_bar, w_t) (r_t + [~d_t] g_t (N_t + [~e_t] D_(t+1)) - V_t)"
    ),
    boundaries=(
        _ADDED_ONCE,
        "The advantage bootstraps from vs_(t+1) inside an episode and from N_t at a truncation and at the window's end.",
        "lam stands in c only.",
    ),
    fading=("gamma", "lam", "c_bar"),
    source="Espeholt et al. 2018, arXiv:1802.01561, equation 1 and section 4.2",
    result="VTrace",
    output_names=("vs", "pg_advantages"),
    output_says=("V_t + D_t, the value targets.", "The advantages for the policy gradient."),
)

RETRACE = Recurrence(
    name="retrace",
    title="Retrace(lambda) action-value targets and advantages.",
    direction="backward",
    coefficients=coefficients.retrace,
    outputs=coefficients.retrace_outputs,
    arguments=_arguments(
        "log_rhos rewards q_values", "expected_next_q next_q_values next_policy terminated truncated valid gamma lam c_bar rho_bar time_axis", lam=1.0
    ),
    formula=(
        "c_t = l_t min(c_bar, w_t),  E_t = Σ_a pi(a|s'_t) Q(s'_t, a)\n"
        "D_t = r_t + [~d_t] g_t E_t - q_t + [~e_t] g_t c_(t+1) D_(t+1),  D_T = 0\n"
        "targets_t = q_t + D_t\n"
        "advantages_t = min(rho_bar, w_t) (r_t + [~d_t] g_t n_t - q_t),\n"
        "    n_t = q_(t+1) + D_(t+1) where ~e_t and t < T-1, else E_t"
    ),
    boundaries=(
        "The ratio in the trace is that of the NEXT action, and the TD error carries none.",
        "The policy at s'_t (in E_t) and the ratio at s_t are different inputs: one row can't serve as both.",
        "An action of probability 0 is not read.",
    ),
    fading=("gamma", "lam", "c_bar"),
    source="Munos et al. 2016, arXiv:1606.02647, equations 3 and 4",
    result="Retrace",
    output_names=("targets", "advantages"),
    output_says=("q_t + D_t, the action-value targets.", "The clipped advantages."),
)

LAMBDA_RETURNS = Recurrence(
    name="lambda_returns",
    title="TD(lambda) returns.",
    direction="backward",
    coefficients=coefficients.lambda_returns,
    arguments=_arguments("rewards values", f"{_WINDOW} gamma lam time_axis", values=None),
    formula="G_t = r_t                                      where d_t\n"
    "G_t = r_t + g_t N_t                            where x_t, or at the last step\n"
    "G_t = r_t + g_t ((1-l_t) N_t + l_t G_(t+1))    else",
    boundaries=(
        "At a cut the whole weight goes to the next value, for any lam (B4).",
        "With lam = 1 inside an episode N_t is not read.",
        _VALUES_AS_SUCCESSORS,
    ),
    fading=("gamma", "lam"),
    source="Sutton & Barto 2018, equation 12.20",
    output_names=("returns",),
    output_says=("G_t.",),
)

DISCOUNTED_RETURNS = Recurrence(
    name="discounted_returns",
    title="Discounted returns.",
    direction="backward",
    coefficients=coefficients.discounted_returns,
    arguments=_arguments("rewards values", f"{_WINDOW} gamma time_axis", values=None),
    formula="G_t = r_t                  where d_t\nG_t = r_t + g_t N_t        where x_t\nG_t = r_t + g_t G_(t+1)    else",
    boundaries=(
        "Beyond the window stands G_T = N_(T-1) if a bootstrap was given, else 0 (B4).",
        "N_t is read at truncations and at the last step only.",
        _VALUES_AS_SUCCESSORS,
    ),
    fading=("gamma",),
    source="Sutton & Barto 2018, equation 3.9",
    successor="at cuts",
    output_names=("returns",),
    output_says=("G_t.",),
)

ELIGIBILITY_TRACES = Recurrence(
    name="eligibility_traces",
    title="Accumulating eligibility traces.",
    direction="forward",
    coefficients=coefficients.eligibility_traces,
    arguments=_arguments("inputs", "terminated truncated valid initial gamma lam time_axis"),
    formula="z_t = u_t + [~e_(t-1)] g_(t-1) l_(t-1) z_(t-1)",
    boundaries=(
        "The factor on the edge from t-1 to t is the one that the backward recurrences use on it (B7), so traces are the exact adjoint of backward sums.",
        "initial flows into step 0 as it is: already decayed, and 0 if the step before the window ended an episode.",
    ),
    fading=("gamma", "lam"),
    source="Sutton & Barto 2018, equation 12.5",
    seed="initial",
    output_names=("traces",),
    output_says=("z_t.",),
)

EPISODIC_PREFIX_SUM = Recurrence(
    name="episodic_prefix_sum",
    title="A running sum within each episode.",
    direction="forward",
    coefficients=coefficients.episodic_prefix_sum,
    arguments=_arguments("inputs", "terminated truncated starts valid initial time_axis", terminated=None),
    formula="C_t = u_t + [~e_(t-1)] C_(t-1)    with terminated and truncated: a flag says the episode ENDS at t\n"
    "C_t = u_t + [~b_t] C_(t-1)        with starts: a flag says t is the FIRST of its segment",
    boundaries=("The reset shows at the step after the ending one; with starts, at the flagged step (B7).", "initial flows into step 0."),
    fading=(),
    source="Blelloch 1990, Prefix sums and their applications, section 1.5 (segmented scans)",
    seed="initial",
    output_names=("sums",),
    output_says=("C_t.",),
)

AFFINE_SCAN = Recurrence(
    name="affine_scan",
    title="The first-order affine recurrence itself, with your own coefficients.",
    direction="forward",
    coefficients=coefficients.affine_scan,
    arguments=_arguments("addend factor", "initial reverse time_axis"),
    formula="y_t = addend_t + factor_t y_(t-1)    or y_(t+1) with reverse=True",
    boundaries=("A factor of 0 is a hard cut: nothing behind it is read (B6).", "initial is y_(-1), or y_T with reverse=True."),
    fading=("factor",),
    source="Blelloch 1990, Prefix sums and their applications, section 1.4.1",
    seed="initial",
    output_names=("y",),
    output_says=("y_t.",),
)

RECURRENCES: dict[str, Recurrence] = {
    recurrence.name: recurrence
    for recurrence in (GAE, VTRACE, RETRACE, LAMBDA_RETURNS, DISCOUNTED_RETURNS, ELIGIBILITY_TRACES, EPISODIC_PREFIX_SUM, AFFINE_SCAN)
}


def _declared(name: str) -> Recurrence:
    return RECURRENCES[name]


def directed(recurrence: Recurrence, reverse: bool) -> Recurrence:
    """The recurrence running the other way, where the caller chooses the direction."""
    return _backward(recurrence) if reverse else recurrence


@functools.cache
def _backward(recurrence: Recurrence) -> Recurrence:
    return dataclasses.replace(recurrence, direction="backward")
