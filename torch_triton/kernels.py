"""The kernels: one for contiguous steps, one for contiguous rows, for every recurrence.

A kernel knows places and taps (`rlscan.spec.program`), never an operation: alpha, beta and the outputs come from the
coefficient functions it is specialised for. Offsets have 64 bits.
"""

import functools

import torch
import triton
import triton.language as tl

from rlscan.spec import coefficients as spec
from rlscan.spec import program
from rlscan.spec.binding import bind
from rlscan.torch_triton.mathematics import language


@functools.cache
def device_function(function):
    """A coefficient function for kernels."""
    return bind(function, language, tl.tensor, triton.jit)


then = device_function(spec.then)
then_both = device_function(spec.then_both)
step = device_function(spec.step)
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
STRIDE_0 = tl.constexpr(program.STRIDE_0)
STRIDE_1 = tl.constexpr(program.STRIDE_1)
ALL_VALID = tl.constexpr(program.ALL_VALID)
VALID_GIVEN = tl.constexpr(program.VALID_GIVEN)


# whether these are 1, or divisible by 16, is worth no kernel of its own; what matters is in MULTIPLES and STEP_UNIT
PLAIN = ("num_rows", "step_units", "row_sizes", "strides", "num_actions", "segments", "blocks")


@triton.jit
def lower(first, second):
    return tl.minimum(first, second)


@triton.jit
def higher(first, second):
    return tl.maximum(first, second)


@triton.jit
def within(row_exists, t, low, high, WHOLE: tl.constexpr):
    """Which rows have a step t. Where all blocks are whole it is the same for all t: one predicate, not one a step."""
    if WHOLE:
        return row_exists
    else:
        return row_exists & (t >= low) & (t < high)


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
def read(i: tl.constexpr, arrays, edges, row_offsets, edge_offsets, places, strides, num_actions, t, nearest, rows, inside, steps,
         PATTERN: tl.constexpr, ACTION_STRIDES: tl.constexpr, AT: tl.constexpr, EDGE: tl.constexpr, FLAG: tl.constexpr, COMPUTE: tl.constexpr):  # fmt: skip
    """One tap at steps t of these rows, as it is stored; `rows` and `inside` mask what exists."""
    if AT[i] == NUMBER:
        return tl.full((), arrays[i], COMPUTE)
    elif AT[i] == ROW:
        return tl.load(arrays[i] + row_offsets[i], mask=rows, other=0)
    elif AT[i] == ACTIONS:
        start = row_offsets[i] + time_offset(t, places, strides, PATTERN, i)
        weight_start = edge_offsets[EDGE[i]] + time_offset(t, places, strides, PATTERN, len(arrays) + EDGE[i])
        total = tl.zeros(inside.shape, COMPUTE)
        for action in range(num_actions):
            value = tl.load(arrays[i] + start + strided(action, strides, ACTION_STRIDES[0]), mask=inside, other=0)
            weight = tl.load(edges[EDGE[i]] + weight_start + strided(action, strides, ACTION_STRIDES[1]), mask=inside, other=0)
            total = expectation(total, weight.to(COMPUTE), value.to(COMPUTE))
        return total
    else:
        place = t
        if AT[i] == NEAREST:
            place = nearest
        elif AT[i] == FOLLOWING:
            place = t + 1
        elif AT[i] == PRECEDING:
            place = t - 1
        stored = inside
        if AT[i] != STEP:
            stored = inside & (place >= 0) & (place < steps)
        x = tl.load(bytes_of(arrays[i]) + (row_offsets[i] + time_offset(place, places, strides, PATTERN, i)), mask=stored, other=0)
        if EDGE[i] >= 0:
            edge = tl.load(edges[EDGE[i]] + edge_offsets[EDGE[i]], mask=rows, other=0)
            x = tl.where(stored, converted(x, FLAG[i], COMPUTE), converted(edge, FLAG[i], COMPUTE))
        return x


