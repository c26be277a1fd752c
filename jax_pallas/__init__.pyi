# Made from the declarations by `python -m rlscan.spec.stubs`; edit them, not this file.
# ruff: noqa: PYI021  (editors show the docstrings)

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax

from rlscan.spec.recurrences import Recurrence

class _GAE(NamedTuple):
    """advantages: A_t. returns: A_t + V_t, the value targets."""

    advantages: jax.Array
    returns: jax.Array

class _VTrace(NamedTuple):
    """vs: V_t + D_t, the value targets. pg_advantages: The advantages for the policy gradient."""

    vs: jax.Array
    pg_advantages: jax.Array

class _Retrace(NamedTuple):
    """targets: q_t + D_t, the action-value targets. advantages: The clipped advantages."""

    targets: jax.Array
    advantages: jax.Array

__all__ = ["affine_scan", "discounted_returns", "eligibility_traces", "episodic_prefix_sum", "gae", "lambda_returns", "retrace", "run", "vtrace"]

def run(recurrence: Recurrence, arguments: Mapping[str, Any], method: Literal["kernels", "vectorised"] | None = None) -> Any: ...
def gae(
    rewards: jax.Array,
    values: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    next_values: jax.Array | None = None,
    bootstrap_value: jax.Array | None = None,
    final_values: jax.Array | None = None,
    autoreset: Literal["same_step", "next_step"] | None = None,
    valid: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    lam: float | jax.Array = 0.95,
    time_axis: int = -1,
) -> _GAE:
    """Generalised advantage estimation.

        δ_t = r_t + [~d_t] g_t N_t - V_t
        A_t = δ_t + [~e_t] g_t l_t A_(t+1),  A_T = 0

    - The window's bootstrap enters once, through N_(T-1); what is carried past the window is 0 (B4).

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16.

    Args:
        rewards: jax.Array [.., T], float16, bfloat16, float32 or float64. r_t, the reward of the transition s_t,
            a_t -> s'_t.
        values: jax.Array [.., T], float16, bfloat16, float32 or float64. V_t = V(s_t).
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        next_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) at every step, of the TRUE
            successor, before any reset. Instead of bootstrap_value.
        bootstrap_value: jax.Array [..], the shape of rewards without time, float16, bfloat16, float32 or float64.
            V(s'_(T-1)); inside the window V(s'_t) is then `values` of the next valid step. Instead of next_values.
        final_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) where truncated, with
            bootstrap_value; read nowhere else.
        autoreset: str or None. 'next_step' where the row after an ending step is the reset itself and holds V of
            the final observation (Gymnasium's NEXT_STEP); then the rows after ending steps are not valid where
            `valid` does not say which are. None or 'same_step' where every row is a transition. Beside `valid`, it
            only says where V of a truncated step is found, with bootstrap_value.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        lam: number or jax.Array (default 0.95). l_t, the trace parameter: a number in [0, 1], or an array that
            broadcasts like gamma.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        GAE(advantages, returns), a named tuple. advantages: A_t; returns: A_t + V_t, the value targets. Each has
        the shape of rewards; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def vtrace(
    log_rhos: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    next_values: jax.Array | None = None,
    bootstrap_value: jax.Array | None = None,
    final_values: jax.Array | None = None,
    autoreset: Literal["same_step", "next_step"] | None = None,
    valid: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    lam: float | jax.Array = 1.0,
    rho_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
    pg_rho_bar: float | None = 1.0,
    time_axis: int = -1,
) -> _VTrace:
    """V-trace value targets and policy-gradient advantages.

        ρ_t = min(rho_bar, w_t),  c_t = l_t min(c_bar, w_t)
        D_t = ρ_t (r_t + [~d_t] g_t N_t - V_t) + [~e_t] g_t c_t D_(t+1),  D_T = 0
        vs_t = V_t + D_t
        pg_t = min(pg_rho_bar, w_t) (r_t + [~d_t] g_t (N_t + [~e_t] D_(t+1)) - V_t)

    - The window's bootstrap enters once, through N_(T-1); what is carried past the window is 0 (B4).

    - The advantage bootstraps from vs_(t+1) inside an episode and from N_t at a truncation and at the window's end.

    - lam stands in c only.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Espeholt et al. 2018, arXiv:1802.01561, equation 1 and section 4.2.

    Args:
        log_rhos: jax.Array [.., T], float16, bfloat16, float32 or float64. log pi(a_t|s_t) - log mu(a_t|s_t),
            target over behaviour policy; w_t = exp(log_rhos).
        rewards: jax.Array [.., T], float16, bfloat16, float32 or float64. r_t, the reward of the transition s_t,
            a_t -> s'_t.
        values: jax.Array [.., T], float16, bfloat16, float32 or float64. V_t = V(s_t).
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        next_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) at every step, of the TRUE
            successor, before any reset. Instead of bootstrap_value.
        bootstrap_value: jax.Array [..], the shape of rewards without time, float16, bfloat16, float32 or float64.
            V(s'_(T-1)); inside the window V(s'_t) is then `values` of the next valid step. Instead of next_values.
        final_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) where truncated, with
            bootstrap_value; read nowhere else.
        autoreset: str or None. 'next_step' where the row after an ending step is the reset itself and holds V of
            the final observation (Gymnasium's NEXT_STEP); then the rows after ending steps are not valid where
            `valid` does not say which are. None or 'same_step' where every row is a transition. Beside `valid`, it
            only says where V of a truncated step is found, with bootstrap_value.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        lam: number or jax.Array (default 1.0). l_t, the trace parameter: a number in [0, 1], or an array that
            broadcasts like gamma.
        rho_bar: number or None (default 1.0). The bar that clips w_t in the TD error (V-trace) or the advantage
            (Retrace); None: no clip.
        c_bar: number or None (default 1.0). The bar that clips w_t in the trace; None: no clip.
        pg_rho_bar: number or None (default 1.0). The bar that clips w_t in the policy-gradient advantage; None: no
            clip.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        VTrace(vs, pg_advantages), a named tuple. vs: V_t + D_t, the value targets; pg_advantages: The advantages
        for the policy gradient. Each has the shape of rewards; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def retrace(
    log_rhos: jax.Array,
    rewards: jax.Array,
    q_values: jax.Array,
    *,
    expected_next_q: jax.Array | None = None,
    next_q_values: jax.Array | None = None,
    next_policy: jax.Array | None = None,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    valid: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    lam: float | jax.Array = 1.0,
    c_bar: float | None = 1.0,
    rho_bar: float | None = 1.0,
    time_axis: int = -1,
) -> _Retrace:
    """Retrace(lambda) action-value targets and advantages.

        c_t = l_t min(c_bar, w_t),  E_t = Σ_a pi(a|s'_t) Q(s'_t, a)
        D_t = r_t + [~d_t] g_t E_t - q_t + [~e_t] g_t c_(t+1) D_(t+1),  D_T = 0
        targets_t = q_t + D_t
        advantages_t = min(rho_bar, w_t) (r_t + [~d_t] g_t n_t - q_t),
            n_t = q_(t+1) + D_(t+1) where ~e_t and t < T-1, else E_t

    - The ratio in the trace is that of the NEXT action, and the TD error carries none.

    - The policy at s'_t (in E_t) and the ratio at s_t are different inputs: one row can't serve as both.

    - An action of probability 0 is not read.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Munos et al. 2016, arXiv:1606.02647, equations 3 and 4.

    Args:
        log_rhos: jax.Array [.., T], float16, bfloat16, float32 or float64. log pi(a_t|s_t) - log mu(a_t|s_t),
            target over behaviour policy; w_t = exp(log_rhos).
        rewards: jax.Array [.., T], float16, bfloat16, float32 or float64. r_t, the reward of the transition s_t,
            a_t -> s'_t.
        q_values: jax.Array [.., T], float16, bfloat16, float32 or float64. q_t = Q(s_t, a_t).
        expected_next_q: jax.Array [.., T], float16, bfloat16, float32 or float64. E_t, the expectation of Q(s'_t,
            a) over a ~ pi(.|s'_t). Instead of next_q_values and next_policy.
        next_q_values: jax.Array [.., T, A], float16, bfloat16, float32 or float64. Q(s'_t, a) for every action, on
            the last axis.
        next_policy: jax.Array [.., T, A], float16, bfloat16, float32 or float64. pi(a|s'_t) for every action, on
            the last axis: probabilities at the successor state.
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        lam: number or jax.Array (default 1.0). l_t, the trace parameter: a number in [0, 1], or an array that
            broadcasts like gamma.
        c_bar: number or None (default 1.0). The bar that clips w_t in the trace; None: no clip.
        rho_bar: number or None (default 1.0). The bar that clips w_t in the TD error (V-trace) or the advantage
            (Retrace); None: no clip.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        Retrace(targets, advantages), a named tuple. targets: q_t + D_t, the action-value targets; advantages: The
        clipped advantages. Each has the shape of rewards; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def lambda_returns(
    rewards: jax.Array,
    values: jax.Array | None = None,
    *,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    next_values: jax.Array | None = None,
    bootstrap_value: jax.Array | None = None,
    final_values: jax.Array | None = None,
    autoreset: Literal["same_step", "next_step"] | None = None,
    valid: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    lam: float | jax.Array = 0.95,
    time_axis: int = -1,
) -> jax.Array:
    """TD(lambda) returns.

        G_t = r_t                                      where d_t
        G_t = r_t + g_t N_t                            where x_t, or at the last step
        G_t = r_t + g_t ((1-l_t) N_t + l_t G_(t+1))    else

    - At a cut the whole weight goes to the next value, for any lam (B4).

    - With lam = 1 inside an episode N_t is not read.

    - values goes with bootstrap_value, to say V(s'_t) inside the window, and with nothing else.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Sutton & Barto 2018, equation 12.20.

    Args:
        rewards: jax.Array [.., T], float16, bfloat16, float32 or float64. r_t, the reward of the transition s_t,
            a_t -> s'_t.
        values: jax.Array [.., T], float16, bfloat16, float32 or float64. V_t = V(s_t).
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        next_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) at every step, of the TRUE
            successor, before any reset. Instead of bootstrap_value.
        bootstrap_value: jax.Array [..], the shape of rewards without time, float16, bfloat16, float32 or float64.
            V(s'_(T-1)); inside the window V(s'_t) is then `values` of the next valid step. Instead of next_values.
        final_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) where truncated, with
            bootstrap_value; read nowhere else.
        autoreset: str or None. 'next_step' where the row after an ending step is the reset itself and holds V of
            the final observation (Gymnasium's NEXT_STEP); then the rows after ending steps are not valid where
            `valid` does not say which are. None or 'same_step' where every row is a transition. Beside `valid`, it
            only says where V of a truncated step is found, with bootstrap_value.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        lam: number or jax.Array (default 0.95). l_t, the trace parameter: a number in [0, 1], or an array that
            broadcasts like gamma.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        returns: G_t. Each has the shape of rewards; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def discounted_returns(
    rewards: jax.Array,
    values: jax.Array | None = None,
    *,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    next_values: jax.Array | None = None,
    bootstrap_value: jax.Array | None = None,
    final_values: jax.Array | None = None,
    autoreset: Literal["same_step", "next_step"] | None = None,
    valid: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    time_axis: int = -1,
) -> jax.Array:
    """Discounted returns.

        G_t = r_t                  where d_t
        G_t = r_t + g_t N_t        where x_t
        G_t = r_t + g_t G_(t+1)    else

    - Beyond the window stands G_T = N_(T-1) if a bootstrap was given, else 0 (B4).

    - N_t is read at truncations and at the last step only.

    - values goes with bootstrap_value, to say V(s'_t) inside the window, and with nothing else.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Sutton & Barto 2018, equation 3.9.

    Args:
        rewards: jax.Array [.., T], float16, bfloat16, float32 or float64. r_t, the reward of the transition s_t,
            a_t -> s'_t.
        values: jax.Array [.., T], float16, bfloat16, float32 or float64. V_t = V(s_t).
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        next_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) at every step, of the TRUE
            successor, before any reset. Instead of bootstrap_value.
        bootstrap_value: jax.Array [..], the shape of rewards without time, float16, bfloat16, float32 or float64.
            V(s'_(T-1)); inside the window V(s'_t) is then `values` of the next valid step. Instead of next_values.
        final_values: jax.Array [.., T], float16, bfloat16, float32 or float64. V(s'_t) where truncated, with
            bootstrap_value; read nowhere else.
        autoreset: str or None. 'next_step' where the row after an ending step is the reset itself and holds V of
            the final observation (Gymnasium's NEXT_STEP); then the rows after ending steps are not valid where
            `valid` does not say which are. None or 'same_step' where every row is a transition. Beside `valid`, it
            only says where V of a truncated step is found, with bootstrap_value.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        returns: G_t. Each has the shape of rewards; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def eligibility_traces(
    inputs: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array | None = None,
    valid: jax.Array | None = None,
    initial: jax.Array | None = None,
    gamma: float | jax.Array = 0.99,
    lam: float | jax.Array = 0.95,
    time_axis: int = -1,
) -> jax.Array:
    """Accumulating eligibility traces.

        z_t = u_t + [~e_(t-1)] g_(t-1) l_(t-1) z_(t-1)

    - The factor on the edge from t-1 to t is the one that the backward recurrences use on it (B7), so traces are
      the exact adjoint of backward sums.

    - initial flows into step 0 as it is: already decayed, and 0 if the step before the window ended an episode.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Sutton & Barto 2018, equation 12.5.

    Args:
        inputs: jax.Array [.., T, features..], float16, bfloat16, float32 or float64. u_t. Axes behind those of the
            flags are features, each its own row.
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        initial: jax.Array [..], the shape of inputs without time, float16, bfloat16, float32 or float64. What flows
            into the first step of the scan, as it is: the state beyond the window. Default: 0.
        gamma: number or jax.Array (default 0.99). g_t, the discount: a number in [0, 1], or an array that
            broadcasts to the steps (to the flags, where inputs have feature axes).
        lam: number or jax.Array (default 0.95). l_t, the trace parameter: a number in [0, 1], or an array that
            broadcasts like gamma.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        traces: z_t. Each has the shape of inputs; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def episodic_prefix_sum(
    inputs: jax.Array,
    *,
    terminated: jax.Array | None = None,
    truncated: jax.Array | None = None,
    starts: jax.Array | None = None,
    valid: jax.Array | None = None,
    initial: jax.Array | None = None,
    time_axis: int = -1,
) -> jax.Array:
    """A running sum within each episode.

        C_t = u_t + [~e_(t-1)] C_(t-1)    with terminated and truncated: a flag says the episode ENDS at t
        C_t = u_t + [~b_t] C_(t-1)        with starts: a flag says t is the FIRST of its segment

    - The reset shows at the step after the ending one; with starts, at the flagged step (B7).

    - initial flows into step 0.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Blelloch 1990, Prefix sums and their applications, section 1.5 (segmented scans).

    Args:
        inputs: jax.Array [.., T, features..], float16, bfloat16, float32 or float64. u_t. Axes behind those of the
            flags are features, each its own row.
        terminated: jax.Array [.., T], any type, nonzero is True. d_t: s'_t is a terminal state.
        truncated: jax.Array [.., T], any type, nonzero is True. x_t: the episode was cut after this transition;
            s'_t is an ordinary state. Default: never.
        starts: jax.Array [.., T], any type, nonzero is True. b_t: step t is the first of its segment. Instead of
            terminated and truncated.
        valid: jax.Array [.., T], any type, nonzero is True. m_t: this is a real transition. Default: all are.
        initial: jax.Array [..], the shape of inputs without time, float16, bfloat16, float32 or float64. What flows
            into the first step of the scan, as it is: the state beyond the window. Default: 0.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        sums: C_t. Each has the shape of inputs; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """

def affine_scan(
    addend: jax.Array,
    factor: float | jax.Array,
    *,
    initial: jax.Array | None = None,
    reverse: bool = False,
    time_axis: int = -1,
) -> jax.Array:
    """The first-order affine recurrence itself, with your own coefficients.

        y_t = addend_t + factor_t y_(t-1)    or y_(t+1) with reverse=True

    - A factor of 0 is a hard cut: nothing behind it is read (B6).

    - initial is y_(-1), or y_T with reverse=True.

    d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects:
    what is not selected is not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).

    Source: Blelloch 1990, Prefix sums and their applications, section 1.4.1.

    Args:
        addend: jax.Array [.., T], float16, bfloat16, float32 or float64. What each step adds.
        factor: number or jax.Array (default <class 'inspect._empty'>). What each step multiplies the state by: a
            number, a 0-d array, or an array of addend's shape.
        initial: jax.Array [..], the shape of addend without time, float16, bfloat16, float32 or float64. What flows
            into the first step of the scan, as it is: the state beyond the window. Default: 0.
        reverse: bool (default False). True: from the last step to the first.
        time_axis: int (default -1). The time axis of the first argument (of the flags, where inputs have feature
            axes).

    Returns:
        y: y_t. Each has the shape of addend; float64 for float64 inputs, else float32.

    Raises:
        TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.
        ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its
            range.
    """
