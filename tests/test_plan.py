"""How problems are cut into programs."""

import dataclasses

import pytest

from rlscan.spec.plan import MEASURED, MOST_STEPS, PROGRAMS, Plan, plan

LAYOUTS = ["rows", "columns"]
ROWS = [1, 3, 64, 100, 1000, 4096, 16384]
# reads, outputs, bytes of a number
MOVED = ((2, 1, 4), (2, 3, 4), (3, 2, 4), (3, 3, 4), (4, 2, 4), (4, 3, 4), (5, 2, 4), (5, 2, 8), (8, 4, 4))
STEPS = [*range(1, 300), *range(320, 20000, 64)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", ROWS)
def test_every_step_is_in_a_tile_and_whole_tiles_hold_nothing_else(layout, num_rows):
    """Kernels compare no step with the window's end where all tiles are whole: then there must not be one that lies outside."""
    for steps in STEPS:
        for moved in MOVED:
            chosen = plan(layout, num_rows, steps, *moved)
            held = chosen.segments * chosen.blocks * chosen.block_steps
            assert held >= steps, chosen
            assert chosen.whole(steps) == (held == steps), chosen
            # a segment of nothing would be a launch for nothing
            assert (chosen.segments - 1) * chosen.blocks * chosen.block_steps < steps, chosen
            assert chosen.rows * chosen.positions >= 32 * chosen.num_warps * chosen.abreast or chosen.num_warps == 1, chosen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", ROWS)
def test_with_little_cache_the_order_of_additions_is_the_same(layout, num_rows):
    """There, as in JAX, rows are dealt to programs and lanes otherwise; what a row is cut into decides the order, and is the same."""
    for steps in STEPS[::7]:
        for moved in MOVED:
            for flags in (0, 1):
                one, other = (plan(layout, num_rows, steps, *moved, flags, cached=cached) for cached in (True, False))
                cut = ("layout", "positions", "steps", "segments", "blocks")
                assert [getattr(one, name) for name in cut] == [getattr(other, name) for name in cut]
                if layout == "rows":
                    assert one == other
                elif one.segments > 1:
                    assert dataclasses.replace(one, turn=1) == other
                else:
                    assert other.rows >= min(32, num_rows)


@pytest.mark.parametrize("moved", MOVED)
def test_where_rows_are_many_and_cache_is_little_nothing_crosses_warps_or_flags_fill_lines(moved):
    """A warp has 32 lanes, and each so many rows abreast."""
    reads, _, itemsize = moved
    for steps in STEPS[::7]:
        for flags in (0, 1):
            chosen = plan("columns", 16384, steps, *moved, flags, cached=False)
            if itemsize == 4 and reads > 2 and chosen.blocks <= 2:
                assert chosen == plan("columns", 16384, steps, *moved, flags), chosen
            elif itemsize == 4 and reads > 2:
                assert chosen.band * chosen.positions <= 32 * chosen.abreast, chosen
            else:
                assert chosen.band == chosen.rows == (64 if itemsize == 4 and flags else 32), chosen


@pytest.mark.parametrize("moved", MOVED)
def test_rows_side_by_side_are_split_where_they_are_few_and_there_are_programs_for_all_multiprocessors_if_not(moved):
    for num_rows in (8, 64, 500, 2000):
        for flags in (0, 1):
            chosen = plan("columns", num_rows, 512 * 1024, *moved, flags)
            assert chosen.segments > 1
            assert chosen.segments * -(-num_rows // chosen.rows) * chosen.rows * chosen.positions <= 32 * MEASURED.split
    for num_rows in (2048, 3000, 4096, 8192, 16384):
        chosen = plan("columns", num_rows, 512 * 1024, *moved, 1)
        assert chosen.segments == 1
        assert -(-num_rows // chosen.rows) >= PROGRAMS


@pytest.mark.parametrize("num_rows", ROWS)
def test_positions_of_several_warps_hand_nothing_on_that_they_can_read_again(num_rows):
    for steps in STEPS[::7]:
        for moved in MOVED:
            for flags in (0, 1):
                for cached in (True, False):
                    chosen = plan("columns", num_rows, steps, *moved, flags, cached=cached)
                    within_warps = chosen.band * chosen.positions <= 32 * chosen.abreast
                    assert chosen.reread or within_warps, chosen
                    assert not (chosen.reread and chosen.positions == 1), chosen
                    assert not plan("rows", num_rows, steps, *moved, flags, cached=cached).reread


@pytest.mark.parametrize("narrow", [(1, 1), (2048, 2048), (2048, 8192)])
def test_a_program_has_no_more_lanes_than_a_thread_each_could_have(narrow):
    """With any tuning that `tune` tries."""
    tuning = dataclasses.replace(MEASURED, narrow=narrow)
    for num_rows in (1, 64, 2048, 4096, 8192, 16384):
        for steps in STEPS[::7]:
            for moved in MOVED:
                for cached in (True, False):
                    chosen = plan("columns", num_rows, steps, *moved, 1, cached=cached, tuning=tuning)
                    assert chosen.rows * chosen.positions <= 1024, chosen


def test_segments_that_do_not_divide_a_row_leave_empty_tiles():
    """1280 steps are five tiles: two segments of three."""
    chosen = plan("rows", 1, 1280, 3, 2, 4)
    assert (chosen.block_steps, chosen.segments, chosen.blocks) == (256, 2, 3)
    assert not chosen.whole(1280)


@pytest.mark.parametrize(("steps", "blocks", "turn"), [(128, 1, 1), (256, 2, 2), (288, 3, 1), (512, 4, 2), (1152, 10, 2)])
def test_an_empty_tile_completes_a_turn_only_where_it_is_one_of_many(steps, blocks, turn):
    chosen = plan("columns", 4096, steps, 3, 1, 4)
    assert (chosen.block_steps, chosen.blocks, chosen.turn) == (128, blocks, turn)


def test_tiles_are_whole_turns():
    with pytest.raises(ValueError, match="3 tiles are no whole turns of 2"):
        Plan("rows", rows=2, positions=2, steps=4, segments=1, blocks=3, turn=2)


def test_bands_are_whole():
    with pytest.raises(ValueError, match="4 rows are no whole bands of 3"):
        Plan("columns", rows=4, positions=2, steps=4, segments=1, blocks=3, band=3)
    with pytest.raises(ValueError, match="have a band of 1, and not 2"):
        Plan("rows", rows=4, positions=2, steps=4, segments=1, blocks=3, band=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 33, 2048, 8192, 100000])
def test_kernels_can_count_all_steps(layout, num_rows):
    """In 32 bits, up to the end of the last segment's last tile, and the next one, which is asked for there."""
    for moved in MOVED:
        for cached in (True, False):
            for steps in (MOST_STEPS, MOST_STEPS - 1, MOST_STEPS - 12345):
                chosen = plan(layout, num_rows, steps, *moved, 1, cached=cached)
                assert (chosen.segments * chosen.blocks + 1) * chosen.block_steps < 2**31, chosen
    with pytest.raises(ValueError, match="rows have 2147483648 steps; wanted at most"):
        plan(layout, num_rows, 2**31, 3, 2, 4)