@triton.jit
def taps(reads, outside, state, state_beyond, TAPS: tl.constexpr, CONSTANTS: tl.constexpr, COMPUTE: tl.constexpr):
    """The parameters of a coefficient or output function."""
    chosen = ()
    for i in tl.static_range(len(TAPS)):
        if TAPS[i] >= 0:
            chosen = chosen + (reads[TAPS[i]],)
        elif TAPS[i] == OUTSIDE:
            chosen = chosen + (outside,)
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
def nearest_over_tile(
    valid_array, offset, places, strides, t, inside, steps, nearest_carry, PATTERN: tl.constexpr, VALID: tl.constexpr, BACKWARD: tl.constexpr
):
    """The nearest valid step beside each step of a tile whose steps are on axis 1."""
    beside = t + 1 if BACKWARD else t - 1
    stored = inside & (beside >= 0) & (beside < steps)
    valid = tl.load(valid_array + (offset + time_offset(beside, places, strides, PATTERN, VALID)), mask=stored, other=0) != 0
    if BACKWARD:
        found = tl.associative_scan((tl.where(valid, beside, steps),), 1, lower, reverse=True)
        return tl.minimum(found[0], nearest_carry)
    else:
        found = tl.associative_scan((tl.where(valid, beside, -1),), 1, higher)
        return tl.maximum(found[0], nearest_carry)


