"""What the compiled kernels take, beside what is recorded and beside the rules. Needs no GPU."""

import dataclasses
import importlib.util

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from rlscan.crosscheck import footprint
from rlscan.crosscheck.compiled import Build, Resources
from rlscan.crosscheck.footprint import Access, Footprint
from rlscan.spec.adjoint import STATES, incoming, of_rows, of_steps
from rlscan.spec.arguments import REQUIRED
from rlscan.spec.recurrences import RECURRENCES

STORED = footprint.stored()
UPDATE = "`python -m rlscan.crosscheck kernels` writes what is so now"
BUILDS = {str(build): build for build in footprint.BUILDS}
each_build = pytest.mark.parametrize("name", BUILDS)


@pytest.fixture(scope="module")
def now() -> dict:
    return footprint.as_json(footprint.measure_all(build for build in footprint.BUILDS if installed(build.backend)))


def only(data, name):
    """The part of the data that is about one build."""
    if name not in data["kernels"] and not installed(BUILDS[name].backend):
        pytest.skip("JAX is not installed")
    return {"versions": data["versions"], **{what: {name: data[what].get(name, {})} for what in ("kernels", "shortfalls")}}


def installed(framework):
    return importlib.util.find_spec(framework) is not None


@each_build
def test_kernels_take_what_is_recorded(now, name):
    if not footprint.comparable(STORED, now, name):
        pytest.skip(f"registers and instructions differ with each version, and were recorded with {STORED['versions']}")
    # another JAX is no change of what Triton makes
    changed = footprint.differences({**only(STORED, name), "versions": {}}, {**only(now, name), "versions": {}})
    assert not changed, "\n".join((UPDATE, *changed))


@each_build
def test_no_rule_is_broken_but_known_shortfalls(now, name):
    worse = footprint.worse(only(STORED, name), only(now, name))
    assert not worse, "\n".join(worse)


@each_build
def test_every_array_is_seen(now, name):
    """Loads and stores are told apart by array, and no address is of an unknown one: else a rule would hold of nothing."""
    kernels = only(now, name)["kernels"][name]
    for kernel in kernels.values():
        moved = [*kernel["loads"].items(), *kernel["stores"].items()]
        assert moved
        for array, access in moved:
            assert array.isidentifier(), array
            assert not access.startswith("0 per element"), (array, access)
    build, recurrence = BUILDS[name], RECURRENCES[BUILDS[name].op]
    steps = {argument.name for argument in recurrence.arguments if argument.shape == "steps" and (argument.default is REQUIRED or argument.name in build.given)}
    if build.wanted:
        came_in = {incoming(output) for output in recurrence.output_names}
        loads, stores = set(kernels["results"]["loads"]), set(kernels["results"]["stores"])
        # an output where a load pins a layout
        assert came_in <= loads <= {*came_in, *recurrence.argument_names, STATES, "totals", *stores}
        assert stores == {{"bootstrap_value": of_rows}.get(name, of_steps)(name) for name in build.wanted}
        return
    assert set(kernels["results"]["loads"]) >= steps
    assert set(kernels["results"]["stores"]) == set(recurrence.output_names)


def test_all_is_recorded():
    assert set(STORED["kernels"]) == set(BUILDS)
    assert {(build.op, build.layout) for build in footprint.BUILDS} >= {(op, layout) for op in RECURRENCES for layout in ("rows", "columns")}


# The rules themselves. Two arrays of 4 bytes an element in and out, and flags.
GOOD = Footprint(
    name="results",
    tile=(1, 128),
    stretch=128,
    warps=1,
    resources=Resources(registers=40, spills=0, shared=0, instructions=400),
    barriers=0,
    loads={"x": Access({16: 1}, 1.0), "flags": Access({4: 1}, 1.0), "row": Access({4: 1}, 1 / 128)},
    stores={"y": Access({16: 1}, 1.0)},
)
SIZES = {"x": 4, "y": 4, "flags": 1}
ROWS, COLUMNS, UNALIGNED = Build("gae", shape=(32, 128)), Build("gae", layout="columns", shape=(32, 128)), Build("gae", shape=(32, 65))


