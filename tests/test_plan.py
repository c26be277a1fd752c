"""How problems are cut into programs."""

import pytest

from rlscan.spec.plan import plan

LAYOUTS = ["rows", "columns"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", [1, 3, 64, 100, 1000, 4096, 16384])
def test_every_step_is_in_a_tile_and_whole_tiles_hold_nothing_else(layout, num_rows):
    """Kernels compare no step with the window's end where all tiles are whole: then there must not be one that lies outside."""
    for steps in [*range(1, 300), *range(320, 20000, 64)]:
        for reads, outputs in ((2, 1), (3, 2), (4, 3), (5, 2), (8, 2)):
            chosen = plan(layout, num_rows, steps, reads, outputs)
            held = chosen.segments * chosen.blocks * chosen.block_steps
            assert held >= steps, chosen
            assert chosen.whole(steps) == (held == steps), chosen
            # a segment of nothing would be a launch for nothing
            assert (chosen.segments - 1) * chosen.blocks * chosen.block_steps < steps, chosen


def test_segments_that_do_not_divide_a_row_leave_empty_tiles():
    """1280 steps are five tiles: two segments of three."""
    chosen = plan("rows", 1, 1280, 3)
    assert (chosen.block_steps, chosen.segments, chosen.blocks) == (256, 2, 3)
    assert not chosen.whole(1280)
