"""The kernel, for every recurrence and both layouts.

It knows places and taps (`rlscan.spec.program`), never an operation: alpha, beta and the outputs come from the
coefficient functions it is specialised for. Offsets have 64 bits.

A tile is rows x positions x steps (`rlscan.spec.plan`). Arithmetic is done on lanes: tensors with an element for each position of each row,
neighbours in time side by side where steps are contiguous, and rows where rows are. What is read at the steps of a position is a tuple of
such tensors, in the order of the scan. Steps are numbered by q in that order: t = q forward, T-1-q backward.
"""

import functools

import torch
import triton
import triton.language as tl

from rlscan.spec import coefficients as spec
from rlscan.spec import program
from rlscan.spec.binding import bind
from rlscan.spec.plan import AT_ONCE, BEFORE_AT_ONCE
from rlscan.torch_triton.mathematics import language


@functools.cache
def device_function(function):
    """A coefficient function for kernels."""
    return bind(function, language, tl.tensor, triton.jit)


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


COMPUTE = {torch.float32: tl.float32, torch.float64: tl.float64}

STEP = tl.constexpr(program.STEP)
NEAREST = tl.constexpr(program.NEAREST)
FOLLOWING = tl.constexpr(program.FOLLOWING)
PRECEDING = tl.constexpr(program.PRECEDING)
ROW = tl.constexpr(program.ROW)
NUMBER = tl.constexpr(program.NUMBER)
ACTIONS = tl.constexpr(program.ACTIONS)
OUTSIDE = tl.constexpr(program.OUTSIDE)
STATE_TAP = tl.constexpr(program.STATE_TAP)
STATE_BEYOND_TAP = tl.constexpr(program.STATE_BEYOND_TAP)
FLAG_CONSTANT = tl.constexpr(program.FLAG_CONSTANT)
LAST = tl.constexpr(program.LAST)
STRIDE_0 = tl.constexpr(program.STRIDE_0)
STRIDE_1 = tl.constexpr(program.STRIDE_1)
ALL_VALID = tl.constexpr(program.ALL_VALID)
VALID_GIVEN = tl.constexpr(program.VALID_GIVEN)

# neighbours in time that are loaded at once
GROUP = tl.constexpr(AT_ONCE)

# of a reach of one position, until it is beyond any: a row has no more than 1024 in a program
DOUBLINGS = tl.constexpr(10)

# totals of other segments that a position reads at once
BEFORE = tl.constexpr(BEFORE_AT_ONCE)


# whether these are 1, or divisible by 16, is worth no kernel of its own; what matters is in MULTIPLES and STEP_UNIT
PLAIN = ("num_rows", "step_units", "row_sizes", "strides", "num_actions", "segments", "blocks")


@triton.jit
def higher(first, second):
    return tl.maximum(first, second)


@triton.jit
def coordinates(row, row_sizes):
    """The place of a row along each row axis, whose sizes but the first are given."""
    places = ()
    for i in tl.static_range(len(row_sizes)):
        size = row_sizes[len(row_sizes) - 1 - i]
        places = (row % size,) + places
        row = row // size
    return (row,) + places


@triton.jit
def strided(x, strides, CODE: tl.constexpr):
    """x times a stride: one of `strides`, or 0 or 1, which are known at compile time."""
    if CODE == STRIDE_0:
        return x * 0
    elif CODE == STRIDE_1:
        return x
    else:
        return x * strides[CODE]


@triton.jit
def multiplied(strides, MULTIPLES: tl.constexpr):
    """The strides from their quotients, so that the compiler sees what divides them."""
    scaled = ()
    for i in tl.static_range(len(MULTIPLES)):
        scaled = scaled + (tl.cast(strides[i], tl.int64) * MULTIPLES[i],)
    return scaled


@triton.jit
def row_offset(places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr):
    """Where a row of an array starts. PATTERN has for each array a stride along each row axis, then one along time."""
    offset = strided(places[0], strides, PATTERN[ARRAY * (len(places) + 1)])
    for axis in tl.static_range(1, len(places)):
        offset += strided(places[axis], strides, PATTERN[ARRAY * (len(places) + 1) + axis])
    return offset


@triton.jit
def time_offset(t, places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr):
    return strided(t.to(tl.int64), strides, PATTERN[ARRAY * (len(places) + 1) + len(places)])


@triton.jit
def bytes_of(array):
    """Booleans as the bytes that they are stored in: made a predicate where it is loaded, each would be waited for in turn."""
    if array.dtype.element_ty == tl.int1:
        return array.to(tl.pointer_type(tl.int8), bitcast=True)
    else:
        return array


@triton.jit
def converted(x, FLAG: tl.constexpr, COMPUTE: tl.constexpr):
    if FLAG:
        return x != 0
    else:
        return x.to(COMPUTE)


@triton.jit
def time(q, steps, BACKWARD: tl.constexpr):
    """t of the q-th step of the scan."""
    if BACKWARD:
        return steps - 1 - q
    else:
        return q