def broken(build=ROWS, *others, **changes):
    return footprint.broken_rules(build, [*others, dataclasses.replace(GOOD, **changes)], SIZES)


def with_resources(**changes):
    return dataclasses.replace(GOOD.resources, **changes)


def test_what_is_good_breaks_no_rule():
    assert broken() == broken(COLUMNS) == broken(UNALIGNED) == {}


def test_each_rule_can_be_broken():
    assert broken(resources=with_resources(spills=8)) == {"results: bytes spilled": 8}
    assert broken(early=("totals",)) == {"results: totals before the pass before has ended": 1}
    # 128 steps of 5 bytes, in the 32 programs that there can be: 65536 / (32 * 32)
    assert broken(resources=with_resources(registers=65)) == {"results: registers, of 64": 65}
    assert broken(resources=with_resources(registers=64)) == {}
    # a number of 8 bytes for each lane of the one warp
    assert broken(COLUMNS, resources=with_resources(shared=257)) == {"results: bytes of shared memory, of 256": 257}
    assert broken(resources=with_resources(shared=256)) == {}
    # a neighbour from memory for each step, and from the tile beside this one
    twice, edge = Access({16: 1, 4: 4}, 2.0), Access({16: 1, 4: 1}, 129 / 128)
    assert broken(UNALIGNED, loads={"x": twice}) == {"loads of x per element": 2.0}
    assert broken(loads={"x": twice}) == {"loads of x per element": 2.0, "results: narrow loads and stores": 4}
    assert broken(loads={"x": edge}) == {}
    # and from the position beside this one
    by_position = Access({4: 9}, 9 / 8)
    assert broken(COLUMNS, loads={"x": by_position}, stretch=8) == {}
    assert broken(COLUMNS, loads={"x": by_position}, stretch=16) == broken(COLUMNS, loads={"x": by_position}) == {"loads of x per element": 9 / 8}
    # two passes
    assert broken(ROWS, dataclasses.replace(GOOD, stores={})) == {"loads of x per element": 2.0, "loads of flags per element": 2.0}
    assert broken(stores={"y": Access({4: 4}, 1.0)}) == {"results: narrow loads and stores": 4}
    assert broken(UNALIGNED, stores={"y": Access({4: 4}, 1.0)}) == {}
    assert broken(loads={"flags": Access({1: 4}, 1.0)}) == {"results: narrow loads and stores": 4}


def test_registers_leave_room_for_what_must_be_under_way():
    # 29,000 / 2,000 is 15 programs of a warp: 65536 / (15 * 32) = 136.5, in steps of 8
    assert footprint.most_registers(2000, 1) == 136
    # as many programs as there can be: 32, or of 4 warps 16
    assert footprint.most_registers(100, 1) == 64
    assert footprint.most_registers(100, 4) == 32
    # a thread has 255
    assert footprint.most_registers(29000, 1) == 255


def test_a_shortfall_may_only_shrink():
    def data(version, **broken):
        return {"versions": {"triton": version}, "kernels": {}, "shortfalls": {"build": broken} if broken else {}}

    assert footprint.worse(data("1"), data("1", loads=2.0)) == ["build / loads: 2.0, and at most 0 is known"]
    assert footprint.worse(data("1", loads=2.0), data("1", loads=3.0)) == ["build / loads: 3.0, and at most 2.0 is known"]
    assert footprint.worse(data("1", loads=2.0), data("1", loads=1.5)) == []
    assert footprint.worse(data("1", loads=2.0), data("2", loads=3.0)) == []
    assert footprint.worse(data("1", loads=2.0), data("2", stores=2.0)) == ["build / stores: 2.0, and at most 0 is known"]
    # what has shrunk is to be recorded, so that it stays so
    assert footprint.differences(data("1", loads=2.0), data("1", loads=1.5)) == ["shortfalls / build / loads: 2.0 -> 1.5"]
    assert footprint.differences(data("1", loads=2.0), data("1")) == ["shortfalls / build / loads: 2.0 -> nothing"]


