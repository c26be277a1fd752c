"""The kernel, for every recurrence and both layouts.

It knows places and taps (`rlscan.spec.program`), never an operation: alpha, beta and the outputs come from the
coefficient functions it is specialised for. Arrays are indexed axis by axis, each below 2^31, and Pallas makes offsets of 64
bits of that. Indices are int32 in x64 mode too.

A tile is rows x positions x steps (`rlscan.spec.plan`). Arithmetic is done on lanes: arrays with an element for each position of each row,
neighbours in time side by side where steps are contiguous, and rows where rows are. What is read at the steps of a position is a list of
such arrays, in the order of the scan. Steps are numbered by q in that order: t = q forward, T-1-q backward.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from rlscan.jax_pallas._scan_primitive import associative_scan, halves, joined, taken
from rlscan.spec import coefficients as spec
from rlscan.spec.binding import bind
from rlscan.spec.plan import AT_ONCE, BEFORE_AT_ONCE, Plan
from rlscan.spec.program import (
    ACTIONS,
    ALL_VALID,
    FLAG_CONSTANT,
    FOLLOWING,
    LAST,
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


step = device_function(spec.step)
then = device_function(spec.then)
fading_step = device_function(spec.fading_step)
fading_then = device_function(spec.fading_then)
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
        seed: the argument that is the state beyond the window.
        sizes: of the axes of the outputs.
        time: which of them is time; the others make up the rows.
        axes: which of them each array has; along the others it repeats.
        fades: whether factors lie in [0, 1].
        interpret: whether the kernel runs in JAX, where a negative index counts from the end even if it is masked.
    """

    code: Program
    coefficients: object
    outputs: object
    seed: str | None
    plan: Plan
    sizes: tuple
    time: int
    axes: dict
    dtype: np.dtype
    fades: bool
    interpret: bool

    @property
    def steps(self):
        return self.sizes[self.time]

    @property
    def num_rows(self):
        return int(np.prod([size for axis, size in enumerate(self.sizes) if axis != self.time]))

    @property
    def split(self):
        return self.plan.segments > 1

    @property
    def contiguous(self):
        return self.plan.layout == "rows"

    @property
    def lanes(self):
        return self.plan.rows * self.plan.positions

    @property
    def whole(self):
        return self.plan.whole(self.steps)

    @property
    def all_rows(self):
        return self.num_rows % self.plan.rows == 0


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


def time(special, q):
    """t of the q-th step of the scan."""
    return special.steps - 1 - q if special.code.backward else q


def in_window(special, t):
    """Where t is a step. A tile reaches over the window's far end only, and nowhere where all tiles are whole: then True."""
    if special.whole:
        return True
    return t >= 0 if special.code.backward else t < special.steps


def apart(special, x):
    """The four columns of an array of neighbours in time, in the order of the scan."""
    return columns(x)[::-1] if special.code.backward else columns(x)


def together(special, x):
    """What `apart` undoes."""
    first, second, third, fourth = reversed(x) if special.code.backward else x
    return jnp.reshape(joined(joined(first, third), joined(second, fourth)), (first.shape[0], 4))


def times(special, q):
    """t of the steps from q on, as arrays that are loaded at once, in the order of the scan: neighbours as they lie in memory, or single steps."""
    steps = special.plan.steps
    if not special.contiguous:
        return [time(special, q + k) for k in range(steps)]
    # written so that the compiler sees what divides it
    lowest = [special.steps - (AT_ONCE + k) - q if special.code.backward else q + k for k in range(0, steps, AT_ONCE)]
    return [t[:, None] + jnp.arange(AT_ONCE, dtype=jnp.int32)[None, :] for t in lowest]


def across(special, x):
    """What lanes have, for what is loaded at once."""
    return x[:, None] if special.contiguous and hasattr(x, "ndim") and x.ndim == 1 else x


