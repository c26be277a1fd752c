"""How far a right gradient may lie from the oracle's, `derivative.gradients`: the error analysis of `bound`, run once more on the way back.

`gradient_bound(call, cotangents)` gives an absolute bound for each element of each gradient, in the notation of `bound`. The call that is differentiated is
that of `FlowingSteps`, run on `Taped` arrays of `Rounded` numbers. So whatever is elementwise in a derivative has the error that `Rounded` gives it.
Five things are left.

1. Sums. A gradient that arrives from several places, by repetition of an argument along an axis or by several reads of one step, is their sum in any
   order. Of k terms that are not exactly 0, each passes at most k - 1 additions, and no partial sum is larger than that of all |terms| with their errors:

       e = sum of e_i + (k - 1) sum (|x_i| + u e_i) / (1 - (k - 1) u)

2. The scan in its addends. With g_t arriving for y_t, z_t = g_t + beta_(t-1) z_(t-1) is the gradient of alpha_t, and beta_(T-1) z_(T-1), one more step of
   the same recurrence, that of the seed. This is a scan like the other, evaluated in any order, whose addends have the errors of g: section 2 of `bound`.
   A derivative that is taken through the operations of a tree is another order of it: the additions of z_t join disjoint sets of its terms
   g_j P(j,t), and the nearest term of the set that begins further away is another one in each addition, so that W bounds them too.

3. The scan in its factors. The gradient of beta_t is z_t y_(t+1). Where it is computed as that, `Rounded` has its error. But the derivative of a tree forms
   neither z nor y: it adds up products of parts of both. All terms are g_j P(j,t) P(t+1,m) alpha_m, each once. With Z and S what is added up in z_t and
   y_(t+1), and with E_z and E_y their errors by section 2 of `bound`:

       multiplications, m - j of them a term:                                M_z S + Z M_y + Z S
       additions of parts that differ in j, or in m, inside a factor:        W_z S + Z W_y
       the same, of products:                                                W_z S + Z W_y
       together, with the errors of g and of the coefficients:               2 (S E_z + Z E_y) + u E_z E_y + Z S at most

   (The products of one step's part of z join at places of their own in m, which is how W was found, and the other way round.) Each of the operations, no
   more than four a step of z and of y, may flush to 0, times the largest products of factors that may follow.

4. A selection that rounding can turn, as where a ratio is clipped, has the difference of the two branches in its derivative as well: `Rounded.where`.

5. y may be taken from a result, which is y or its sum with an argument (`adjoint.telling`): then it is that sum, rounded, less the argument.

The oracle errs by the same expression in its own u, as in `bound`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlscan.spec.adjoint import telling
from rlscan.spec.bound import Rounded, absolute, arithmetic_of, meet, scan
from rlscan.spec.calls import Call
from rlscan.spec.derivative import Pull, Tape, Taped, differentiated, pulled_back
from rlscan.spec.steps import FiniteSteps, beside


def gradient_bound(call: Call, cotangents: Sequence[np.ndarray]) -> Mapping[str, np.ndarray]:
    """For each gradient, how far each element may lie from that of `derivative.gradients`; as in `bound.bound`."""
    if 0 in call.shape:
        return {name: np.zeros(call.arrays[name].shape) for name in differentiated(call)}
    with np.errstate(all="ignore"):
        found = pulled_back(call, cotangents, arithmetic_of(call.dtype), _outputs)
        return {name: absolute(gradient) for name, gradient in found.items()}


def _outputs(taps: FiniteSteps, tape: Tape) -> Sequence[Taped]:
    (alpha, beta), seed, told = taps.coefficients(), taps.seed(), telling(taps.call.wiring, taps.call.dtype)
    added = taps.array(told.added).value if told and told.added else None
    state = taps.finite(_scan(tape, alpha, beta, seed, taps.call.backward, added))
    return taps.outputs(state, taps.beside(state, seed, taps.call.backward))


def _scan(tape: Tape, alpha: Taped, beta: Taped, seed: Taped, backward: bool, added: Rounded | None) -> Taped:
    """The states at every step, with the derivative of sections 2 and 3; what they were `added` to in the result that tells them."""
    arithmetic = arithmetic_of(alpha.value.arithmetic.dtype)
    there = scan(alpha.value, beta.value, seed.value, backward)
    nothing = arithmetic.operand(np.zeros((1, *seed.shape)))
    told, beyond = there.state, there.beyond
    if added is not None:
        here = beside(arithmetic.joined, added, nothing, backward)
        told, beyond = told + added - added, beyond + here - here

    def back(g: Rounded) -> tuple[Rounded, Rounded, Rounded]:
        ahead, behind = (g, nothing) if backward else (nothing, g)
        entering, leaving = (nothing, beta.value) if backward else (beta.value, nothing)
        found = scan(arithmetic.joined(ahead, behind), arithmetic.joined(entering, leaving), nothing[0], not backward)
        inside = slice(0, -1) if backward else slice(1, None)
        z, y, z_sums, y_sums = found.state[inside], beyond, found.sums[inside], there.sums_beyond
        inherited = 2 * (meet(y_sums, z.error) + meet(z_sums, y.error)) + arithmetic.u * meet(z.error, y.error) + meet(z_sums, y_sums)
        flushed = 8 * (len(g.value) + 1) * arithmetic.tiny / arithmetic.u * found.grown[inside] * there.grown_beyond
        exact = (z_sums == 0) | (y_sums == 0)
        of_beta = arithmetic.rounded(z.value * y.value, inherited + np.where(exact, 0.0, flushed), (z, y), exact, own=0.0)
        return z, of_beta, found.state[-1 if backward else 0]

    # the three are found at once, and the gradient is kept, so that no other is taken for it
    known: list[tuple[Rounded, tuple[Rounded, Rounded, Rounded]]] = []

    def part(which: int) -> Pull:
        def pull(g: Rounded) -> Rounded:
            if not known or known[0][0] is not g:
                known[:] = [(g, back(g))]
            return known[0][1][which]

        return pull

    return Taped(tape, told, [(array, part(which)) for which, array in enumerate((alpha, beta, seed))])
