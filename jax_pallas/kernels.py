"""The kernels: one for contiguous steps, one for contiguous rows, for every recurrence.

A kernel knows places and taps (`rlscan.spec.program`), never an operation: alpha, beta and the outputs come from the
coefficient functions it is specialised for. Arrays are indexed axis by axis, each below 2^31, and Pallas makes offsets of 64
bits of that. Indices are int32 in x64 mode too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from rlscan.jax_pallas._scan_primitive import associative_scan
from rlscan.spec import coefficients as spec
from rlscan.spec.binding import bind
from rlscan.spec.plan import Plan
from rlscan.spec.program import (
    ACTIONS,
    ALL_VALID,
    FLAG_CONSTANT,
    FOLLOWING,
    NEAREST,
    NUMBER,
    OUTSIDE,
    PRECEDING,
    ROW,
    STATE_BEYOND_TAP,
    STATE_TAP,
    STEP,
    VALID_GIVEN,
    Program,
)  # fmt: skip


def device_function(function):
    """A coefficient function for kernels."""
    return bind(function, jnp, jax.Array, jax.jit)


then = device_function(spec.then)
then_both = device_function(spec.then_both)
step = device_function(spec.step)
skip = device_function(spec.skip)
not_a_reset = device_function(spec.not_a_reset)
nothing_where_invalid = device_function(spec.nothing_where_invalid)
expectation = device_function(spec.expectation)


def identity(state):
    return state


@dataclasses.dataclass(frozen=True)
class Special:
    """What a kernel is specialised for.

    Attributes:
        beyond: whether the outputs need the state one step further in the scan.
        seed: the argument that is the state beyond the window.
        sizes: of the axes of the outputs.
        time: which of them is time; the others make up the rows.
        axes: which of them each array has; along the others it repeats.
    """

    code: Program
    coefficients: object
    outputs: object
    beyond: bool
    seed: str | None
    plan: Plan
    sizes: tuple
    time: int
    axes: dict
    dtype: np.dtype

    @property
    def steps(self):
        return self.sizes[self.time]

    @property
    def num_rows(self):
        return int(np.prod([size for axis, size in enumerate(self.sizes) if axis != self.time]))

    @property
    def split(self):
        return self.plan.segments > 1


def lower(first, second):
    return (jnp.minimum(first, second),)


def higher(first, second):
    return (jnp.maximum(first, second),)


def coordinates(row, special):
    """The place of a row along each axis; at the time axis there is none."""
    places = [None] * len(special.sizes)
    axes = [axis for axis in range(len(special.sizes)) if axis != special.time]
    for axis in reversed(axes[1:]):
        places[axis] = row % special.sizes[axis]
        row = row // special.sizes[axis]
    places[axes[0]] = row
    return places


def load(special, refs, name, places, rows, t=None, within=None, action=None):
    """The elements at these rows and steps, in the smallest shape that holds them; `rows` and `within` mask what exists."""
    index, mask, shape = [], True, ()
    for axis in special.axes[name]:
        place, exists = (t, within) if axis == special.time else (places[axis], rows)
        index.append(place)
        mask = mask & exists
        shape = jnp.broadcast_shapes(shape, jnp.shape(place))
    if action is not None:
        index.append(action)
    if mask is True:
        return refs[name][tuple(index)]
    return plgpu.load(refs[name].at[tuple(index)], mask=jnp.broadcast_to(mask, shape), other=jnp.zeros((), refs[name].dtype))


def store(special, ref, places, t, result, inside):
    index = tuple(t if axis == special.time else places[axis] for axis in range(len(special.sizes)))
    plgpu.store(ref.at[index], jnp.broadcast_to(result, inside.shape), mask=inside)


def converted(x, flag, dtype):
    if flag:
        return x if x.dtype == bool else x != 0
    return x.astype(dtype)


def read(i, special, refs, places, rows, t, within, nearest):
    """One tap at steps t of these rows, as it is stored; `rows` and `within` mask what exists."""
    code, dtype = special.code, special.dtype
    name, at, flag = code.sources[i], code.at[i], code.flag[i]
    edge = code.edges[code.edge[i]] if code.edge[i] >= 0 else None
    if at in (NUMBER, ROW, STEP):
        return load(special, refs, name, places, rows, t, within)
    if at == ACTIONS:

        def add(action, total):
            value = load(special, refs, name, places, rows, t, within, action)
            weight = load(special, refs, edge, places, rows, t, within, action)
            return expectation(total, weight.astype(dtype), value.astype(dtype))

        return lax.fori_loop(np.int32(0), np.int32(refs[name].shape[-1]), add, jnp.zeros((rows & within).shape, dtype))
    place = {NEAREST: nearest, FOLLOWING: t + 1, PRECEDING: t - 1}[at]
    stored = within & (place >= 0) & (place < special.steps)
    x = load(special, refs, name, places, rows, place, stored)
    if edge is None:
        return jnp.where(stored, x, jnp.zeros((), x.dtype))
    return jnp.where(stored, converted(x, flag, dtype), converted(load(special, refs, edge, places, rows), flag, dtype))


def taps(reads, outside, state, state_beyond, codes, constants, dtype):
    """The parameters of a coefficient or output function."""
    return [
        reads[code] if code >= 0
        else {OUTSIDE: outside, STATE_TAP: state, STATE_BEYOND_TAP: state_beyond}[code] if code in (OUTSIDE, STATE_TAP, STATE_BEYOND_TAP)
        else jnp.asarray(constant, bool if code == FLAG_CONSTANT else dtype)
        for code, constant in zip(codes, constants, strict=True)
    ]  # fmt: skip


def validity(special, reads, inside):
    """Which steps are transitions."""
    code = special.code
    if code.validity == ALL_VALID:
        return inside
    if code.validity == VALID_GIVEN:
        return inside & reads[code.valid_taps[0]]
    return inside & not_a_reset(*taps(reads, None, None, None, code.valid_taps, code.valid_constants, special.dtype))


def maps(special, reads, outside, valid):
    """alpha and beta."""
    code, shape = special.code, valid.shape
    alpha, beta = special.coefficients(*taps(reads, outside, None, None, code.coefficient_taps, code.coefficient_constants, special.dtype))
    alpha, beta = skip(alpha.astype(special.dtype), beta.astype(special.dtype), valid)
    return jnp.broadcast_to(alpha, shape), jnp.broadcast_to(beta, shape)


def results(special, reads, outside, state, beyond, valid):
    code = special.code
    made = special.outputs(*taps(reads, outside, state, beyond, code.output_taps, code.output_constants, special.dtype))
    made = made if isinstance(made, tuple) else (made,)
    return made if code.validity == ALL_VALID else tuple(nothing_where_invalid(result, valid) for result in made)


def before_segment(which, special, row, segment, rows, state, totals, nearest_ends):
    """The state, and the nearest valid step, that flow into a segment from those which the scan passes before it."""
    code, segments = special.code, special.plan.segments
    nearest = jnp.full(rows.shape, special.steps if code.backward else -1, jnp.int32)
    if not special.split or which == "nearest":
        return state, nearest

    def pass_on(i, carry):
        state, nearest = carry
        before = segments - 1 - i if code.backward else i
        if which == "results":
            addend, factor = (plgpu.load(total.at[row, before], mask=rows, other=other) for total, other in zip(totals, (0, 1), strict=True))
            state = step(addend, factor, state)
        if code.nearest:
            end = plgpu.load(nearest_ends.at[row, before], mask=rows, other=special.steps if code.backward else -1)
            nearest = jnp.minimum(nearest, end) if code.backward else jnp.maximum(nearest, end)
        return state, nearest

    return lax.fori_loop(np.int32(0), segments - 1 - segment if code.backward else segment, pass_on, (state, nearest))


def after_segment(which, row, segment, rows, addend, factor, nearest, outs):
    """Hand on what a segment is to those which the scan passes after it."""
    for out, value in zip(outs, {"totals": (addend, factor), "nearest": (nearest,), "results": ()}[which], strict=which != "results"):
        plgpu.store(out.at[row, segment], value, mask=rows)


def valid_name(special):
    return special.code.sources[special.code.valid_taps[0]]


def nearest_over_tile(special, refs, places, rows, t, within, nearest_carry):
    """The nearest valid step beside each step of a tile whose steps are on axis 1."""
    backward, steps = special.code.backward, special.steps
    beside = t + 1 if backward else t - 1
    stored = within & (beside >= 0) & (beside < steps)
    valid = rows & stored & converted(load(special, refs, valid_name(special), places, rows, beside, stored), True, special.dtype)
    if backward:
        (found,) = associative_scan(lower, (jnp.where(valid, beside, steps),), axis=1, reverse=True)
        return jnp.minimum(found, nearest_carry)
    (found,) = associative_scan(higher, (jnp.where(valid, beside, -1),), axis=1)
    return jnp.maximum(found, nearest_carry)


def rows_kernel(which, special, refs, totals, nearest_ends, *outs):
    """Tiles of rows x steps, scanned; a carry goes from tile to tile.

    The pass is "results", or for rows split over programs first "nearest" (each segment's outermost valid step) and "totals"
    (each segment as one affine map).
    """
    code, plan, steps, dtype = special.code, special.plan, special.steps, special.dtype
    backward = code.backward
    row = pl.program_id(0) * plan.block_rows + jnp.arange(plan.block_rows, dtype=jnp.int32)[:, None]
    segment = pl.program_id(1)
    rows = row < special.num_rows
    places = coordinates(row, special)
    k = jnp.arange(plan.block_steps, dtype=jnp.int32)[None, :]
    edge_of_tile = 0 if backward else plan.block_steps - 1

    def edge(tile):
        return jnp.sum(jnp.where(k == edge_of_tile, tile, jnp.zeros((), tile.dtype)), axis=1, dtype=tile.dtype)[:, None]

    state = jnp.zeros(rows.shape, dtype)
    if special.seed:
        state = jnp.broadcast_to(load(special, refs, special.seed, places, rows).astype(dtype), rows.shape)
    state, nearest_carry = before_segment(which, special, row, segment, rows, state, totals, nearest_ends)

    def tile(i, carry):
        state, addend, factor, nearest_carry = carry
        block = segment * plan.blocks + (plan.blocks - 1 - i if backward else i)
        t = block * plan.block_steps + k
        within = t < steps
        inside = rows & within
        if which == "nearest":
            valid = inside & converted(load(special, refs, valid_name(special), places, rows, t, within), True, dtype)
            if backward:
                nearest_carry = jnp.minimum(nearest_carry, jnp.min(jnp.where(valid, t, steps), axis=1)[:, None])
            else:
                nearest_carry = jnp.maximum(nearest_carry, jnp.max(jnp.where(valid, t, -1), axis=1)[:, None])
            return state, addend, factor, nearest_carry
        nearest = t
        if code.nearest:
            nearest = nearest_over_tile(special, refs, places, rows, t, within, nearest_carry)
            nearest_carry = edge(nearest)
        reads = [converted(read(j, special, refs, places, rows, t, within, nearest), code.flag[j], dtype) for j in range(len(code.sources))]
        beside = nearest if code.nearest else (t + 1 if backward else t - 1)
        outside = (beside < 0) | (beside >= steps)
        valid = validity(special, reads, inside)
        alpha, beta = maps(special, reads, outside, valid)
        if special.beyond:
            nothing, whole = jnp.zeros(alpha.shape, dtype), jnp.ones(alpha.shape, dtype)
            before, before_factor, scanned, scanned_factor = associative_scan(then_both, (nothing, whole, alpha, beta), axis=1, reverse=backward)
        else:
            scanned, scanned_factor = associative_scan(then, (alpha, beta), axis=1, reverse=backward)
        if which == "totals":
            addend, factor = then(addend, factor, edge(scanned), edge(scanned_factor))
            return state, addend, factor, nearest_carry
        states = step(scanned, scanned_factor, state)
        beyond = step(before, before_factor, state) if special.beyond else states
        for out, result in zip(outs, results(special, reads, outside, states, beyond, valid), strict=True):
            store(special, out, places, t, result, inside)
        return edge(states), addend, factor, nearest_carry

    carry = (state, jnp.zeros(rows.shape, dtype), jnp.ones(rows.shape, dtype), nearest_carry)
    _, addend, factor, nearest = lax.fori_loop(np.int32(0), np.int32(plan.blocks), tile, carry)
    after_segment(which, row, segment, rows, addend, factor, nearest, outs)


def columns_kernel(which, special, refs, totals, nearest_ends, *outs):
    """A row in each lane, walked step by step; `block_steps` steps are loaded before the first is used.

    What trails the scan is carried in registers instead of being loaded again. The pass is as in `rows_kernel`.
    """
    code, plan, steps, dtype = special.code, special.plan, special.steps, special.dtype
    backward = code.backward
    row = pl.program_id(0) * plan.block_rows + jnp.arange(plan.block_rows, dtype=jnp.int32)
    segment = pl.program_id(1)
    rows = row < special.num_rows
    places = coordinates(row, special)
    low = segment * plan.blocks * plan.block_steps
    high = jnp.minimum(steps, low + plan.blocks * plan.block_steps)
    first = high - 1 if backward else low
    trailing = [j for j in range(len(code.sources)) if code.behind[j] >= 0]

    state = jnp.zeros(rows.shape, dtype)
    if special.seed:
        state = jnp.broadcast_to(load(special, refs, special.seed, places, rows).astype(dtype), rows.shape)
    state, nearest = before_segment(which, special, row, segment, rows, state, totals, nearest_ends)
    outside = nearest == (steps if backward else -1)
    # what each trailing read holds at the segment's first step; other reads have nothing to carry
    carried = []
    if which != "nearest":
        taps_there = [converted(read(j, special, refs, places, rows, first, True, nearest), code.flag[j], dtype) for j in trailing]
        carried = [jnp.broadcast_to(tap, rows.shape) for tap in taps_there]

    def block(i, carry):
        state, addend, factor, nearest, outside, carried = carry
        loaded = []
        for k in range(plan.block_steps):
            t = first - i * plan.block_steps - k if backward else first + i * plan.block_steps + k
            within = (t >= low) & (t < high)
            wanted = [code.valid_taps[0]] if which == "nearest" else [j for j in range(len(code.sources)) if j not in trailing]
            loaded.append((t, within, {j: read(j, special, refs, places, rows, t, within, t) for j in wanted}))
        for t, within, reads in loaded:
            # not where it is loaded: a flag turned into a predicate there would be waited for
            reads = {j: converted(tap, code.flag[j], dtype) for j, tap in reads.items()}
            inside = rows & within
            if which == "nearest":
                nearest = jnp.where(inside & reads[code.valid_taps[0]], t, nearest)
                continue
            reads |= dict(zip(trailing, carried, strict=True))
            valid = validity(special, reads, inside)
            if code.validity != VALID_GIVEN:
                outside = rows & (t == (steps - 1 if backward else 0))
            alpha, beta = maps(special, reads, outside, valid)
            if which == "totals":
                addend, factor = then(addend, factor, alpha, beta)
            else:
                beyond = state
                state = step(alpha, beta, state)
                for out, result in zip(outs, results(special, reads, outside, state, beyond, valid), strict=True):
                    store(special, out, places, t, result, inside)
            if code.validity == VALID_GIVEN:
                outside = outside & ~valid
            now = [jnp.broadcast_to(reads[code.behind[j]], rows.shape) for j in trailing]
            carried = [jnp.where(valid, new, old) if code.at[j] == NEAREST else new for j, new, old in zip(trailing, now, carried, strict=True)]
        return state, addend, factor, nearest, outside, carried

    carry = (state, jnp.zeros(rows.shape, dtype), jnp.ones(rows.shape, dtype), nearest, outside, carried)
    blocks = (high - low + plan.block_steps - 1) // plan.block_steps if special.split else np.int32(plan.blocks)
    _, addend, factor, nearest, _, _ = lax.fori_loop(np.int32(0), blocks, block, carry)
    after_segment(which, row, segment, rows, addend, factor, nearest, outs)