def load(special, refs, name, places, rows, t=None, within=True, action=None):
    """The elements at these rows and steps, in the smallest shape that holds them; `rows` and `within` mask what exists, or are True. 0 where no step is."""
    if within is not True and special.time not in special.axes[name]:
        # what is the same at all steps, or has but one, is at no other either
        x = load(special, refs, name, places, rows, action=action)
        return jnp.where(within, x, jnp.zeros((), x.dtype))
    index, mask, shape = [], True, ()
    t = t if t is None else countable(special, t)
    for axis in special.axes[name]:
        place, exists = (t, within) if axis == special.time else (places[axis], rows)
        index.append(place)
        mask = exists if mask is True else mask if exists is True else mask & exists
        shape = jnp.broadcast_shapes(shape, jnp.shape(place))
    if action is not None:
        index.append(action)
        shape = jnp.broadcast_shapes(shape, action.shape)
    if mask is True:
        return plgpu.load(refs[name].at[tuple(index)]) if shape else refs[name][tuple(index)]
    # of a single number too, where one row's only axis is time
    return plgpu.load(refs[name].at[tuple(index)], mask=jnp.broadcast_to(mask, shape), other=jnp.zeros((), refs[name].dtype))


def countable(special, t):
    """t, and in the interpreter some place outside the arrays instead of a negative one."""
    return jnp.where(t < 0, special.steps, t) if special.interpret else t


def load_steps(special, refs, name, places, rows, ts, within):
    """What is stored at these times, step by step; 0 where nothing is."""
    places, rows = [across(special, place) for place in places], across(special, rows)
    loaded = [load(special, refs, name, places, rows, t, inside) for t, inside in zip(ts, within, strict=True)]
    return parts(special, loaded)


def parts(special, loaded):
    """What was loaded at once, step by step."""
    if not special.contiguous:
        return loaded
    # what is the same at all steps has one column
    return [step for x in loaded for step in (apart(special, x) if x.shape == (special.lanes, AT_ONCE) else [jnp.reshape(x, x.shape[:1])] * AT_ONCE)]


def store(special, ref, places, rows, ts, results):
    places = [across(special, place) for place in places]
    store_at(
        special,
        ref,
        [tuple(countable(special, t) if axis == special.time else places[axis] for axis in range(len(special.sizes))) for t in ts],
        rows,
        ts,
        results,
    )


def store_at(special, ref, indices, rows, ts, results):
    rows = across(special, rows)
    groups = [together(special, results[k : k + AT_ONCE]) for k in range(0, len(results), AT_ONCE)] if special.contiguous else results
    for index, t, result in zip(indices, ts, groups, strict=True):
        mask = _both(rows, in_window(special, t))
        if mask is True:
            plgpu.store(ref.at[index], result)
        else:
            plgpu.store(ref.at[index], result, mask=jnp.broadcast_to(mask, result.shape))


def converted(x, flag, dtype):
    if flag:
        return x if x.dtype == bool else x != 0
    return x.astype(dtype)


def edge_of(special, i, refs, places, rows):
    """What is read outside the window, where that is not 0."""
    code = special.code
    return converted(load(special, refs, code.edges[code.edge[i]], places, rows), code.flag[i], special.dtype)


def load_one(special, i, refs, places, rows, t):
    """A tap at one time, and its edge outside the window."""
    code, dtype = special.code, special.dtype
    name, flag = code.sources[i], code.flag[i]
    stored = (t >= 0) & (t < special.steps)
    x = load(special, refs, name, places, rows, t, stored)
    if code.edge[i] < 0:
        return converted(x, flag, dtype)
    return jnp.where(stored, converted(x, flag, dtype), edge_of(special, i, refs, places, rows))


def trailing_reads(which, code):
    """Those that a pass has: where valid steps are found, nothing else is read."""
    return [] if which == "nearest" else code.trails