@triton.jit(do_not_specialize=PLAIN)
def rows_kernel(arrays, edges, seed, outs, totals, nearest_ends, num_rows, step_units, row_sizes, strides, num_actions,
                segments, blocks,
                PASS: tl.constexpr, PATTERN: tl.constexpr, MULTIPLES: tl.constexpr, STEP_UNIT: tl.constexpr,
                ACTION_STRIDES: tl.constexpr, AT: tl.constexpr, EDGE: tl.constexpr, FLAG: tl.constexpr, BEHIND: tl.constexpr, COEFFICIENTS: tl.constexpr,
                OUTPUTS: tl.constexpr, TAPS: tl.constexpr, CONSTANTS: tl.constexpr, OUTPUT_TAPS: tl.constexpr, OUTPUT_CONSTANTS: tl.constexpr,
                BEYOND: tl.constexpr, VALIDITY: tl.constexpr, VALID_TAPS: tl.constexpr, VALID_CONSTANTS: tl.constexpr,
                IS_NEAREST: tl.constexpr, BACKWARD: tl.constexpr, SEEDED: tl.constexpr, SPLIT: tl.constexpr, COMPUTE: tl.constexpr,
                BLOCK_ROWS: tl.constexpr, BLOCK_STEPS: tl.constexpr):  # fmt: skip
    """Tiles of rows x steps, scanned; a carry goes from tile to tile.

    PASS is "results", or for rows split over programs first "nearest" (each segment's outermost valid step) and "totals"
    (each segment as one affine map).
    """
    NUM: tl.constexpr = len(arrays)
    steps = step_units * STEP_UNIT
    scaled = multiplied(strides, MULTIPLES)
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    segment = tl.program_id(1)
    row_exists = (row < num_rows)[:, None]
    places = coordinates(row[:, None], row_sizes)
    row_offsets = offsets_of(places, scaled, PATTERN, NUM, 0)
    edge_offsets = offsets_of(places, scaled, PATTERN, len(edges), NUM)
    slot = row[:, None] * segments
    k = tl.arange(0, BLOCK_STEPS)[None, :]
    far = steps if BACKWARD else -1

    state = tl.zeros([BLOCK_ROWS, 1], COMPUTE)
    if SEEDED:
        state = tl.load(seed + row_offset(places, scaled, PATTERN, NUM + len(edges)), mask=row_exists, other=0).to(COMPUTE)
    nearest_carry = tl.zeros([BLOCK_ROWS, 1], tl.int32) + far
    if SPLIT and PASS != "nearest":
        for i in range(segments - 1 - segment if BACKWARD else segment):
            before = segments - 1 - i if BACKWARD else i
            if PASS == "results":
                total_addend = tl.load(totals + (slot + before) * 2, mask=row_exists, other=0)
                total_factor = tl.load(totals + (slot + before) * 2 + 1, mask=row_exists, other=1)
                state = step(total_addend, total_factor, state)
            if IS_NEAREST:
                end = tl.load(nearest_ends + slot + before, mask=row_exists, other=far)
                nearest_carry = tl.minimum(nearest_carry, end) if BACKWARD else tl.maximum(nearest_carry, end)
    addend = tl.zeros([BLOCK_ROWS, 1], COMPUTE)
    factor = tl.full([BLOCK_ROWS, 1], 1, COMPUTE)
    edge_of_tile = 0 if BACKWARD else BLOCK_STEPS - 1

    for i in range(blocks):
        block = segment * blocks + (blocks - 1 - i if BACKWARD else i)
        t = block * BLOCK_STEPS + k
        inside = row_exists & (t < steps)
        if PASS == "nearest":
            valid = (
                tl.load(arrays[VALID_TAPS[0]] + (row_offsets[VALID_TAPS[0]] + time_offset(t, places, scaled, PATTERN, VALID_TAPS[0])), mask=inside, other=0)
                != 0
            )
            if BACKWARD:
                nearest_carry = tl.minimum(nearest_carry, tl.min(tl.where(valid, t, far), 1)[:, None])
            else:
                nearest_carry = tl.maximum(nearest_carry, tl.max(tl.where(valid, t, far), 1)[:, None])
        else:
            nearest = t
            if IS_NEAREST:
                nearest = nearest_over_tile(
                    arrays[VALID_TAPS[0]], row_offsets[VALID_TAPS[0]], places, scaled, t, inside, steps, nearest_carry, PATTERN, VALID_TAPS[0], BACKWARD
                )
                nearest_carry = tl.sum(tl.where(k == edge_of_tile, nearest, 0), 1)[:, None]
            reads = ()
            for j in tl.static_range(NUM):
                tap = read(
                    j,
                    arrays,
                    edges,
                    row_offsets,
                    edge_offsets,
                    places,
                    scaled,
                    num_actions,
                    t,
                    nearest,
                    row_exists,
                    inside,
                    steps,
                    PATTERN,
                    ACTION_STRIDES,
                    AT,
                    EDGE,
                    FLAG,
                    COMPUTE,
                )
                reads = reads + (converted(tap, FLAG[j], COMPUTE),)
            beside = nearest if IS_NEAREST else (t + 1 if BACKWARD else t - 1)
            outside = (beside < 0) | (beside >= steps)
            valid = inside
            if VALIDITY == VALID_GIVEN:
                valid = inside & reads[VALID_TAPS[0]]
            elif VALIDITY != ALL_VALID:
                valid = inside & not_a_reset(*taps(reads, outside, state, state, VALID_TAPS, VALID_CONSTANTS, COMPUTE))
            alpha, beta = COEFFICIENTS(*taps(reads, outside, state, state, TAPS, CONSTANTS, COMPUTE))
            alpha, beta = skip(alpha.to(COMPUTE), beta.to(COMPUTE), valid)
            if BEYOND:
                nothing, whole = tl.zeros(alpha.shape, COMPUTE), tl.full(alpha.shape, 1, COMPUTE)
                before, before_factor, scanned, scanned_factor = tl.associative_scan((nothing, whole, alpha, beta), 1, then_both, reverse=BACKWARD)
            else:
                scanned, scanned_factor = tl.associative_scan((alpha, beta), 1, then, reverse=BACKWARD)
            if PASS == "totals":
                tile_addend = tl.sum(tl.where(k == edge_of_tile, scanned, 0.0), 1)[:, None]
                tile_factor = tl.sum(tl.where(k == edge_of_tile, scanned_factor, 0.0), 1)[:, None]
                addend, factor = then(addend, factor, tile_addend, tile_factor)
            else:
                states = step(scanned, scanned_factor, state)
                beyond = states
                if BEYOND:
                    beyond = step(before, before_factor, state)
                results = OUTPUTS(*taps(reads, outside, states, beyond, OUTPUT_TAPS, OUTPUT_CONSTANTS, COMPUTE))
                if len(outs) == 1:
                    results = (results,)
                out_offset = row_offset(places, scaled, PATTERN, NUM + len(edges) + 1) + time_offset(t, places, scaled, PATTERN, NUM + len(edges) + 1)
                # the last first: where flags and rewards lie differently, Triton 3.4 to 3.6 otherwise use a converted state before it is there
                for j in tl.static_range(len(outs)):
                    result = results[len(outs) - 1 - j]
                    if VALIDITY != ALL_VALID:
                        result = nothing_where_invalid(result, valid)
                    tl.store(outs[len(outs) - 1 - j] + out_offset, result, mask=inside)
                state = tl.sum(tl.where(k == edge_of_tile, states, 0.0), 1)[:, None]
    if PASS == "totals":
        tl.store(totals + (slot + segment) * 2, addend, mask=row_exists)
        tl.store(totals + (slot + segment) * 2 + 1, factor, mask=row_exists)
    elif PASS == "nearest":
        tl.store(nearest_ends + slot + segment, nearest_carry, mask=row_exists)