@triton.jit
def in_window(t, steps, rows, ONE_SIDE: tl.constexpr, WHOLE: tl.constexpr, BACKWARD: tl.constexpr):
    """Which rows have a step t. A tile reaches over the window's far end only, and nowhere where all tiles are whole."""
    if not ONE_SIDE:
        return rows & (t >= 0) & (t < steps)
    elif WHOLE:
        return rows
    elif BACKWARD:
        return rows & (t >= 0)
    else:
        return rows & (t < steps)


@triton.jit
def apart(x, BACKWARD: tl.constexpr):
    """The four columns of a tensor of neighbours in time, in the order of the scan."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    if BACKWARD:
        return fourth, third, second, first
    else:
        return first, second, third, fourth


@triton.jit
def columns(x):
    """Those of a tensor that has one, two or four."""
    if x.shape[1] == 4:
        return apart(x, False)
    elif x.shape[1] == 2:
        return tl.split(x)
    else:
        return (tl.reshape(x, [x.shape[0]]),)


@triton.jit
def together(x, FIRST: tl.constexpr, BACKWARD: tl.constexpr):
    """What `apart` undoes, for the four from FIRST on."""
    if BACKWARD:
        pairs = tl.join(tl.join(x[FIRST + 3], x[FIRST + 1]), tl.join(x[FIRST + 2], x[FIRST]))
    else:
        pairs = tl.join(tl.join(x[FIRST], x[FIRST + 2]), tl.join(x[FIRST + 1], x[FIRST + 3]))
    return tl.reshape(pairs, [x[0].shape[0], 4])


@triton.jit
def times(q, steps, CONTIGUOUS: tl.constexpr, STEPS: tl.constexpr, BACKWARD: tl.constexpr):
    """t of the steps from q on, as tensors that are loaded at once, in the order of the scan: neighbours as they lie in memory, or single steps."""
    separate = ()
    if CONTIGUOUS:
        for k in tl.static_range(0, STEPS, GROUP):
            # written so that the compiler sees what divides it
            lowest = steps - (GROUP + k) - q if BACKWARD else q + k
            separate = separate + (lowest[:, None] + tl.arange(0, GROUP)[None, :],)
    else:
        for k in tl.static_range(STEPS):
            separate = separate + (time(q + k, steps, BACKWARD),)
    return separate


@triton.jit
def beside(ts, ahead):
    """The times that are `ahead` of these."""
    moved = ()
    for i in tl.static_range(len(ts)):
        moved = moved + (ts[i] + ahead,)
    return moved


@triton.jit
def stored_at(ts, steps, rows, ONE_SIDE: tl.constexpr, CONTIGUOUS: tl.constexpr, WHOLE: tl.constexpr, BACKWARD: tl.constexpr):
    """Which of these are there."""
    stored = ()
    for i in tl.static_range(len(ts)):
        stored = stored + (in_window(ts[i], steps, across(rows, CONTIGUOUS), ONE_SIDE, WHOLE, BACKWARD),)
    return stored


@triton.jit
def across(x, CONTIGUOUS: tl.constexpr):
    """What lanes have, for what is loaded at once."""
    if CONTIGUOUS:
        return x[:, None]
    else:
        return x


@triton.jit
def pointers(array, row_offset, t, places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr, CONTIGUOUS: tl.constexpr):
    return array + (across(row_offset, CONTIGUOUS) + time_offset(t, places, strides, PATTERN, ARRAY))


@triton.jit
def to_next(places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr, CONTIGUOUS: tl.constexpr, BACKWARD: tl.constexpr):
    """How far it is to what is loaded next: a number that is the same everywhere."""
    AHEAD: tl.constexpr = GROUP if CONTIGUOUS else 1
    return strided(-AHEAD if BACKWARD else AHEAD, strides, PATTERN[ARRAY * (len(places) + 1) + len(places)])


@triton.jit
def load(array, row_offset, ts, stored, places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr, ZERO: tl.constexpr, CONTIGUOUS: tl.constexpr,
         BACKWARD: tl.constexpr):  # fmt: skip
    """What is stored at these times, step by step; outside the window 0, or anything."""
    loaded = ()
    place = pointers(array, row_offset, ts[0], places, strides, PATTERN, ARRAY, CONTIGUOUS)
    for i in tl.static_range(len(ts)):
        if ZERO:
            x = tl.load(place, mask=stored[i], other=0)
        else:
            x = tl.load(place, mask=stored[i])
        if CONTIGUOUS:
            loaded = loaded + apart(x, BACKWARD)
        else:
            loaded = loaded + (x,)
        place += to_next(places, strides, PATTERN, ARRAY, CONTIGUOUS, BACKWARD)
    return loaded


@triton.jit
def store(array, row_offset, x, ts, stored, places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr, CONTIGUOUS: tl.constexpr, BACKWARD: tl.constexpr):
    place = pointers(array, row_offset, ts[0], places, strides, PATTERN, ARRAY, CONTIGUOUS)
    for i in tl.static_range(len(ts)):
        if CONTIGUOUS:
            tl.store(place, together(x, i * GROUP, BACKWARD), mask=stored[i])
        else:
            tl.store(place, x[i], mask=stored[i])
        place += to_next(places, strides, PATTERN, ARRAY, CONTIGUOUS, BACKWARD)


@triton.jit
def edge_of(edges, edge_offsets, rows, EDGE: tl.constexpr, FLAG: tl.constexpr, COMPUTE: tl.constexpr):
    """What is read outside the window, where that is not 0."""
    return converted(tl.load(edges[EDGE] + edge_offsets[EDGE], mask=rows, other=0), FLAG, COMPUTE)


@triton.jit
def load_one(array, row_offset, edges, edge_offsets, t, steps, rows, places, strides, PATTERN: tl.constexpr, ARRAY: tl.constexpr,
             EDGE: tl.constexpr, FLAG: tl.constexpr, COMPUTE: tl.constexpr):  # fmt: skip
    """What is stored at one time, and the edge outside the window."""
    stored = in_window(t, steps, rows, False, False, False)
    x = converted(tl.load(bytes_of(array) + (row_offset + time_offset(t, places, strides, PATTERN, ARRAY)), mask=stored, other=0), FLAG, COMPUTE)
    if EDGE >= 0:
        x = tl.where(stored, x, edge_of(edges, edge_offsets, rows, EDGE, FLAG, COMPUTE))
    return x


@triton.jit
def filled(x, STEPS: tl.constexpr):
    """The same at all steps."""
    same = ()
    for _ in tl.static_range(STEPS):
        same = same + (x,)
    return same


@triton.jit
def load_tile(arrays, row_offsets, q, steps, rows, places, strides, PASS: tl.constexpr, PATTERN: tl.constexpr, AT: tl.constexpr, BEHIND: tl.constexpr,
              VALID_TAPS: tl.constexpr, CONTIGUOUS: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, BACKWARD: tl.constexpr,
              REREAD: tl.constexpr):  # fmt: skip
    """What is read at places known beforehand and not in registers anyway, as it is stored: STEPS values for each read, `rows` for the others.

    With REREAD, what trails the scan has a value at the step before the first, where there is one.
    """
    ts = times(q, steps, CONTIGUOUS, STEPS, BACKWARD)
    stored = stored_at(ts, steps, rows, True, CONTIGUOUS, WHOLE, BACKWARD)
    loaded = ()
    for j in tl.static_range(len(arrays)):
        if BEHIND[j] >= 0 and AT[j] != NEAREST and REREAD and PASS != "nearest":
            t = time(q - 1, steps, BACKWARD)
            before = in_window(t, steps, rows & (q > 0), True, WHOLE, BACKWARD)
            place = pointers(bytes_of(arrays[j]), row_offsets[j], t, places, strides, PATTERN, j, False)
            loaded = loaded + (tl.load(place, mask=before, other=0),) + filled(rows, STEPS - 1)
        elif BEHIND[j] >= 0 or (PASS == "nearest" and j != VALID_TAPS[0]):
            loaded = loaded + filled(rows, STEPS)
        elif AT[j] == STEP:
            loaded = loaded + load(bytes_of(arrays[j]), row_offsets[j], ts, stored, places, strides, PATTERN, j, False, CONTIGUOUS, BACKWARD)
        elif AT[j] == FOLLOWING or AT[j] == PRECEDING:
            neighbours = beside(ts, 1 if AT[j] == FOLLOWING else -1)
            known = stored_at(neighbours, steps, rows, False, CONTIGUOUS, WHOLE, BACKWARD)
            loaded = loaded + load(bytes_of(arrays[j]), row_offsets[j], neighbours, known, places, strides, PATTERN, j, True, CONTIGUOUS, BACKWARD)
        else:
            loaded = loaded + filled(rows, STEPS)
    return loaded


@triton.jit
def with_actions(total, value_at, weight_at, actions, stored, strides, ACTION_STRIDES: tl.constexpr, COMPUTE: tl.constexpr):
    """An expectation, further by one, two or four actions."""
    values = columns(tl.load(value_at + strided(actions, strides, ACTION_STRIDES[0]), mask=stored, other=0).to(COMPUTE))
    weights = columns(tl.load(weight_at + strided(actions, strides, ACTION_STRIDES[1]), mask=stored, other=0).to(COMPUTE))
    for i in tl.static_range(len(values)):
        total = expectation(total, weights[i], values[i])
    return total


@triton.jit
def over_actions(values, weights, value_offset, weight_offset, first, position, steps, rows, places, strides, num_actions, PATTERN: tl.constexpr,
                 ACTION_STRIDES: tl.constexpr, ACTIONS_AT_ONCE: tl.constexpr, ONE_GROUP: tl.constexpr, VALUES: tl.constexpr, WEIGHTS: tl.constexpr,
                 CONTIGUOUS: tl.constexpr, POSITIONS: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, BACKWARD: tl.constexpr,
                 COMPUTE: tl.constexpr):  # fmt: skip
    """The expectation over the actions at the steps from `first` on, action by action.

    Step after step, for then what one action leaves of a piece of memory is still at hand for the next; and where that is much, neighbouring lanes take
    neighbouring steps.
    """
    some = tl.arange(0, ACTIONS_AT_ONCE)[None, :]
    DEALT: tl.constexpr = CONTIGUOUS and not ONE_GROUP and POSITIONS > 1
    totals = ()
    for k in tl.static_range(STEPS):
        t = time(first - position * (STEPS - 1) + k * POSITIONS if DEALT else first + k, steps, BACKWARD)
        stored = in_window(t, steps, rows, True, WHOLE, BACKWARD)[:, None]
        value_at = pointers(values, value_offset, t, places, strides, PATTERN, VALUES, False)[:, None]
        weight_at = pointers(weights, weight_offset, t, places, strides, PATTERN, WEIGHTS, False)[:, None]
        total = tl.zeros(t.shape, COMPUTE)
        if ONE_GROUP:
            # a loop would keep the loads of one step from those of the next
            total = with_actions(total, value_at, weight_at, some, stored, strides, ACTION_STRIDES, COMPUTE)
        else:
            for action in range(0, num_actions, ACTIONS_AT_ONCE):
                total = with_actions(total, value_at, weight_at, action + some, stored, strides, ACTION_STRIDES, COMPUTE)
        totals = totals + (total,)
    if DEALT:
        return dealt(totals, POSITIONS, STEPS)
    else:
        return totals


@triton.jit
def dealt(x, POSITIONS: tl.constexpr, STEPS: tl.constexpr):
    """A tile whose neighbours in time are neighbouring lanes, as one in which they are a position's."""
    own = ()
    for k in tl.static_range(STEPS):
        source = index_of(by_row(x[0], POSITIONS, 1)) * STEPS + k
        found = taken(by_row(x[0], POSITIONS, 1), source % POSITIONS)
        for i in tl.static_range(1, STEPS):
            found = tl.where(source // POSITIONS == i, taken(by_row(x[i], POSITIONS, 1), source % POSITIONS), found)
        own = own + (tl.reshape(found, x[0].shape),)
    return own


@triton.jit
def kept_at(kept, row, t, num_rows, steps, CONTIGUOUS: tl.constexpr):
    """Where the first pass leaves for the last what it found at these rows and times, in the order of the layout."""
    if CONTIGUOUS:
        return kept + (row.to(tl.int64) * steps + t)
    else:
        return kept + (t.to(tl.int64) * num_rows + row)


@triton.jit
def load_kept(kept, row, ts, stored, num_rows, steps, CONTIGUOUS: tl.constexpr, BACKWARD: tl.constexpr):
    loaded = ()
    for i in tl.static_range(len(ts)):
        x = tl.load(kept_at(kept, across(row, CONTIGUOUS), ts[i], num_rows, steps, CONTIGUOUS), mask=stored[i])
        if CONTIGUOUS:
            loaded = loaded + apart(x, BACKWARD)
        else:
            loaded = loaded + (x,)
    return loaded


@triton.jit
def store_kept(kept, x, row, ts, stored, num_rows, steps, CONTIGUOUS: tl.constexpr, BACKWARD: tl.constexpr):
    for i in tl.static_range(len(ts)):
        place = kept_at(kept, across(row, CONTIGUOUS), ts[i], num_rows, steps, CONTIGUOUS)
        tl.store(place, together(x, i * GROUP, BACKWARD) if CONTIGUOUS else x[i], mask=stored[i])


@triton.jit
def taps(reads, outside, last, state, state_beyond, TAPS: tl.constexpr, CONSTANTS: tl.constexpr, COMPUTE: tl.constexpr):
    """The parameters of a coefficient or output function."""
    chosen = ()
    for i in tl.static_range(len(TAPS)):
        if TAPS[i] >= 0:
            chosen = chosen + (reads[TAPS[i]],)
        elif TAPS[i] == OUTSIDE:
            chosen = chosen + (outside,)
        elif TAPS[i] == LAST:
            chosen = chosen + (last,)
        elif TAPS[i] == STATE_TAP:
            chosen = chosen + (state,)
        elif TAPS[i] == STATE_BEYOND_TAP:
            chosen = chosen + (state_beyond,)
        elif TAPS[i] == FLAG_CONSTANT:
            chosen = chosen + (tl.full((), CONSTANTS[i], tl.int1),)
        else:
            chosen = chosen + (tl.full((), CONSTANTS[i], COMPUTE),)
    return chosen


@triton.jit
def offsets_of(places, strides, PATTERN: tl.constexpr, COUNT: tl.constexpr, FIRST: tl.constexpr):
    """Where a row starts in each of COUNT arrays."""
    offsets = ()
    for i in tl.static_range(COUNT):
        offsets = offsets + (row_offset(places, strides, PATTERN, FIRST + i),)
    return offsets


@triton.jit
def by_row(x, POSITIONS: tl.constexpr, BAND: tl.constexpr):
    """What lanes have, with an axis of positions, in which they hand things to each other."""
    if POSITIONS == 1:
        return x
    elif BAND == 1:
        # in axes Triton sees what does not cross warps
        return tl.reshape(x, [x.numel // POSITIONS, POSITIONS])
    else:
        return tl.reshape(x, [x.numel // (POSITIONS * BAND), POSITIONS, BAND])


@triton.jit
def by_lane(x, scratch, never, CONTIGUOUS: tl.constexpr):
    """What `by_row` undoes."""
    if len(x.shape) == 1:
        return x
    elif CONTIGUOUS:
        return tl.reshape(x, [x.numel])
    else:
        # a load that never happens stops Triton from spreading the layout in which lanes exchange something to all arithmetic that follows
        return tl.load(scratch.to(tl.pointer_type(x.dtype), bitcast=True), mask=never, other=tl.reshape(x, [x.numel]))


@triton.jit
def index_of(x):
    """The position of each element of what is by row."""
    position = tl.arange(0, x.shape[1])[None, :]
    return tl.broadcast_to(position[:, :, None] if len(x.shape) == 3 else position, x.shape)


@triton.jit
def taken(x, index):
    """What the positions of `index` have, in each row."""
    return tl.gather(x, index, 1)


@triton.jit
def position_before(x, first):
    """What the position before each one has, and `first` at a row's first."""
    if len(x.shape) == 1:
        return first
    else:
        position = index_of(x)
        return tl.where(position == 0, first, taken(x, tl.maximum(position - 1, 0)))


@triton.jit
def last_position(x):
    """What the last position of the row has, at all of them."""
    if len(x.shape) == 1:
        return x
    else:
        return taken(x, tl.full(x.shape, x.shape[1] - 1, tl.int32))


@triton.jit
def movable(x, FLAG: tl.constexpr):
    """In a dtype that lanes can hand to each other."""
    if FLAG:
        return x.to(tl.int32)
    else:
        return x


@triton.jit
def either_then(first_addend, first_factor, second_addend, second_factor, FADING: tl.constexpr):
    if FADING:
        return fading_then(first_addend, first_factor, second_addend, second_factor)
    else:
        return then(first_addend, first_factor, second_addend, second_factor)


@triton.jit
def either_step(addend, factor, state, FADING: tl.constexpr):
    if FADING:
        return fading_step(addend, factor, state)
    else:
        return step(addend, factor, state)


@triton.jit
def over_positions(addend, factor, POSITIONS: tl.constexpr, BAND: tl.constexpr, CONTIGUOUS: tl.constexpr, FADING: tl.constexpr):
    """Each position's map after those of all before it in its row, by row."""
    addend, factor = by_row(addend, POSITIONS, BAND), by_row(factor, POSITIONS, BAND)
    if POSITIONS == 1:
        return addend, factor
    elif CONTIGUOUS:
        if FADING:
            return tl.associative_scan((addend, factor), 1, fading_then)
        else:
            return tl.associative_scan((addend, factor), 1, then)
    else:
        # by doubling, for here positions may lie in several warps: a scan across warps is added up in an order that differs from compiler to compiler
        position = index_of(addend)
        for i in tl.static_range(DOUBLINGS):
            if (1 << i) < POSITIONS:
                source = tl.maximum(position - (1 << i), 0)
                there = position >= (1 << i)
                before_addend = tl.where(there, taken(addend, source), 0.0)
                before_factor = tl.where(there, taken(factor, source), 1.0)
                addend, factor = either_then(before_addend, before_factor, addend, factor, FADING)
        return addend, factor


@triton.jit
def highest_over_positions(x, POSITIONS: tl.constexpr, BAND: tl.constexpr):
    """For each position, the highest of its row up to it, by row."""
    if POSITIONS == 1:
        return x
    else:
        return tl.associative_scan(by_row(x, POSITIONS, BAND), 1, higher)


# Triton's own of these can't be called in 3.4
@triton.jit
def let_the_next_pass_start():
    tl.inline_asm_elementwise("griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for_the_pass_before():
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def handed_on(array, first, segment, rows, NEUTRAL: tl.constexpr):
    """What neighbouring segments from `first` on have left; nothing of those from `segment` on."""
    others = first[:, None] + tl.arange(0, GROUP)[None, :]
    # where the first of them is, there is room for all
    x = tl.load(array[:, None] + others, mask=(rows & (first < segment))[:, None], other=NEUTRAL)
    return apart(tl.where(others < segment, x, NEUTRAL), False)


@triton.jit(do_not_specialize=PLAIN)
def scan_kernel(arrays, edges, seed, outs, totals, nearest_ends, expectations, num_rows, step_units, row_sizes, strides, num_actions, segments, blocks,
                PASS: tl.constexpr, PATTERN: tl.constexpr, MULTIPLES: tl.constexpr, STEP_UNIT: tl.constexpr, ACTION_STRIDES: tl.constexpr,
                ACTIONS_AT_ONCE: tl.constexpr, ONE_GROUP: tl.constexpr,
                AT: tl.constexpr, EDGE: tl.constexpr, FLAG: tl.constexpr, BEHIND: tl.constexpr, COEFFICIENTS: tl.constexpr, OUTPUTS: tl.constexpr,
                TAPS: tl.constexpr, CONSTANTS: tl.constexpr, OUTPUT_TAPS: tl.constexpr, OUTPUT_CONSTANTS: tl.constexpr, VALIDITY: tl.constexpr,
                VALID_TAPS: tl.constexpr, VALID_CONSTANTS: tl.constexpr, LAST_ONLY: tl.constexpr, IS_NEAREST: tl.constexpr, BACKWARD: tl.constexpr,
                SEEDED: tl.constexpr, FADING: tl.constexpr, COMPUTE: tl.constexpr, CONTIGUOUS: tl.constexpr, BLOCK_ROWS: tl.constexpr, POSITIONS: tl.constexpr,
                STEPS: tl.constexpr, WHOLE: tl.constexpr, ALL_ROWS: tl.constexpr, SPLIT: tl.constexpr, AHEAD: tl.constexpr, TURN: tl.constexpr,
                BAND: tl.constexpr, REREAD: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Rows scanned tile by tile; a carry goes from tile to tile.

    PASS is "results", or for rows split over programs first "nearest" (each segment's last valid step) and "totals" (each segment as one
    affine map). AHEAD: the next tile is loaded before this one is scanned. OVERLAP: a pass starts while the one before is at work, and waits for it to end
    before it reads what that hands on.
    """
    if OVERLAP and PASS != "results" and not CONTIGUOUS:
        let_the_next_pass_start()
    NUM: tl.constexpr = len(arrays)
    LANES: tl.constexpr = BLOCK_ROWS * POSITIONS
    TILE: tl.constexpr = POSITIONS * STEPS
    steps = step_units * STEP_UNIT
    scaled = multiplied(strides, MULTIPLES)
    segment = tl.program_id(1)
    first_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS
    lane = tl.arange(0, LANES)
    position = lane // BAND % POSITIONS
    row = first_row + (lane // (BAND * POSITIONS) * BAND + lane % BAND)
    rows = (row < num_rows) | ALL_ROWS
    places = coordinates(row, row_sizes)
    row_offsets = offsets_of(places, scaled, PATTERN, NUM, 0)
    edge_offsets = offsets_of(places, scaled, PATTERN, len(edges), NUM)
    # written so that the compiler sees what divides it
    slots = tl.cdiv(segments, GROUP) * GROUP
    slot = row * slots
    factors = tl.cast(num_rows, tl.int64) * slots
    nothing = tl.zeros([LANES], COMPUTE)
    scratch = outs[0] + lane
    never = (lane < 0) | (num_rows < 0)

    out_offset = row_offset(places, scaled, PATTERN, NUM + len(edges) + 1)

    state = nothing
    if SEEDED:
        state = tl.load(seed + row_offset(places, scaled, PATTERN, NUM + len(edges)), mask=rows, other=0).to(COMPUTE)
    # what goes from tile to tile is by row, and the same at all positions
    state = by_row(state, POSITIONS, BAND)
    nearest_before = by_row(tl.zeros([LANES], tl.int32) - 1, POSITIONS, BAND)
    q = segment * blocks * TILE
    first = q + position * STEPS
    if AHEAD:
        ahead = load_tile(arrays, row_offsets, first, steps, rows, places, scaled, PASS, PATTERN, AT, BEHIND, VALID_TAPS, CONTIGUOUS, STEPS, WHOLE, BACKWARD,
                          REREAD)  # fmt: skip
    # numbers, what has no time, and what a read that trails the scan holds before the first step: of the segment, or of the window if the rest is read again
    fixed = ()
    trailing = ()
    for j in tl.static_range(NUM):
        if AT[j] == NUMBER:
            fixed = fixed + (tl.full((), arrays[j], COMPUTE),)
        elif AT[j] == ROW:
            fixed = fixed + (converted(tl.load(arrays[j] + row_offsets[j], mask=rows, other=0), FLAG[j], COMPUTE),)
        else:
            fixed = fixed + (rows,)
        if BEHIND[j] < 0 or AT[j] == NEAREST or PASS == "nearest" or (REREAD and EDGE[j] < 0):
            trailing = trailing + (rows,)
        elif REREAD:
            trailing = trailing + (edge_of(edges, edge_offsets, rows, EDGE[j], FLAG[j], COMPUTE),)
        else:
            trailed = load_one(arrays[j], row_offsets[j], edges, edge_offsets, time(q - 1, steps, BACKWARD), steps, rows, places, scaled, PATTERN, j, EDGE[j],
                               FLAG[j], COMPUTE)  # fmt: skip
            trailing = trailing + (by_row(movable(trailed, FLAG[j]), POSITIONS, BAND),)

    if OVERLAP and (PASS == "results" or (PASS == "totals" and IS_NEAREST)):
        wait_for_the_pass_before()
    if SPLIT and PASS != "nearest":
        for group in range((segment + POSITIONS * BEFORE - 1) // (POSITIONS * BEFORE)):
            before_addend = nothing
            before_factor = nothing + 1
            before_end = tl.zeros([LANES], tl.int32) - 1
            for k in tl.static_range(0, BEFORE, GROUP):
                other = (group * POSITIONS + position) * BEFORE + k
                if PASS == "results":
                    addends = handed_on(totals + slot, other, segment, rows, 0)
                    others_factors = handed_on(totals + factors + slot, other, segment, rows, 1)
                    for i in tl.static_range(GROUP):
                        before_addend, before_factor = either_then(before_addend, before_factor, addends[i], others_factors[i], FADING)
                if IS_NEAREST:
                    ends = handed_on(nearest_ends + slot, other, segment, rows, -1)
                    for i in tl.static_range(GROUP):
                        before_end = tl.maximum(before_end, ends[i])
            if PASS == "results":
                before_addend, before_factor = over_positions(before_addend, before_factor, POSITIONS, BAND, CONTIGUOUS, FADING)
                state = last_position(either_step(before_addend, before_factor, state, FADING))
            if IS_NEAREST:
                before_end = highest_over_positions(before_end, POSITIONS, BAND)
                nearest_before = tl.maximum(last_position(before_end), nearest_before)
    total_addend = by_row(nothing, POSITIONS, BAND)
    total_factor = total_addend + 1

    for done in range(0, blocks, TURN):
        for within in tl.static_range(TURN):
            if AHEAD:
                loaded = ahead
                ahead = load_tile(arrays, row_offsets, first + TILE, steps, rows & (done + within + 1 < blocks), places, scaled, PASS, PATTERN, AT, BEHIND,
                                  VALID_TAPS, CONTIGUOUS, STEPS, WHOLE, BACKWARD, REREAD)  # fmt: skip
            else:
                loaded = load_tile(arrays, row_offsets, first, steps, rows, places, scaled, PASS, PATTERN, AT, BEHIND, VALID_TAPS, CONTIGUOUS, STEPS, WHOLE,
                                   BACKWARD, REREAD)  # fmt: skip
            ts = times(first, steps, CONTIGUOUS, STEPS, BACKWARD)
            stored = stored_at(ts, steps, rows, True, CONTIGUOUS, WHOLE, BACKWARD)
            insides = ()
            for k in tl.static_range(STEPS):
                insides = insides + (in_window(time(first + k, steps, BACKWARD), steps, rows, True, WHOLE, BACKWARD),)
            if IS_NEAREST:
                found = tl.zeros([LANES], tl.int32) - 1
                for k in tl.static_range(STEPS):
                    found = tl.where(insides[k] & (loaded[VALID_TAPS[0] * STEPS + k] != 0), first + k, found)
                found = tl.maximum(highest_over_positions(found, POSITIONS, BAND), nearest_before)
                nearest = by_lane(position_before(found, nearest_before), scratch, never, CONTIGUOUS)
                nearest_before = last_position(found)
            if PASS != "nearest":
                # what is read at each step, where it is not as it was loaded
                kept = expectations
                carried = ()
                expected = ()
                beyond_tile = ()
                for j in tl.static_range(NUM):
                    if AT[j] == ACTIONS:
                        if SPLIT and PASS == "results":
                            expected = expected + load_kept(kept, row, ts, stored, num_rows, steps, CONTIGUOUS, BACKWARD)
                        else:
                            sums = over_actions(arrays[j], edges[EDGE[j]], row_offsets[j], edge_offsets[EDGE[j]], first, position, steps, rows, places, scaled,
                                                num_actions, PATTERN, ACTION_STRIDES, ACTIONS_AT_ONCE, ONE_GROUP, j, NUM + EDGE[j], CONTIGUOUS, POSITIONS,
                                                STEPS, WHOLE, BACKWARD, COMPUTE)  # fmt: skip
                            if SPLIT:
                                store_kept(kept, sums, row, ts, stored, num_rows, steps, CONTIGUOUS, BACKWARD)
                            expected = expected + sums
                        kept += tl.cast(num_rows, tl.int64) * steps
                    else:
                        expected = expected + filled(rows, STEPS)
                    if BEHIND[j] < 0:
                        carried = carried + (rows,)
                        beyond_tile = beyond_tile + (trailing[j],)
                    elif AT[j] == NEAREST:
                        carried = carried + (load_one(arrays[j], row_offsets[j], edges, edge_offsets, time(nearest, steps, BACKWARD), steps, rows, places,
                                                      scaled, PATTERN, j, EDGE[j], FLAG[j], COMPUTE),)  # fmt: skip
                        beyond_tile = beyond_tile + (trailing[j],)
                    elif REREAD:
                        before = converted(loaded[j * STEPS], FLAG[j], COMPUTE)
                        if EDGE[j] >= 0:
                            before = tl.where(first == 0, trailing[j], before)
                        carried = carried + (before,)
                        beyond_tile = beyond_tile + (trailing[j],)
                    else:
                        last = movable(converted(loaded[BEHIND[j] * STEPS + STEPS - 1], FLAG[j], COMPUTE), FLAG[j])
                        last = by_row(last, POSITIONS, BAND)
                        before = by_lane(position_before(last, trailing[j]), scratch, never, CONTIGUOUS)
                        carried = carried + (converted(before, FLAG[j], COMPUTE),)
                        beyond_tile = beyond_tile + (last_position(last),)
                trailing = beyond_tile

                reads = ()
                maps = ()
                valids = ()
                outsides = ()
                for k in tl.static_range(STEPS):
                    here = ()
                    for j in tl.static_range(NUM):
                        if AT[j] == NUMBER or AT[j] == ROW:
                            here = here + (fixed[j],)
                        elif AT[j] == ACTIONS:
                            here = here + (expected[j * STEPS + k],)
                        elif BEHIND[j] >= 0:
                            here = here + (carried[j],)
                        elif EDGE[j] >= 0:
                            place = time(first + k, steps, BACKWARD) + (1 if AT[j] == FOLLOWING else -1)
                            edge = edge_of(edges, edge_offsets, rows, EDGE[j], FLAG[j], COMPUTE)
                            here = here + (tl.where((place >= 0) & (place < steps), converted(loaded[j * STEPS + k], FLAG[j], COMPUTE), edge),)
                        else:
                            here = here + (converted(loaded[j * STEPS + k], FLAG[j], COMPUTE),)
                    # no position's step but its first is the window's
                    outside = nearest == -1 if IS_NEAREST else first == 0 if k == 0 else tl.full([LANES], False, tl.int1)
                    last = first + k == steps - 1
                    valid = insides[k]
                    if VALIDITY == VALID_GIVEN:
                        valid = valid & here[VALID_TAPS[0]]
                    elif VALIDITY != ALL_VALID:
                        valid = valid & not_a_reset(*taps(here, outside, last, nothing, nothing, VALID_TAPS, VALID_CONSTANTS, COMPUTE))
                    alpha, beta = COEFFICIENTS(*taps(here, outside, last, nothing, nothing, TAPS, CONSTANTS, COMPUTE))
                    alpha, beta = skip(alpha.to(COMPUTE), beta.to(COMPUTE), valid)
                    maps = maps + (alpha, beta)
                    reads = reads + here
                    valids = valids + (valid,)
                    outsides = outsides + (outside,)
                    now = ()
                    for j in tl.static_range(NUM):
                        if BEHIND[j] < 0:
                            now = now + (rows,)
                        elif AT[j] == NEAREST:
                            now = now + (tl.where(valid, here[BEHIND[j]], carried[j]),)
                        else:
                            now = now + (here[BEHIND[j]],)
                    carried = now
                    if IS_NEAREST:
                        nearest = tl.where(valid, first + k, nearest)

                # the steps of each position as one map, then what comes before them
                addend = maps[0]
                factor = maps[1]
                for k in tl.static_range(1, STEPS):
                    addend, factor = either_then(addend, factor, maps[2 * k], maps[2 * k + 1], FADING)
                addend, factor = over_positions(addend, factor, POSITIONS, BAND, CONTIGUOUS, FADING)
                if PASS == "totals":
                    total_addend, total_factor = either_then(total_addend, total_factor, last_position(addend), last_position(factor),
                                                             FADING)  # fmt: skip
                else:
                    reached = either_step(addend, factor, state, FADING)
                    now_state = by_lane(position_before(reached, state), scratch, never, CONTIGUOUS)
                    state = last_position(reached)
                    results = ()
                    for k in tl.static_range(STEPS):
                        beyond = now_state
                        now_state = either_step(maps[2 * k], maps[2 * k + 1], now_state, FADING)
                        here = ()
                        for j in tl.static_range(NUM):
                            here = here + (reads[k * NUM + j],)
                        made = OUTPUTS(*taps(here, outsides[k], first + k == steps - 1, now_state, beyond, OUTPUT_TAPS, OUTPUT_CONSTANTS, COMPUTE))
                        if len(outs) == 1:
                            made = (made,)
                        for j in tl.static_range(len(outs)):
                            result = made[j]
                            if VALIDITY != ALL_VALID and not LAST_ONLY[j]:
                                result = nothing_where_invalid(result, valids[k])
                            results = results + (result,)
                    if POSITIONS == 1:
                        # all its steps are taken one after another anyway
                        state = now_state
                    # the last first: where flags and rewards lie differently, Triton 3.4 to 3.6 otherwise use a converted state before it is there
                    for n in tl.static_range(len(outs)):
                        column = ()
                        for k in tl.static_range(STEPS):
                            column = column + (results[k * len(outs) + len(outs) - 1 - n],)
                        if LAST_ONLY[len(outs) - 1 - n]:
                            for k in tl.static_range(STEPS):
                                tl.store(outs[len(outs) - 1 - n] + row, column[k], mask=insides[k] & (first + k == steps - 1))
                        else:
                            store(outs[len(outs) - 1 - n], out_offset, column, ts, stored, places, scaled, PATTERN, NUM + len(edges) + 1, CONTIGUOUS, BACKWARD)
            first += TILE
    if OVERLAP and PASS != "results" and CONTIGUOUS:
        # at its beginning, the next pass would take the registers that this one is to have
        let_the_next_pass_start()
    # the same from all positions
    if PASS == "totals":
        tl.store(totals + slot + segment, by_lane(total_addend, scratch, never, CONTIGUOUS), mask=rows)
        tl.store(totals + factors + slot + segment, by_lane(total_factor, scratch, never, CONTIGUOUS), mask=rows)
    elif PASS == "nearest":
        tl.store(nearest_ends + slot + segment, by_lane(nearest_before, scratch, never, CONTIGUOUS), mask=rows)