def load_tile(which, special, refs, places, rows, q, wanted):
    """What is read at places known beforehand and not in registers anyway, as it is stored: the steps of each such read.

    If the plan says so, what trails the scan has a value at the step before the first, where there is one.
    """
    code = special.code
    ts, trails = times(special, q), trailing_reads(which, code)
    loaded = {}
    for i, at in enumerate(code.at):
        if i in trails and special.plan.reread:
            t = time(special, q - 1)
            loaded[i] = [load(special, refs, code.sources[i], places, rows, t, _both(_both(q > 0, in_window(special, t)), wanted))]
        if code.behind[i] >= 0 or (which == "nearest" and i != code.valid_taps[0]):
            continue
        if at == STEP:
            within = [_both(in_window(special, t), wanted) for t in ts]
            loaded[i] = load_steps(special, refs, code.sources[i], places, rows, ts, within)
        elif at in (FOLLOWING, PRECEDING):
            moved = [t + (1 if at == FOLLOWING else -1) for t in ts]
            within = [_both((t >= 0) & (t < special.steps), wanted) for t in moved]
            loaded[i] = load_steps(special, refs, code.sources[i], places, rows, moved, within)
    return loaded


def _both(first, second):
    return second if first is True else first if second is True else first & second


def over_actions(special, i, refs, places, rows, first, position):
    """The expectation over the actions at the steps from `first` on, action by action.

    Step after step, for then what one action leaves of a piece of memory is still at hand for the next; and where that is much, neighbouring lanes take
    neighbouring steps.
    """
    name, weights, dtype, plan = special.code.sources[i], special.code.edges[special.code.edge[i]], special.dtype, special.plan
    num_actions = refs[name].shape[-1]
    at_once = math.gcd(num_actions, 4)
    is_dealt = special.contiguous and num_actions > at_once and plan.positions > 1
    places, rows = [place if place is None else place[:, None] for place in places], rows if rows is True else rows[:, None]
    some = jnp.arange(at_once, dtype=jnp.int32)[None, :]
    totals = []
    for k in range(plan.steps):
        t = time(special, first - position * (plan.steps - 1) + k * plan.positions if is_dealt else first + k)[:, None]
        within = in_window(special, t)

        def add(group, total, t=t, within=within):
            both = [columns(load(special, refs, array, places, rows, t, within, group * at_once + some).astype(dtype)) for array in (name, weights)]
            for value, weight in zip(*both, strict=True):
                total = expectation(total, weight, value)
            return total

        totals.append(lax.fori_loop(np.int32(0), np.int32(num_actions // at_once), add, jnp.zeros((special.lanes,), dtype)))
    return dealt(special, totals) if is_dealt else totals


def dealt(special, x):
    """A tile whose neighbours in time are neighbouring lanes, as one in which they are a position's."""
    positions, steps = special.plan.positions, special.plan.steps
    own = []
    for k in range(steps):
        source = index_of(by_row(special, x[0])) * steps + k
        place, among = lax.rem(source, np.int32(positions)), lax.div(source, np.int32(positions))
        found = taken_positions(by_row(special, x[0]), place)
        for i in range(1, steps):
            found = jnp.where(among == i, taken_positions(by_row(special, x[i]), place), found)
        own.append(jnp.reshape(found, x[0].shape))
    return own


def kept_index(special, row, t):
    """Where the first pass leaves for the last what it found at these rows and times, in the order of the layout."""
    t = countable(special, t)
    return (across(special, row), t) if special.contiguous else (t, row)


def load_kept(special, kept, row, rows, ts):
    row, rows = across(special, row), across(special, rows)
    loaded = []
    for t in ts:
        mask, index = _both(rows, in_window(special, t)), kept_index(special, row, t)
        loaded.append(
            plgpu.load(kept.at[index]) if mask is True else plgpu.load(kept.at[index], mask=jnp.broadcast_to(mask, t.shape), other=jnp.zeros((), kept.dtype))
        )
    return parts(special, loaded)


def store_kept(special, kept, row, rows, ts, x):
    store_at(special, kept, [kept_index(special, row, t) for t in ts], rows, ts, x)


def columns(x):
    """Those of an array that has one, two or four."""
    if x.shape[1] == 4:
        even, odd = halves(jnp.reshape(x, (x.shape[0], 2, 2)))
        (first, third), (second, fourth) = halves(even), halves(odd)
        return first, second, third, fourth
    return halves(x) if x.shape[1] == 2 else (jnp.reshape(x, x.shape[:1]),)


def taps(reads, outside, last, state, state_beyond, codes, constants, dtype):
    """The parameters of a coefficient or output function."""
    return [
        reads[code] if code >= 0
        else {OUTSIDE: outside, LAST: last, STATE_TAP: state, STATE_BEYOND_TAP: state_beyond}[code] if code in (OUTSIDE, LAST, STATE_TAP, STATE_BEYOND_TAP)
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
    return inside & not_a_reset(*taps(reads, None, None, None, None, code.valid_taps, code.valid_constants, special.dtype))


def maps(special, reads, outside, last, valid):
    """alpha and beta."""
    code = special.code
    alpha, beta = special.coefficients(*taps(reads, outside, last, None, None, code.coefficient_taps, code.coefficient_constants, special.dtype))
    alpha, beta = skip(alpha.astype(special.dtype), beta.astype(special.dtype), valid)
    return jnp.broadcast_to(alpha, (special.lanes,)), jnp.broadcast_to(beta, (special.lanes,))


def results(special, reads, outside, last, state, beyond, valid):
    code = special.code
    made = special.outputs(*taps(reads, outside, last, state, beyond, code.output_taps, code.output_constants, special.dtype))
    made = made if isinstance(made, tuple) else (made,)
    if code.validity != ALL_VALID:
        made = [result if last_only else nothing_where_invalid(result, valid) for result, last_only in zip(made, code.last_only, strict=True)]
    return [jnp.broadcast_to(result, (special.lanes,)) for result in made]


def by_row(special, x):
    """What lanes have, with an axis of positions, in which they hand things to each other."""
    if special.plan.positions == 1:
        return x
    plan = special.plan
    # in axes Triton sees what does not cross warps
    return jnp.reshape(x, (plan.rows // plan.band, plan.positions, *([plan.band] if plan.band > 1 else [])))


def by_lane(special, x, scratch):
    """What `by_row` undoes."""
    if x.ndim == 1:
        return x
    x = jnp.reshape(x, (special.lanes,))
    return x if special.contiguous else pinned(x, scratch)


def index_of(x):
    """The position of each element of what is by row."""
    position = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
    return jnp.broadcast_to(position[:, :, None] if x.ndim == 3 else position, x.shape)


def taken_positions(x, index):
    """What the positions of `index` have, in each row."""
    return taken(x, index, 1)


def position_before(x, first):
    """What the position before each one has, and `first` at a row's first."""
    if x.ndim == 1:
        return first
    position = index_of(x)
    return jnp.where(position == 0, first, taken_positions(x, jnp.maximum(position - 1, 0)))


def last_position(x):
    """What the last position of the row has, at all of them."""
    if x.ndim == 1:
        return x
    return taken_positions(x, jnp.full(x.shape, x.shape[1] - 1, jnp.int32))


def pinned(x, scratch):
    """x, distributed over threads like what is loaded from `scratch`: a load that never happens stops Triton from spreading the layout in which
    lanes exchange something to all arithmetic that follows."""
    ref, index, never = scratch
    if x.dtype == ref.dtype:
        return plgpu.load(ref.at[index], mask=never, other=x)
    # as bits of what the scratch holds
    bits = lax.bitcast_convert_type(x.astype(f"int{8 * ref.dtype.itemsize}"), ref.dtype)
    bits = plgpu.load(ref.at[index], mask=never, other=bits)
    return lax.bitcast_convert_type(bits, f"int{8 * ref.dtype.itemsize}").astype(x.dtype)


def movable(x, flag):
    """In a dtype that lanes can hand to each other."""
    return x.astype(jnp.int32) if flag else x


def either_step(special, addend, factor, state):
    return (fading_step if special.fades else step)(addend, factor, state)


def either_then(special, first_addend, first_factor, second_addend, second_factor):
    return (fading_then if special.fades else then)(first_addend, first_factor, second_addend, second_factor)


def over_positions(special, addend, factor):
    """Each position's map after those of all before it in its row, by row."""
    if special.plan.positions == 1:
        return addend, factor
    addend, factor = by_row(special, addend), by_row(special, factor)
    if special.contiguous:
        return associative_scan(fading_then if special.fades else then, (addend, factor), axis=1)
    # by doubling, for here positions may lie in several warps: a scan across warps is added up in an order that differs from compiler to compiler
    position, reach = index_of(addend), 1
    while reach < special.plan.positions:
        source = jnp.maximum(position - reach, 0)
        there = position >= reach
        before_addend = jnp.where(there, taken_positions(addend, source), jnp.zeros((), special.dtype))
        before_factor = jnp.where(there, taken_positions(factor, source), jnp.ones((), special.dtype))
        addend, factor = either_then(special, before_addend, before_factor, addend, factor)
        reach *= 2
    return addend, factor


def highest_over_positions(special, x):
    """For each position, the highest of its row up to it, by row."""
    if special.plan.positions == 1:
        return x
    (found,) = associative_scan(higher, (by_row(special, x),), axis=1)
    return found


def handed_on(ref, row, first, segment, rows, neutral):
    """What neighbouring segments from `first` on have left; nothing of those from `segment` on."""
    others = first[:, None] + jnp.arange(AT_ONCE, dtype=jnp.int32)[None, :]
    # where the first of them is, there is room for all
    mask = jnp.broadcast_to(_both(rows, first < segment)[:, None], others.shape)
    x = plgpu.load(ref.at[row[:, None], others], mask=mask, other=jnp.full((), neutral, ref.dtype))
    return columns(jnp.where(others < segment, x, jnp.full((), neutral, ref.dtype)))


def before_segment(which, special, row, position, segment, rows, state, totals, nearest_ends):
    """The state, and the nearest valid step, that flow into a segment from those which the scan passes before it."""
    code, plan, lanes = special.code, special.plan, (special.lanes,)
    # what goes from tile to tile is by row, and the same at all positions
    state, nearest = by_row(special, state), by_row(special, jnp.full(lanes, -1, jnp.int32))
    if not special.split or which == "nearest":
        return state, nearest

    def pass_on(group, carry):
        state, nearest = carry
        addend, factor, end = jnp.zeros(lanes, special.dtype), jnp.ones(lanes, special.dtype), jnp.full(lanes, -1, jnp.int32)
        for k in range(0, BEFORE_AT_ONCE, AT_ONCE):
            other = (group * plan.positions + position) * BEFORE_AT_ONCE + k
            if which == "results":
                addends, factors = (handed_on(total, row, other, segment, rows, neutral) for total, neutral in zip(totals, (0, 1), strict=True))
                for one in zip(addends, factors, strict=True):
                    addend, factor = either_then(special, addend, factor, *one)
            if code.nearest:
                for one in handed_on(nearest_ends, row, other, segment, rows, -1):
                    end = jnp.maximum(end, one)
        if which == "results":
            addend, factor = over_positions(special, addend, factor)
            state = last_position(either_step(special, addend, factor, state))
        if code.nearest:
            nearest = jnp.maximum(last_position(highest_over_positions(special, end)), nearest)
        return state, nearest

    at_once = plan.positions * BEFORE_AT_ONCE
    return lax.fori_loop(np.int32(0), lax.div(segment + (at_once - 1), np.int32(at_once)), pass_on, (state, nearest))


def scan_kernel(which, special, refs, totals, nearest_ends, expectations, *outs):
    """Rows scanned tile by tile; a carry goes from tile to tile.

    The pass is "results", or for rows split over programs first "nearest" (each segment's last valid step) and "totals" (each segment as one
    affine map). With `plan.ahead` the next tile is loaded before this one is scanned.
    """
    code, plan, dtype, lanes = special.code, special.plan, special.dtype, (special.lanes,)
    steps, tile_steps, reads_of = plan.steps, plan.block_steps, range(len(code.sources))
    segment = pl.program_id(1)
    lane = jnp.arange(special.lanes, dtype=jnp.int32)
    position = lax.rem(lax.div(lane, np.int32(plan.band)), np.int32(plan.positions))
    row = pl.program_id(0) * plan.rows + lax.div(lane, np.int32(plan.band * plan.positions)) * plan.band + lax.rem(lane, np.int32(plan.band))
    rows = True if special.all_rows else row < special.num_rows
    places = coordinates(row, special)
    # somewhere in an output, and a mask that is False but does not say so
    scratch = outs[0], tuple(jnp.zeros(lanes, jnp.int32) if i < outs[0].ndim - 1 else lane for i in range(outs[0].ndim)), (lane < 0) | (segment < 0)

    state = jnp.zeros(lanes, dtype)
    if special.seed:
        state = jnp.broadcast_to(load(special, refs, special.seed, places, rows).astype(dtype), lanes)
    q = segment * (plan.blocks * tile_steps)
    first = q + position * steps
    ahead = load_tile(which, special, refs, places, rows, first, True) if plan.ahead else {}
    # numbers, what has no time, and what a read that trails the scan holds before the first step: of the segment, or of the window if the rest is read again
    fixed = {i: converted(load(special, refs, code.sources[i], places, rows), code.flag[i], dtype) for i in reads_of if code.at[i] in (NUMBER, ROW)}
    trails = trailing_reads(which, code)
    if plan.reread:
        trailing = [jnp.broadcast_to(edge_of(special, i, refs, places, rows), lanes) if code.edge[i] >= 0 else None for i in trails]
    else:
        before = [jnp.broadcast_to(load_one(special, i, refs, places, rows, time(special, q - 1)), lanes) for i in trails]
        trailing = [by_row(special, movable(x, code.flag[i])) for i, x in zip(trails, before, strict=True)]

    # by now all loads that need not know of other segments are under way
    state, nearest_before = before_segment(which, special, row, position, segment, rows, state, totals, nearest_ends)

    def tile(block, carry):
        state, addend_before, factor_before, nearest_before, trailing, ahead = carry
        first_here = first + block * tile_steps
        if ahead:
            loaded, ahead = ahead, load_tile(which, special, refs, places, rows, first_here + tile_steps, block + 1 < plan.blocks)
        else:
            loaded = load_tile(which, special, refs, places, rows, first_here, True)
        ts = times(special, first_here)
        insides = [jnp.broadcast_to(_both(rows, in_window(special, time(special, first_here + k))), lanes) for k in range(steps)]
        if code.nearest:
            found = jnp.full(lanes, -1, jnp.int32)
            for k in range(steps):
                found = jnp.where(insides[k] & converted(loaded[code.valid_taps[0]][k], True, dtype), first_here + k, found)
            found = jnp.maximum(highest_over_positions(special, found), nearest_before)
            nearest = by_lane(special, position_before(found, nearest_before), scratch)
            nearest_before = last_position(found)
        if which == "nearest":
            return state, addend_before, factor_before, nearest_before, trailing, ahead

        # what is read at each step, where it is not as it was loaded
        over = [i for i in reads_of if code.at[i] == ACTIONS]
        if special.split and which == "results":
            expected = {i: load_kept(special, kept, row, rows, ts) for i, kept in zip(over, expectations, strict=True)}
        else:
            expected = {i: over_actions(special, i, refs, places, rows, first_here, position) for i in over}
        if which == "totals":
            for i, kept in zip(over, outs[2:], strict=True):
                store_kept(special, kept, row, rows, ts, expected[i])
        carried, beyond_tile = {}, []
        for i, before in zip(trails, trailing, strict=True):
            if plan.reread:
                again = jnp.broadcast_to(converted(loaded.pop(i)[0], code.flag[i], dtype), lanes)
                carried[i] = again if before is None else jnp.where(first_here == 0, before, again)
                beyond_tile.append(before)
                continue
            last = by_row(special, movable(jnp.broadcast_to(converted(loaded[code.behind[i]][-1], code.flag[i], dtype), lanes), code.flag[i]))
            carried[i] = converted(by_lane(special, position_before(last, before), scratch), code.flag[i], dtype)
            beyond_tile.append(last_position(last))
        for i in reads_of:
            if code.at[i] == NEAREST:
                carried[i] = jnp.broadcast_to(load_one(special, i, refs, places, rows, time(special, nearest)), lanes)

        every = []
        for k in range(steps):
            here = fixed | {i: sums[k] for i, sums in expected.items()} | carried
            for i, values in loaded.items():
                here[i] = converted(values[k], code.flag[i], dtype)
                if code.edge[i] >= 0:
                    place = time(special, first_here + k) + (1 if code.at[i] == FOLLOWING else -1)
                    here[i] = jnp.where((place >= 0) & (place < special.steps), here[i], edge_of(special, i, refs, places, rows))
            # no position's step but its first is the window's
            outside = nearest == -1 if code.nearest else first_here == 0 if k == 0 else jnp.zeros(lanes, bool)
            last = first_here + k == special.steps - 1
            valid = validity(special, here, insides[k])
            every.append((here, outside, last, valid, maps(special, here, outside, last, valid)))
            now = {i: jnp.broadcast_to(here[code.behind[i]], lanes) for i in carried}
            carried = {i: jnp.where(valid, new, carried[i]) if code.at[i] == NEAREST else new for i, new in now.items()}
            if code.nearest:
                nearest = jnp.where(valid, first_here + k, nearest)

        # the steps of each position as one map, then what comes before them
        addend, factor = every[0][-1]
        for *_, one in every[1:]:
            addend, factor = either_then(special, addend, factor, *one)
        addend, factor = over_positions(special, addend, factor)
        if which == "totals":
            total = either_then(special, addend_before, factor_before, last_position(addend), last_position(factor))
            return state, *total, nearest_before, beyond_tile, ahead
        reached = either_step(special, addend, factor, state)
        now_state = by_lane(special, position_before(reached, state), scratch)
        made = []
        for here, outside, last, valid, one in every:
            beyond, now_state = now_state, either_step(special, *one, now_state)
            made.append(results(special, here, outside, last, now_state, beyond, valid))
        for n in reversed(range(len(outs))):
            if code.last_only[n]:
                for at_step, (_, _, last, _, _) in zip(made, every, strict=True):
                    mask = _both(rows, last)
                    # the interpreter writes what was there where the mask is not set, and other lanes have the same row
                    plgpu.store(outs[n].at[jnp.where(mask, row, special.num_rows) if special.interpret else row], at_step[n], mask=mask)
            else:
                store(special, outs[n], places, rows, ts, [at_step[n] for at_step in made])
        # where a row has one position, all its steps are taken one after another anyway
        state = now_state if plan.positions == 1 else last_position(reached)
        return state, addend_before, factor_before, nearest_before, beyond_tile, ahead

    carry = (state, jnp.zeros(state.shape, dtype), jnp.ones(state.shape, dtype), nearest_before, trailing, ahead)

    def turn(number, carry):
        for within in range(plan.turn):
            carry = tile(number * plan.turn + within, carry)
        return carry

    _, addend, factor, nearest, _, _ = lax.fori_loop(np.int32(0), np.int32(plan.blocks // plan.turn), turn, carry)
    hand_on = {"totals": (addend, factor), "nearest": (nearest,), "results": ()}[which]
    for out, value in zip(outs[: len(hand_on)], hand_on, strict=True):
        # the same from all positions
        plgpu.store(out.at[row, segment], by_lane(special, value, scratch), mask=None if rows is True else rows)