def test_what_happens_before_the_wait_is_read_from_ptx():
    lines = ["ld.param.b64 %rd1, [kernel_param_0];", "ld.param.b64 %rd2, [kernel_param_1];", "ld.param.b64 %rd3, [kernel_param_2];"]
    lines += ["ld.global.b32 %r1, [ %rd1 + 0 ];", "ld.global.b32 %r2, [ %rd2 + 0 ];", "st.global.b32 [ %rd3 + 0 ], %r1;"]

    def early(waits_at):
        ptx = "\n".join([*lines[:waits_at], "griddepcontrol.wait; // dummy %r3", *lines[waits_at:]])
        return footprint._before_the_wait(ptx, ("rewards", "totals", "returns"))

    assert [early(waits_at) for waits_at in (3, 4, 5, 6)] == [(), (), ("totals",), ("returns", "totals")]
    assert footprint._before_the_wait("\n".join(lines), ("rewards", "totals", "returns")) == ()


def test_widths_are_read_from_ptx():
    ptx = """
        ld.param.b64 %rd1, [kernel_param_0];
        ld.param.b64 %rd2, [kernel_param_2];
        ld.param.b32 %r9, [kernel_param_1];
        mov.b64 %rd5, %rd1;
    $L__BB0_1:
        add.s64 %rd3, %rd5, 16;
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd3 + 0 ];
        @!%p1 ld.global.L1::evict_last.b8 %rs1, [%rd3+512];
        cvt.u64.u32 %rd8, %r1;
        add.s64 %rd4, %rd2, %rd8;
        st.global.v2.b32 [ %rd4 + 0 ], { %r1, %r2 };
        st.shared.b32 [ %r9 + 0 ], %r1;
        mov.b64 %rd5, %rd3;
    """
    assert footprint._widths(ptx, ("x", None, "y")) == {"load": {"x": {16: 1, 1: 1}}, "store": {"y": {8: 1}}}


def test_elements_are_read_from_the_loop():
    ttgir = """
      tt.func public @kernel(%x: !tt.ptr<f32> loc(#loc), %n: i32 loc(#loc), %y: !tt.ptr<f32> loc(#loc)) attributes {noinline = false} {
        %p = tt.splat %x : !tt.ptr<f32> -> tensor<2x4x!tt.ptr<f32>, #blocked> loc(#loc)
        %edge = tt.load %x : !tt.ptr<f32> loc(#loc)
        %z = scf.for %i = %c0 to %n step %c1 iter_args(%s = %edge) -> (f32)  : i32 {
          %v = tt.splat %y : !tt.ptr<f32> -> tensor<2x4x!tt.ptr<f32>, #blocked> loc(#loc)
          scf.yield %s : f32 loc(#loc)
        } loc(#loc)
        %a:2 = scf.for %i = %c0 to %n step %c1 iter_args(%s = %edge, %q = %p) -> (f32, tensor<2x4x!tt.ptr<f32>, #blocked>)  : i32 {
          %v = tt.load %q, %mask, %other : tensor<2x4x!tt.ptr<f32>, #blocked> loc(#loc)
          %w = scf.if %c -> (tensor<2x4xf32, #blocked>) {
            %u = tt.load %q : tensor<2x4x!tt.ptr<f32>, #blocked> loc(#loc)
            scf.yield %u : tensor<2x4xf32, #blocked> loc(#loc)
          } else {
            scf.yield %v : tensor<2x4xf32, #blocked> loc(#loc)
          } loc(#loc)
          %m = "tt.reduce"(%v) <{axis = 1 : i32}> ({
          ^bb0(%l: f32 loc(unknown), %r: f32 loc(unknown)):
            tt.reduce.return %l : f32 loc(#loc)
          }) : (tensor<2x4xf32, #blocked>) -> tensor<2xf32, #blocked> loc(#loc)
          tt.store %y, %s : !tt.ptr<f32> loc(#loc)
          scf.yield %s, %q : f32, tensor<2x4x!tt.ptr<f32>, #blocked> loc(#loc)
        } loc(#loc)
        tt.return loc(#loc)
      } loc(#loc)
    """
    found = footprint._elements(ttgir, ("x", None, "y"))
    assert {way: dict(tally) for way, tally in found.items()} == {"load": {"x": 16}, "store": {"y": 1}}