@triton.jit(do_not_specialize=PLAIN)
def columns_kernel(arrays, edges, seed, outs, totals, nearest_ends, num_rows, step_units, row_sizes, strides, num_actions,
                   segments, blocks,
                   PASS: tl.constexpr, PATTERN: tl.constexpr, MULTIPLES: tl.constexpr, STEP_UNIT: tl.constexpr,
                   ACTION_STRIDES: tl.constexpr, AT: tl.constexpr, EDGE: tl.constexpr, FLAG: tl.constexpr, BEHIND: tl.constexpr, COEFFICIENTS: tl.constexpr,
                   OUTPUTS: tl.constexpr, TAPS: tl.constexpr, CONSTANTS: tl.constexpr, OUTPUT_TAPS: tl.constexpr, OUTPUT_CONSTANTS: tl.constexpr,
                   BEYOND: tl.constexpr, VALIDITY: tl.constexpr, VALID_TAPS: tl.constexpr, VALID_CONSTANTS: tl.constexpr, IS_NEAREST: tl.constexpr,
                   BACKWARD: tl.constexpr, SEEDED: tl.constexpr, SPLIT: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                   BLOCK_STEPS: tl.constexpr):  # fmt: skip
    """A row in each lane, walked step by step; BLOCK_STEPS steps are loaded before the first is used.

    What trails the scan is carried in registers instead of being loaded again. PASS is as in `rows_kernel`.
    """
    NUM: tl.constexpr = len(arrays)
    steps = step_units * STEP_UNIT
    scaled = multiplied(strides, MULTIPLES)
    WHOLE: tl.constexpr = STEP_UNIT % BLOCK_STEPS == 0
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    segment = tl.program_id(1)
    row_exists = row < num_rows
    places = coordinates(row, row_sizes)
    row_offsets = offsets_of(places, scaled, PATTERN, NUM, 0)
    edge_offsets = offsets_of(places, scaled, PATTERN, len(edges), NUM)
    out_offset = row_offset(places, scaled, PATTERN, NUM + len(edges) + 1)
    slot = row * segments
    low = segment * blocks * BLOCK_STEPS
    high = tl.minimum(steps, low + blocks * BLOCK_STEPS)
    first = high - 1 if BACKWARD else low
    far = steps if BACKWARD else -1

    state = tl.zeros([BLOCK_ROWS], COMPUTE)
    if SEEDED:
        state = tl.load(seed + row_offset(places, scaled, PATTERN, NUM + len(edges)), mask=row_exists, other=0).to(COMPUTE)
    nearest = tl.zeros([BLOCK_ROWS], tl.int32) + far
    if SPLIT and PASS != "nearest":
        for i in range(segments - 1 - segment if BACKWARD else segment):
            before = segments - 1 - i if BACKWARD else i
            if PASS == "results":
                total_addend = tl.load(totals + (slot + before) * 2, mask=row_exists, other=0)
                total_factor = tl.load(totals + (slot + before) * 2 + 1, mask=row_exists, other=1)
                state = step(total_addend, total_factor, state)
            if IS_NEAREST:
                end = tl.load(nearest_ends + slot + before, mask=row_exists, other=far)
                nearest = tl.minimum(nearest, end) if BACKWARD else tl.maximum(nearest, end)
    addend = tl.zeros([BLOCK_ROWS], COMPUTE)
    factor = tl.full([BLOCK_ROWS], 1, COMPUTE)
    outside = nearest == far
    # what each trailing read holds at the segment's first step; other reads have nothing to carry
    carried = ()
    for j in tl.static_range(NUM):
        if BEHIND[j] >= 0 and PASS != "nearest":
            tap = read(
                j, arrays, edges, row_offsets, edge_offsets, places, scaled, num_actions, first, nearest, row_exists, row_exists,
                steps, PATTERN, ACTION_STRIDES, AT, EDGE, FLAG, COMPUTE,
            )  # fmt: skip
            carried = carried + (converted(tap, FLAG[j], COMPUTE),)
        else:
            carried = carried + (row_exists,)

    for i in range((high - low + BLOCK_STEPS - 1) // BLOCK_STEPS):
        loaded = ()
        for k in tl.static_range(BLOCK_STEPS):
            t = first - i * BLOCK_STEPS - k if BACKWARD else first + i * BLOCK_STEPS + k
            inside = within(row_exists, t, low, high, WHOLE)
            for j in tl.static_range(NUM):
                if BEHIND[j] >= 0 or (PASS == "nearest" and j != VALID_TAPS[0]):
                    loaded = loaded + (inside,)
                else:
                    loaded = loaded + (read(j, arrays, edges, row_offsets, edge_offsets, places, scaled, num_actions, t, t, row_exists, inside,
                                            steps, PATTERN, ACTION_STRIDES, AT, EDGE, FLAG, COMPUTE),)  # fmt: skip
        for k in tl.static_range(BLOCK_STEPS):
            t = first - i * BLOCK_STEPS - k if BACKWARD else first + i * BLOCK_STEPS + k
            valid = within(row_exists, t, low, high, WHOLE)
            if PASS == "nearest":
                valid = valid & (loaded[k * NUM + VALID_TAPS[0]] != 0)
                nearest = tl.where(valid, t, nearest)
            else:
                inside = valid
                reads = ()
                for j in tl.static_range(NUM):
                    if BEHIND[j] >= 0:
                        reads = reads + (carried[j],)
                    else:
                        reads = reads + (converted(loaded[k * NUM + j], FLAG[j], COMPUTE),)
                if VALIDITY == VALID_GIVEN:
                    valid = inside & reads[VALID_TAPS[0]]
                elif VALIDITY != ALL_VALID:
                    valid = inside & not_a_reset(*taps(reads, outside, state, state, VALID_TAPS, VALID_CONSTANTS, COMPUTE))
                if VALIDITY != VALID_GIVEN:
                    outside = row_exists & (t == (steps - 1 if BACKWARD else 0))
                alpha, beta = COEFFICIENTS(*taps(reads, outside, state, state, TAPS, CONSTANTS, COMPUTE))
                alpha, beta = skip(alpha.to(COMPUTE), beta.to(COMPUTE), valid)
                if PASS == "totals":
                    addend, factor = then(addend, factor, alpha, beta)
                else:
                    beyond = state
                    state = step(alpha, beta, state)
                    results = OUTPUTS(*taps(reads, outside, state, beyond, OUTPUT_TAPS, OUTPUT_CONSTANTS, COMPUTE))
                    if len(outs) == 1:
                        results = (results,)
                    for j in tl.static_range(len(outs)):
                        result = results[j]
                        if VALIDITY != ALL_VALID:
                            result = nothing_where_invalid(result, valid)
                        tl.store(outs[j] + (out_offset + time_offset(t, places, scaled, PATTERN, NUM + len(edges) + 1)), result, mask=inside)
                if VALIDITY == VALID_GIVEN:
                    outside = outside & (valid == 0)
                now = ()
                for j in tl.static_range(NUM):
                    if BEHIND[j] < 0:
                        now = now + (carried[j],)
                    elif AT[j] == NEAREST:
                        now = now + (tl.where(valid, reads[BEHIND[j]], carried[j]),)
                    else:
                        now = now + (reads[BEHIND[j]],)
                carried = now
    if PASS == "totals":
        tl.store(totals + (slot + segment) * 2, addend, mask=row_exists)
        tl.store(totals + (slot + segment) * 2 + 1, factor, mask=row_exists)
    elif PASS == "nearest":
        tl.store(nearest_ends + slot + segment, nearest, mask=row_exists)
