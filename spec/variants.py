"""Known ways to get a recurrence wrong, or to define it otherwise: what each does in words, and who is known to do it.

How a variant differs is a mutation of the declarations, in `rlscan.crosscheck.mutants`, by the same name: another tap, another helper of the
coefficients, or other arguments. Peers are those of the tables in docs/conventions.md, `cases` the faulty results of public reports that it gives.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class KnownVariant:
    """One of them.

    Attributes:
        name: of its mutation.
        says: a verb phrase, of which the function is the subject.
        peers: libraries that do so, or did in the version named.
        cases: names among `wrong` in the crosscheck's cases.
    """

    name: str
    says: str
    peers: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


VARIANTS: dict[str, KnownVariant] = {
    variant.name: variant
    for variant in (
        KnownVariant(
            "truncation is passed as termination",
            "treats truncation as termination",
            ("CleanRL", "PureJaxRL"),
            ("done_as_terminated",),
        ),
        KnownVariant(
            "truncation does not cut", "lets the next episode flow back over a truncation", ("skrl",), ("no_cut_at_truncation", "trace_terminated_only")
        ),
        KnownVariant("truncation is ignored", "ignores truncation"),
        KnownVariant("truncation wins over termination", "bootstraps where both flags are set", ("rl-triton's returns",), ("truncation_bootstraps_both",)),
        KnownVariant("truncation bootstraps from the reset observation", "bootstraps a truncation from the first state of the next episode"),
        KnownVariant(
            "the next row's value is the successor's",
            "reads the next row's value in the place of the successor's",
            ("rlax",),
            ("reset_obs_bootstrap",),
        ),
        KnownVariant(
            "truncation bootstraps from its own state",
            "bootstraps a truncation from V(s_t), and not from V(s'_t)",
            ("rsl_rl", "rl_games", "Sample Factory", "skrl"),
        ),
        KnownVariant("steps are left out where truncated", "leaves truncated steps out"),
        KnownVariant("the advantage lacks lam", "returns advantages that lack lambda, δ_t + γ A_(t+1)", ("Brax",), ("brax",)),
        KnownVariant(
            "steps are left out where truncated, and the advantage lacks lam",
            "leaves truncated steps out, and returns advantages that lack lambda",
            ("Brax",),
            ("brax",),
        ),
        KnownVariant(
            "the flags of the step after are read",
            "reads at each step the flags of the step after, so that cuts show one step early",
            ("CleanRL's loop", "SB3's if it is given the flags of transitions"),
            ("done_index_late",),
        ),
        KnownVariant("the flags of the step before are read", "reads at each step the flags of the step before, so that cuts show one step late"),
        KnownVariant("termination shows one step late", "reads terminations one step late"),
        KnownVariant("truncation shows one step late", "reads truncations one step late"),
        KnownVariant("flags are ignored", "ignores where episodes end", ("DI-hpc",), ("trace_not_reset", "prefix_never_reset")),
        KnownVariant(
            "the value of a terminal state is read",
            "bootstraps from terminal states",
            ("Tianshou's kernel unless its caller has masked",),
            ("unmasked_next_value",),
        ),
        KnownVariant("termination does not cut", "lets the next episode flow back over a termination"),
        KnownVariant(
            "the bootstrap is also carried in from beyond the window",
            "counts the bootstrap twice at the window's end",
            (),
            ("double_bootstrap",),
        ),
        KnownVariant(
            "nothing is bootstrapped at the window's end",
            "bootstraps from nothing at the window's end",
            ("TorchRL's reward2go", "OpenRLHF", "TRL", "verl", "slime"),
            ("zero_bootstrap",),
        ),
        KnownVariant("the last step bootstraps from itself", "bootstraps the last step from its own value", (), ("last_bootstraps_itself",)),
        KnownVariant(
            "the end of the window goes unnoticed",
            "weighs the value behind the window with 1 - lambda, as if the window went on",
            ("rl-triton's lambda-returns",),
        ),
        KnownVariant("what flows in is dropped", "drops the state that flows in"),
        KnownVariant("nothing is selected, all is multiplied", "multiplies by masks, as most loops do, so that NaN passes", (), ("nan_times_zero",)),
        KnownVariant("values are read where they weigh nothing", "multiplies by masks, and the values inside the window by 0, so that NaN passes", ("rlax",)),
        KnownVariant("masks multiply", "multiplies the trace by masks, so that NaN passes"),
        KnownVariant("a zero factor multiplies", "multiplies by factors of 0, so that NaN passes"),
        KnownVariant("a zero factor multiplies the state", "multiplies the state by factors of 0, so that NaN passes"),
        KnownVariant("a discount of 0 multiplies", "cuts where flags say so, and multiplies by a gamma of 0, so that NaN passes"),
        KnownVariant("the two successor values are mixed by products", "mixes the values of the two successors by products, so that NaN passes"),
        KnownVariant("a clip drops NaN", "clips NaN to a number", ("rl-triton's kernels",)),
        KnownVariant("a value that is NaN counts as 0", "takes values that are NaN for 0"),
        KnownVariant("lam is missing", "lacks lambda, as if it were 1", ("RLlib", "trfl", "scalable_agent in V-trace"), ("mc_minus_v_no_lambda",)),
        KnownVariant("gamma and lam are exchanged", "exchanges gamma and lambda"),
        KnownVariant("rewards are one step late", "reads rewards one step late", (), ("rewards_shifted",)),
        KnownVariant("its own state's value is the successor's", "reads V(s_t) in the place of V(s'_t)", (), ("lambda_shift_value",)),
        KnownVariant("gamma of the step before", "reads the gamma of the step before", (), ("gamma_previous",)),
        KnownVariant("lam of the step before", "reads the lambda of the step before", (), ("lambda_previous",)),
        KnownVariant("gamma of the step after", "reads the gamma of the step after"),
        KnownVariant("lam of the step after", "reads the lambda of the step after"),
        KnownVariant("gamma of the first step", "takes the gamma of the first step for all steps"),
        KnownVariant("lam of the first step", "takes the lambda of the first step for all steps"),
        KnownVariant("ratios are not clipped", "does not clip ratios"),
        # before the next one: of a function that returns vs - V alone, as rlax's errors, it is the targets
        KnownVariant("targets lack the value", "returns vs - V in the place of vs", ("rlax",)),
        KnownVariant("the policy-gradient advantage is the correction", "returns vs - V as policy-gradient advantages", (), ("vtrace_pg_gae",)),
        KnownVariant("the policy-gradient advantage mixes by lam", "mixes λ vs_(t+1) + (1 - λ) V_(t+1) into the advantage", ("rlax",), ("vtrace_lambda_mix",)),
        KnownVariant(
            "targets lack the value, and the advantage mixes by lam",
            "returns vs - V in the place of vs, and mixes λ vs_(t+1) + (1 - λ) V_(t+1) into the advantage",
            ("rlax",),
        ),
        KnownVariant(
            "the policy-gradient advantage reads across a truncation",
            "reads the next episode's target in the advantage of a truncated step",
            ("TorchRL before pytorch/rl#4210",),
            ("vtrace_shift_leak",),
        ),
        KnownVariant("the trace has this action's ratio", "multiplies the trace by this action's ratio, not by the next one's", (), ("retrace_c_unshifted",)),
        KnownVariant("the trace has this step's lam", "takes this step's lambda into the trace, and not the next one's"),
        KnownVariant("the TD error has a ratio", "multiplies the TD error by a ratio, as V-trace does", (), ("retrace_rho_on_delta",)),
        KnownVariant(
            "the expectation is one step late", "takes the expectation at s_t in the place of that at s'_t, one step late", (), ("retrace_current_value",)
        ),
        KnownVariant("the reset shows at the ending step", "resets at the ending step, and not after it", (), ("trace_reset_early",)),
        KnownVariant("the discount of t decays into t", "decays by the discount of the step, and not of the step before", (), ("trace_decay_current",)),
        KnownVariant("the first step decays what flows in", "decays what flows into the first step"),
        KnownVariant("starts are read as ends", "reads the flags of first steps as flags of last steps", (), ("prefix_other_boundary",)),
        KnownVariant("ends are read as starts", "reads the flags of last steps as flags of first steps"),
        KnownVariant("a start shows one step late", "reads starts one step late"),
        KnownVariant("the step after an end is taken for a reset", "takes the step after an end for a reset", (), ("prefix_next_step_logic",)),
        KnownVariant("invalid steps are zero steps", "takes invalid steps for steps of reward and value 0, which decay", ("OpenRLHF",), ("mask_decays",)),
        KnownVariant("outputs at invalid steps are left", "leaves numbers at invalid steps", ("verl",)),
        KnownVariant("invalid steps cut", "cuts at invalid steps", ("verl's REINFORCE++",), ("reset_on_mask",)),
        KnownVariant("invalid steps count", "takes invalid steps for steps", (), ("padding_counts",)),
        KnownVariant("invalid steps add", "adds what is stored at invalid steps"),
        KnownVariant("neighbours are read as they are stored", "reads the next row's value, valid or not"),
        KnownVariant("rows of full width are truncated", "takes rows of full width for truncated", (), ("width_is_truncation",)),
        KnownVariant("factors are one step late", "reads factors one step late"),
        KnownVariant("a factor of 0 does not reset", "passes the state on over factors of 0, as if they were 1", (), ("no_reset_recurrence",)),
        KnownVariant(
            "steps are put together wrongly", "scans by doubling with factor * earlier + later, which is not associative", (), ("nonassociative_tree",)
        ),
        KnownVariant("the direction is ignored", "ignores the direction"),
        KnownVariant("the state is kept in bfloat16", "keeps its running value in bfloat16", (), ("saturate_bf16",)),
        KnownVariant("rows are reshaped to time-major", "reshapes results to [T, N] where they are to be transposed", (), ("reshape_instead_of_transpose",)),
        KnownVariant("steps are reshaped to batch-major", "reshapes results to [N, T] where they are to be transposed"),
    )
}
