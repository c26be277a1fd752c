"""What is particular to tensors: strides, dtypes and devices of inputs and outputs, rows split over programs, and calls that are made again."""

import dataclasses
import fractions
import itertools
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from rlscan import torch_triton  # noqa: E402
from rlscan.crosscheck.backends import tensor  # noqa: E402
from rlscan.crosscheck.compare import wrong  # noqa: E402
from rlscan.crosscheck.draw import DTYPES, draw, variants  # noqa: E402
from rlscan.crosscheck.scenarios import Problem, covering  # noqa: E402
from rlscan.spec.calls import check, complete  # noqa: E402
from rlscan.spec.plan import BEFORE_AT_ONCE, Plan  # noqa: E402
from rlscan.spec.recurrences import RECURRENCES  # noqa: E402
from rlscan.torch_triton import _private, launch, repeated, vectorised  # noqa: E402
from rlscan.torch_triton.arrays import Flag, Tensors  # noqa: E402
from rlscan.torch_triton.launch import Prepared  # noqa: E402

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
each_method = pytest.mark.parametrize("method", ["vectorised", "kernels"])


def tensors(arguments, device: Any = "cpu", dtype="float32") -> dict[str, Any]:
    return {name: tensor(x, device, dtype) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


def run(recurrence, arguments, method):
    results = torch_triton.run(recurrence, arguments, method=method)
    return results if isinstance(results, tuple) else (results,)


def as_numpy(results):
    return [result.cpu().numpy() for result in results]


def smallest(recurrence, *names, form: Any = "number"):
    fitting = [variant for variant in variants(recurrence, (form,)) if variant.gives(*names)]
    return min(fitting, key=lambda variant: len(variant.given) + len(variant.options))


def prepared_call(recurrence, given, chosen=None):
    call = check(recurrence, given, Tensors())
    return call, Prepared(call, chosen)


# Small tiles, so that small problems have several of everything. 13, 16 and 12 steps: an end inside a tile, at its edge, and before the last tiles.
PLANS = {
    "rows": Plan("rows", rows=1, positions=2, steps=4, segments=2, blocks=1),
    "rows of several tiles": Plan("rows", rows=2, positions=1, steps=4, segments=2, blocks=2),
    "columns": Plan("columns", rows=2, positions=2, steps=2, segments=2, blocks=2, band=2, reread=True),
    "columns of one tile each": Plan("columns", rows=4, positions=4, steps=1, segments=4, blocks=1, band=4, reread=True),
    "rows of two tiles a turn": Plan("rows", rows=2, positions=1, steps=4, segments=2, blocks=2, turn=2),
    "columns of two tiles a turn": Plan("columns", rows=2, positions=2, steps=1, segments=2, blocks=4, turn=2, abreast=2, band=2, reread=True),
    "columns in bands": Plan("columns", rows=4, positions=2, steps=2, segments=2, blocks=2, band=2),
    # more than a position looks at at once
    "columns of many segments": Plan("columns", rows=4, positions=1, steps=1, segments=BEFORE_AT_ONCE + 8, blocks=1, band=4),
}
SPLITS = [
    (recurrence, variant, name, steps)
    for recurrence in RECURRENCES.values()
    for (variant, (name, steps)) in zip(covering(variants(recurrence, ("per step",))), itertools.cycle(itertools.product(PLANS, (13, 16, 12))), strict=False)
]


@pytest.mark.parametrize(("recurrence", "variant", "name", "steps"), SPLITS, ids=[f"{r.name}-{n}-{s}-{v}" for r, v, n, s in SPLITS])
def test_rows_split_over_programs(recurrence, variant, name, steps, device):
    """Few long rows: segments are summed up first, and then begin with what the others hand over."""
    plan, layout = PLANS[name], PLANS[name].layout
    # The last program may have nothing to do, but none may be missing.
    assert plan.segments * plan.blocks * plan.block_steps >= steps
    shape, axis = ((3, steps), -1) if layout == "rows" else ((steps, 3), 0)
    problem = Problem("split", str(variant), recurrence, draw(recurrence, variant, shape, axis, seed=4))
    given = tensors(problem.arguments, device)
    call, prepared = prepared_call(recurrence, given, plan)
    passes = [launch.constants["PASS"] for launch in prepared.launches]
    assert passes[-2:] == ["totals", "results"]
    assert ("nearest" in passes) == ("nearest_ends" in prepared.scratch)
    results = as_numpy(prepared({**call.arrays, **call.numbers}))
    assert wrong(problem, results) is None
    again = as_numpy(prepared({**call.arrays, **call.numbers}))
    assert all(np.array_equal(one, two, equal_nan=True) for one, two in zip(results, again, strict=True))


@pytest.mark.parametrize(
    ("recurrence", "variant"), [pytest.param(r, v, id=f"{r.name}: {v}") for r in RECURRENCES.values() for v in covering(variants(r, ("per step",)))]
)
def test_a_window_of_one_step_has_no_neighbours(recurrence, variant, device):
    """Episodes end there, which no other step is to hear of."""
    shape, axis = (((3, 1), -1), ((1, 3), 0))[len(variant.given) % 2]
    arguments = draw(recurrence, variant, shape, axis)
    if "terminated" in arguments:
        arguments["terminated"] = np.ones_like(arguments["terminated"])
    call, prepared = prepared_call(recurrence, tensors(arguments, device))
    assert wrong(Problem("one step", str(variant), recurrence, arguments), as_numpy(prepared({**call.arrays, **call.numbers}))) is None


@each_recurrence
@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan.layout == "columns"])
def test_what_trails_the_scan_is_read_again_or_handed_on_and_the_bits_are_the_same(recurrence, name, device):
    variant = variants(recurrence, ("per step",))[-1]
    call = check(recurrence, tensors(draw(recurrence, variant, (13, 3), 0, seed=4), device), Tensors())
    made = [Prepared(call, dataclasses.replace(PLANS[name], reread=reread))({**call.arrays, **call.numbers}) for reread in (True, False)]
    for one, other in zip(*map(as_numpy, made), strict=True):
        np.testing.assert_array_equal(one, other)


# Lanes take neighbouring steps where actions are more than one load.
OVER_ACTIONS = [
    (actions, dataclasses.replace(plan, segments=segments))
    for actions in (1, 4, 6)
    for plan in (
        Plan("rows", rows=2, positions=4, steps=4, segments=1, blocks=2),
        Plan("rows", rows=1, positions=2, steps=8, segments=1, blocks=2),
        Plan("columns", rows=2, positions=2, steps=2, segments=1, blocks=2, band=2),
    )
    for segments in (1, 2)
]


@pytest.mark.parametrize(("actions", "plan"), OVER_ACTIONS, ids=str)
def test_the_expectation_over_actions(actions, plan, device):
    """Taken in the first pass over rows that are split, and handed on to the last."""
    recurrence = RECURRENCES["retrace"]
    variant = smallest(recurrence, "next_q_values", "next_policy")
    steps = plan.segments * plan.blocks * plan.block_steps - 3
    shape, axis = ((3, steps), -1) if plan.layout == "rows" else ((steps, 3), 0)
    problem = Problem("actions", str(variant), recurrence, draw(recurrence, variant, shape, axis, actions=actions, seed=7))
    call, prepared = prepared_call(recurrence, tensors(problem.arguments, device), plan)
    assert ("expectations" in prepared.scratch) == (plan.segments > 1)
    assert wrong(problem, as_numpy(prepared({**call.arrays, **call.numbers}))) is None


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_segment_without_a_valid_step_hands_on_what_it_gets(layout, device):
    """The nearest valid step may be several segments away."""
    recurrence = RECURRENCES["gae"]
    variant = smallest(recurrence, "valid", "bootstrap_value")
    shape, axis = ((3, 16), -1) if layout == "rows" else ((16, 3), 0)
    arguments = draw(recurrence, variant, shape, axis, seed=5)
    np.moveaxis(arguments["valid"], axis, 0)[...] = (np.arange(16) < 2)[:, None] | (np.arange(16) == 14)[:, None]
    problem = Problem("split", "", recurrence, arguments)
    call, prepared = prepared_call(recurrence, tensors(arguments, device), dataclasses.replace(PLANS[layout], positions=1, steps=4, segments=4, blocks=1))
    assert wrong(problem, as_numpy(prepared({**call.arrays, **call.numbers}))) is None


GUARD = 4096


def guarded(x):
    """The tensor between others, and all of it flat: NaN and set flags before and behind."""
    whole = torch.full((x.numel() + 2 * GUARD,), float("nan") if x.is_floating_point() else True, dtype=x.dtype, device=x.device)
    part = whole[GUARD : GUARD + x.numel()].view(x.shape)
    part.copy_(x)
    return part, whole


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("shape", [(3, 1280), (2, 1792), (5, 70)], ids=str)
@each_recurrence
def test_kernels_stay_within_their_arrays(recurrence, shape, layout, device):
    """By the plans that are used: those split rows into unequal segments, and tiles reach over ends of rows."""
    variant = variants(recurrence)[-1]
    shape, axis = (shape, -1) if layout == "rows" else (shape[::-1], 0)
    problem = Problem("guarded", str(variant), recurrence, draw(recurrence, variant, shape, axis, seed=8, actions=2))
    given = {name: guarded(x)[0] if isinstance(x, torch.Tensor) else x for name, x in tensors(problem.arguments, device).items()}
    call, prepared = prepared_call(recurrence, given)
    # tiles of 256 steps do not fill segments of rows of 1280 steps, and tiles of 128 those of 1792
    assert not any(one.constants["WHOLE"] for one in prepared.launches) or 1280 in shape
    outs, wholes = zip(*(guarded(torch.full(shape, float("nan"), device=device)) for _ in recurrence.output_names), strict=True)
    assert wrong(problem, as_numpy(prepared({**call.arrays, **call.numbers}, outs))) is None
    for whole in wholes:
        assert bool(whole[:GUARD].isnan().all())
        assert bool(whole[-GUARD:].isnan().all())


@each_recurrence
def test_kernels_get_the_caller_s_tensors_themselves(recurrence, device):
    """No cast, no copy, no transposition: neither of half precision, nor of flags of other types, nor of strided or repeated arrays."""
    variant = variants(recurrence, ("per row",))[-1]
    for dtype, flag_dtype, axis in (("bfloat16", "int64", -1), ("float16", "uint8", 0), ("float32", "float32", 1)):
        arguments = draw(recurrence, variant, (3, 4, 5), axis, dtype=dtype, flag_dtype=flag_dtype)
        given = tensors(arguments, device, dtype)
        first = recurrence.frame.name
        given[first] = torch.stack([given[first], given[first]], -1)[..., 0]
        for name, x in given.items():
            if isinstance(x, torch.Tensor) and name != first and x.ndim:
                given[name] = x[:1].expand(x.shape)
        call, prepared = prepared_call(recurrence, given)
        outs = tuple(torch.empty_like(given[first], dtype=torch.float32) for _ in recurrence.output_names)
        passed = prepared.passed({**call.arrays, **call.numbers}, outs)
        of_caller = {id(x) for x in given.values() if isinstance(x, torch.Tensor)}
        of_kernel = [x for x in (*passed["arrays"], *passed["edges"]) if isinstance(x, torch.Tensor)]
        assert of_kernel
        assert {id(x) for x in of_kernel} <= of_caller
        # A kernel without a seed or without totals is given an output in its place.
        assert id(passed["seed"]) in of_caller | {id(outs[0])}
        assert passed["totals"] is outs[0] or passed["totals"].numel() <= 2 * call.shape[call.time_axis] * 12


@each_method
@each_recurrence
def test_strides_are_read_as_they_are(recurrence, method, device):
    """Views of every sort, and all of them at once."""
    variant = variants(recurrence, ("per step",))[-1]
    base = draw(recurrence, variant, (4, 3, 6), 1, seed=6, actions=2)
    views = {
        "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
        "from the second on": lambda x: np.concatenate([x[:1], x], 0)[1:],
        "transposed": lambda x: np.asfortranarray(x) if x.ndim else x,
        "repeated": lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim else x,
    }
    names = [name for name, x in base.items() if isinstance(x, np.ndarray) and x.ndim]
    mixed = {name: list(views.values())[number % len(views)] for number, name in enumerate(names)}
    for how in [*(dict.fromkeys(names, view) for view in views.values()), mixed]:
        arguments = base | {name: view(base[name]) for name, view in how.items()}
        problem = Problem("strides", "", recurrence, arguments)
        given = tensors(arguments, device)
        assert all(given[name].stride() == tuple(s // arguments[name].itemsize for s in arguments[name].strides) for name in names)
        assert wrong(problem, as_numpy(run(recurrence, given, method))) is None


@each_method
def test_the_sign_of_a_lazily_negated_tensor_is_read(method, device):
    """The imaginary part of a conjugate is negated when it is read, not where it is stored."""
    numbers = torch.complex(torch.zeros(2, 4), torch.arange(8.0).reshape(2, 4)).to(device).conj().imag
    assert numbers.is_neg()
    (sums,) = run(RECURRENCES["affine_scan"], {"addend": numbers, "factor": 1.0, "reverse": False, "time_axis": -1}, method)
    np.testing.assert_array_equal(sums.cpu(), -np.cumsum(np.arange(8.0).reshape(2, 4), 1))


@each_method
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_shapes_of_outputs(method, dtype, device):
    """Half precision is computed and returned in float32; the memory order of outputs is that of the frame."""
    for recurrence in RECURRENCES.values():
        variant = variants(recurrence)[0]
        for shape, axis in (((2, 3), -1), ((3, 2), 0), ((2, 3, 2), 1)):
            given = tensors(draw(recurrence, variant, shape, axis, dtype=dtype), device, dtype)
            results = run(recurrence, given, method)
            assert [result.dtype for result in results] == [torch.float64 if dtype == "float64" else torch.float32] * len(recurrence.output_names)
            assert all(result.shape == shape and result.device == given[recurrence.frame.name].device for result in results)
            assert all(result.is_contiguous() for result in results)
            assert len({result.data_ptr() for result in results} | {x.data_ptr() for x in given.values() if isinstance(x, torch.Tensor)}) == len(results) + sum(
                isinstance(x, torch.Tensor) for x in given.values()
            )


def test_outputs_of_kernels_lie_in_memory_like_the_frame(device):
    """So time-major data that is passed with its axes swapped is neither read nor written against its order."""
    recurrence = RECURRENCES["gae"]
    given = tensors(draw(recurrence, smallest(recurrence, "next_values"), (3, 5)), device)
    swapped = {name: x.t().contiguous().t() if isinstance(x, torch.Tensor) and x.ndim == 2 else x for name, x in given.items()}
    for plain, other in zip(run(recurrence, given, "kernels"), run(recurrence, swapped, "kernels"), strict=True):
        assert plain.stride() == (5, 1)
        assert other.stride() == (1, 3)
        torch.testing.assert_close(plain, other)
    repeated_frame = given | {"rewards": given["rewards"][:1].expand(3, 5)}
    assert all(result.is_contiguous() for result in run(recurrence, repeated_frame, "kernels"))


@each_method
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 5), (3, 5)])
def test_parameters_of_every_shape_that_broadcasts(method, shape, device):
    random = np.random.default_rng(1)
    recurrence = RECURRENCES["gae"]
    arguments = draw(recurrence, smallest(recurrence, "truncated", "final_values"), (3, 5))
    arguments |= {"gamma": random.uniform(0.5, 1, shape).astype(np.float32), "lam": random.uniform(0.5, 1, shape).astype(np.float32)}
    problem = Problem("parameters", str(shape), recurrence, arguments)
    assert wrong(problem, as_numpy(run(recurrence, tensors(arguments, device), method))) is None


@each_method
def test_scalar_tensors_are_numbers(method, device):
    """A 0-d tensor gives what its number gives, bit for bit, and may be of another dtype."""
    recurrence = RECURRENCES["vtrace"]
    given = tensors(draw(recurrence, smallest(recurrence, "next_values"), (2, 5)), device) | {"gamma": 0.75, "lam": 0.5}
    plain = run(recurrence, given, method)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        scalars = {name: torch.full((), given[name], dtype=dtype, device=device) for name in ("gamma", "lam")}
        for one, other in zip(plain, run(recurrence, given | scalars, method), strict=True):
            assert torch.equal(one, other)


@each_method
@pytest.mark.parametrize("op", ["eligibility_traces", "episodic_prefix_sum"])
@pytest.mark.parametrize(("shape", "axis", "features"), [((3, 5), -1, (2,)), ((5, 3), 0, (2, 3)), ((5,), 0, (4,)), ((2, 5, 3), -2, (2,)), ((3, 5), -1, (0,))])
def test_feature_axes(method, op, shape, axis, features, device):
    """Flags have none; every feature is a row of its own."""
    recurrence = RECURRENCES[op]
    arguments = draw(recurrence, variants(recurrence, ("per step",))[-1], shape, axis, features=features, seed=7)
    problem = Problem("features", "", recurrence, arguments)
    results = as_numpy(run(recurrence, tensors(arguments, device), method))
    assert results[0].shape == shape + features
    assert wrong(problem, results) is None


@each_method
@each_recurrence
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (0, 5), (0, 0), (2, 0, 3), (3, 1)])
def test_sizes_at_the_edge(recurrence, method, shape, device):
    for variant in (variants(recurrence)[0], variants(recurrence)[-1]):
        for axis in (0, -1):
            problem = Problem("sizes", "", recurrence, draw(recurrence, variant, shape, axis, seed=8))
            assert wrong(problem, as_numpy(run(recurrence, tensors(problem.arguments, device), method))) is None


@each_method
@each_recurrence
def test_two_runs_are_the_same_bit_for_bit(recurrence, method, device):
    given = tensors(draw(recurrence, variants(recurrence)[-1], (4, 40)), device)
    one, two = (run(recurrence, given, method) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@each_recurrence
def test_a_graph_is_made_where_a_gradient_is_wanted_and_nowhere_else(recurrence, device):
    given = tensors(draw(recurrence, variants(recurrence)[-1], (2, 4)), device)
    plain = run(recurrence, given, None)
    for name in [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.dtype == torch.float32]:
        wanting = given | {name: given[name].clone().requires_grad_()}
        results = run(recurrence, wanting, None)
        assert any(result.requires_grad for result in results)
        for one, other in zip(results, plain, strict=True):
            torch.testing.assert_close(one.detach(), other, equal_nan=True)
        with torch.no_grad():
            assert not any(result.requires_grad for result in run(recurrence, wanting, None))
        with torch.inference_mode():
            run(recurrence, wanting, None)


def test_the_default_is_kernels_on_a_gpu_and_whole_arrays_elsewhere(device, monkeypatch):
    def chosen(name):
        def method(*args):
            raise LookupError(name)

        return method

    monkeypatch.setattr(torch_triton, "by_kernels", chosen("kernels"))
    monkeypatch.setattr(torch_triton, "by_whole_arrays", chosen("whole arrays"))
    given = tensors(draw(RECURRENCES["gae"], smallest(RECURRENCES["gae"], "next_values"), (2, 7)), device)
    with pytest.raises(LookupError, match="kernels" if device == "cuda" else "whole arrays"):
        torch_triton.gae(**given)


ALIKE = {"by PyTorch": _private.alike, "by facts": _private._alike_by_facts}


@pytest.fixture(params=ALIKE)
def found(request, monkeypatch, device):
    """Whether a call is found among those that were kept: one, with these changes."""
    monkeypatch.setattr(repeated, "alike", ALIKE[request.param])
    monkeypatch.setattr(repeated, "_kept", {})

    def found(name, arguments, changes):
        recurrence = RECURRENCES[name]
        repeated._kept.clear()
        repeated.keep(recurrence, complete(recurrence, arguments), "prepared")
        return repeated.find(recurrence, complete(recurrence, arguments | changes))

    return found


def scanned(device):
    return {"addend": torch.zeros(4, 8, device=device), "factor": torch.zeros(4, 8, device=device), "time_axis": 1}


def test_a_call_is_found_again_with_other_contents_and_numbers(found, device):
    given = scanned(device)
    other = torch.ones(4, 8, device=device)
    assert found("affine_scan", given, {"addend": other}) == ("prepared", {"addend": other.data_ptr(), "factor": given["factor"].data_ptr()})
    assert found("affine_scan", given | {"factor": 0.5}, {"factor": 0.75})[1]["factor"] == 0.75
    assert found("affine_scan", given | {"factor": -0.5}, {"factor": 1.5})[1]["factor"] == 1.5
    traced = draw(RECURRENCES["vtrace"], smallest(RECURRENCES["vtrace"], "next_values"), (4, 8)) | {"rho_bar": None}
    assert found("vtrace", tensors(traced, device), {})[1]["rho_bar"] == float("inf")


OTHERS: dict[str, Any] = {
    "dtype": lambda x: {"addend": x.double()},
    "strides": lambda x: {"addend": torch.zeros(8, 4, device=x.device).t()},
    "alignment": lambda x: {"addend": torch.zeros(4 * 8 + 1, device=x.device)[1:].reshape(4, 8)},
    "shape": lambda x: {"addend": torch.zeros(4, 9, device=x.device)},
    "gradient": lambda x: {"addend": x.clone().requires_grad_()},
    "sparse": lambda x: {"addend": x.to_sparse()},
    "negated": lambda x: {"addend": torch.complex(x, x).conj().imag},
    "another device": lambda x: {"addend": x.to("meta")},
    "another class": lambda x: {"addend": torch.nn.Parameter(x)},
    "number": lambda x: {"factor": 0.5},
    "fewer axes": lambda x: {"factor": x[0]},
    "given": lambda x: {"initial": torch.zeros(4, device=x.device)},
    "option": lambda x: {"reverse": True},
    "axis": lambda x: {"time_axis": 0},
    "a truth value for 1": lambda x: {"time_axis": True},
    "0 for a truth value": lambda x: {"reverse": 0},
    "no option": lambda x: {"reverse": []},
    "nested": lambda x: {"addend": torch.nested.nested_tensor([x[0], x[1]])},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_call_is_not_taken_for_one_that_was_kept(change, found, device):
    """Whatever a preparation depends on tells calls apart."""
    given = scanned(device)
    assert found("affine_scan", given, change(given["addend"])) is None


def test_numbers_are_looked_at_each_time(found, device):
    """Also for what kernels are compiled for: factors between 0 and 1."""
    given = scanned(device)
    for number, others in ((0.5, (1.5, -0.5, float("nan"), float("inf"), True, "0.5", None)), (1.5, (0.5, 1, float("nan")))):
        for other in others:
            assert found("affine_scan", given | {"factor": number}, {"factor": other}) is None
    summed = {"rewards": given["addend"], "terminated": given["factor"], "gamma": 0.5}
    assert found("discounted_returns", summed, {"gamma": 1.5}) is None


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), fractions.Fraction(1, 2), float("inf"), float("nan")], ids=str)
def test_numbers_that_would_not_be_looked_at_again_are_not_kept(number, found, device):
    assert found("affine_scan", scanned(device) | {"factor": number}, {}) is None


def test_what_is_no_plain_tensor_is_not_kept(found, device):
    given = scanned(device)
    with torch.no_grad():
        assert found("affine_scan", given | {"addend": torch.nn.Parameter(given["addend"])}, {}) is None
    with torch.autograd.forward_ad.dual_level():
        assert found("affine_scan", given, {}) is None
    assert not torch.func.vmap(lambda x: torch.tensor(found("affine_scan", given, {"addend": x}) is not None))(given["addend"].expand(2, 4, 8)).any()


def test_what_wants_a_gradient_is_found_only_where_none_is_recorded(found, device):
    plain, recurrence = scanned(device), RECURRENCES["affine_scan"]
    wanting = plain | {"addend": plain["addend"].clone().requires_grad_()}
    with torch.no_grad():
        assert found("affine_scan", wanting, {}) is not None
    assert repeated.find(recurrence, complete(recurrence, wanting)) is None
    assert found("affine_scan", plain, {"addend": wanting["addend"]}) is None


def test_no_more_calls_of_a_kind_are_kept_than_a_training_loop_makes(monkeypatch, device):
    monkeypatch.setattr(repeated, "_kept", {})
    recurrence = RECURRENCES["affine_scan"]
    other = complete(recurrence, {"addend": torch.zeros(3, device=device), "factor": torch.zeros(3, device=device)})
    repeated.keep(recurrence, other, "other")
    for number in range(3 * repeated.MOST):
        shape = (number // 2 + 5, 4)[:: 1 if number % 2 else -1]
        arguments = complete(recurrence, {"addend": torch.zeros(shape, device=device), "factor": 0.5})
        repeated.keep(recurrence, arguments, number)
        found = repeated.find(recurrence, arguments)
        assert found is not None
        assert found[0] == number
    assert [sum(map(len, by_shape.values())) <= repeated.MOST for by_shape in repeated._kept.values()] == [True, True]
    # those of another kind stay
    assert repeated.find(recurrence, other) is not None


def test_calls_of_other_shapes_are_not_looked_at(monkeypatch, device):
    """Of a loop over many of them, each is found as soon as the only one would be."""
    monkeypatch.setattr(repeated, "_kept", {})
    recurrence = RECURRENCES["affine_scan"]
    every = [complete(recurrence, {"addend": torch.zeros(3, steps, device=device), "factor": 0.5}) for steps in range(1, 33)]
    for number, arguments in enumerate(every):
        repeated.keep(recurrence, arguments, number)
    looked_at = []
    given = repeated.Kept.given
    monkeypatch.setattr(repeated.Kept, "given", lambda self, arguments: looked_at.append(self.prepared) or given(self, arguments))
    found = [repeated.find(recurrence, arguments) for arguments in every]
    assert [one and one[0] for one in found] == looked_at == list(range(32))


SIZES = {
    "rows": (-1, [(rows, steps) for rows in (4096, 8192, 16384) for steps in (1024, 1536, 2048)]),
    "rows of odd sizes": (-1, [(rows, steps) for rows in (4097, 4099, 9001) for steps in (1001, 1003, 2007)]),
    "columns": (0, [(steps, rows) for rows in (24576, 32768, 49152) for steps in (1024, 1536, 2048)]),
    "columns of odd sizes": (0, [(steps, rows) for rows in (24577, 32769, 40001) for steps in (1001, 1003, 2007)]),
}


def gae_of(shape, axis, device) -> dict[str, Any]:
    rows = shape[1:] if axis == 0 else shape[:-1]
    frame = {name: torch.zeros(shape, device=device) for name in ("rewards", "values", "terminated")}
    return dict(complete(RECURRENCES["gae"], frame | {"bootstrap_value": torch.zeros(rows, device=device), "time_axis": axis}))


@pytest.mark.parametrize(("axis", "shapes"), SIZES.values(), ids=SIZES)
def test_one_kernel_for_all_sizes_of_a_plan(axis, shapes):
    """Sizes and strides are numbers that Triton doesn't specialise for, and the constants are the same."""
    from rlscan.torch_triton import kernels

    launches = [launch for shape in shapes for launch in prepared_call(RECURRENCES["gae"], gae_of(shape, axis, "meta"))[1].launches]
    assert {str(launch.constants) for launch in launches} == {str(launches[0].constants)}
    assert launches[0].sizes.keys() == set(kernels.PLAIN)


@pytest.mark.gpu
@pytest.mark.parametrize(("axis", "shapes"), SIZES.values(), ids=SIZES)
def test_nothing_is_compiled_for_another_size_of_a_plan(axis, shapes, device):
    from rlscan.torch_triton import kernels

    def compiled():
        return sum(len(kept[0]) for kept in kernels.scan_kernel.device_caches.values())

    torch_triton.gae(**gae_of(shapes[0], axis, device))
    before = compiled()
    assert before
    for shape in shapes:
        torch_triton.gae(**gae_of(shape, axis, device))
    assert compiled() == before


class Started:
    """In place of a launch, and of the kernel that comes of it."""

    def __init__(self, registers, spills, started):
        self.n_regs, self.n_spills, self.all = registers, spills, started

    def started(self, passed):
        self.all.append(self)
        return self


@pytest.mark.parametrize(
    ("one", "two", "tried", "chosen"),
    [
        ((128, 0), (200, 0), False, 0),
        ((134, 0), (228, 0), True, 1),
        ((134, 0), (255, 8), True, 0),  # what is spilled is read from memory again
        ((129, 0), (258, 0), True, 0),  # no fewer in all
    ],
)
def test_where_a_thread_has_too_many_registers_two_rows_a_thread_are_tried(one, two, tried, chosen, monkeypatch):
    started: list[Started] = []
    both = [Started(registers, spills, started) for registers, spills in (one, two)]
    launches, other = ([cast("launch.Launch", each)] for each in both)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    _, (kernel,) = launch.roomier(launches, [both[0]], lambda: other, {})
    assert started == (both[1:] if tried else [])
    assert kernel is both[chosen]


def test_where_registers_are_not_known_nothing_else_is_tried():
    first = cast("list[launch.Launch]", [Started(255, 0, [])])
    assert launch.roomier(first, [object()], lambda: pytest.fail("tried"), {})[0] is first


@pytest.mark.gpu
def test_rows_abreast_give_the_same_bits(device):
    made = gae_of((64, 4096), 0, device)
    made |= {name: torch.randn_like(made[name]) for name in ("rewards", "values", "bootstrap_value")}
    call, narrow = prepared_call(RECURRENCES["gae"], made, Plan("columns", 32, 4, 8, 1, 2, band=32))
    wide = Prepared(call, dataclasses.replace(Plan("columns", 32, 4, 8, 1, 2, band=32), abreast=2))
    given = {**call.arrays, **call.numbers}
    for one, other in zip(narrow(given), wide(given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", ["vectorised", "kernels", None])
@each_recurrence
def test_results_are_written_where_they_are_wanted(recurrence, method, device):
    """Twice, with other contents, so that a prepared call does too; nothing of what was there before is left."""
    variant = variants(recurrence, ("per row",))[-1]
    for shape, axis in (((3, 13), -1), ((13, 3), 0), ((0, 4), -1)):
        outs: Any = ()
        for seed in range(3):
            given = tensors(draw(recurrence, variant, shape, axis, seed=seed), device)
            fresh = torch_triton.run(recurrence, given, method)
            fresh = fresh if isinstance(fresh, tuple) else (fresh,)
            if not outs:
                outs = tuple(torch.empty_like(x).fill_(float("nan")) for x in fresh)
            results = torch_triton.run(recurrence, given, method, out=outs[0] if len(outs) == 1 else outs)
            results = results if isinstance(results, tuple) else (results,)
            assert all(one is other for one, other in zip(results, outs, strict=True))
            assert all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in zip(fresh, outs, strict=True))


def test_results_are_written_in_the_public_functions(device):
    given = gae_of((4, 8), -1, device)
    first = torch_triton.gae(**given)
    given["rewards"] = torch.ones(4, 8, device=device)
    second = torch_triton.gae(**given, out=first)
    assert second.advantages is first.advantages
    assert torch.equal(second.advantages, torch_triton.gae(**given).advantages)


REFUSED: dict[str, Any] = {
    "no tensor": (lambda a, b, given: [[0.0], [0.0]], TypeError, "out is a list; wanted a tuple of tensors, advantages, returns"),
    "one tensor": (lambda a, b, given: a, TypeError, "out is a Tensor; wanted a tuple"),
    "three tensors": (lambda a, b, given: (a, b, b.clone()), TypeError, "out is a tuple; wanted a tuple"),
    "dtype": (lambda a, b, given: (a, b.double()), TypeError, "out has for returns a tensor of dtype torch.float64; wanted torch.float32"),
    "shape": (lambda a, b, given: (a[:3], b), ValueError, "out has for advantages a tensor of shape"),
    "strides": (lambda a, b, given: (a, torch.empty(8, 4, device=b.device).t()), ValueError, "out has for returns a tensor of stride"),
    "broadcast": (lambda a, b, given: (a, b[:1].expand(4, 8)), ValueError, "out has for returns a tensor of stride"),
    "device": (lambda a, b, given: (a.to("meta"), b), ValueError, "out has for advantages a tensor of device meta"),
    "sparse": (lambda a, b, given: (a.to_sparse(), b), TypeError, "out has for advantages a tensor that is in the layout torch.sparse_coo; wanted a dense"),
    "nested": (lambda a, b, given: (torch.nested.nested_tensor([*a]), b), TypeError, "out has for advantages a tensor that is nested; wanted a dense"),
    "masked": (lambda a, b, given: (torch.masked.masked_tensor(a, a > 0), b), TypeError, "out is a tuple; wanted a tuple of tensors"),
    "the same twice": (lambda a, b, given: (a, a), ValueError, "out shares the memory of advantages"),
    "an argument": (lambda a, b, given: (a, given["values"]), ValueError, "out shares the memory of returns"),
    "a part of an argument": (lambda a, b, given: (given["rewards"].reshape(-1)[:].view(4, 8), b), ValueError, "out shares the memory of advantages"),
    "a gradient": (lambda a, b, given: (a.requires_grad_(), b), ValueError, "out was given where a gradient is wanted"),
}


@pytest.mark.filterwarnings("ignore:.*prototype.*:UserWarning")
@pytest.mark.parametrize(("change", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_places_that_results_can_t_be_written_to(change, error, words, device):
    given = gae_of((4, 8), -1, device)
    for _ in range(2):
        with pytest.raises(error, match=words):
            torch_triton.gae(**given, out=change(*torch_triton.gae(**given), given))
    first = torch_triton.gae(**given)
    given["values"] = given["values"].clone().requires_grad_()
    with pytest.raises(ValueError, match="gae: out was given where a gradient is wanted"):
        torch_triton.gae(**given, out=first)
    with torch.no_grad():
        torch_triton.gae(**given, out=first)
        with torch.autograd.forward_ad.dual_level():
            dual = given | {"rewards": torch.autograd.forward_ad.make_dual(given["rewards"], given["rewards"])}
            with pytest.raises(ValueError, match=r"gae: out was given where a gradient is wanted; pass none$"):
                torch_triton.gae(**dual, out=first)
        with pytest.raises(ValueError, match=r"gae: out was given inside of torch\.func, whose results are new; pass none"):
            torch.func.vmap(lambda gamma: torch_triton.gae(**given | {"gamma": gamma}, out=first).advantages)(torch.ones(2, device=device))
    with torch.inference_mode():
        made = torch_triton.gae(**given)
        torch_triton.gae(**given, out=made)
    with torch.no_grad(), pytest.raises(ValueError, match=r"gae: out has for advantages a tensor of torch\.inference_mode"):
        torch_triton.gae(**given, out=made)


@pytest.mark.parametrize("method", ["vectorised", "kernels"])
def test_pytorch_knows_that_a_buffer_was_written_to(method, device):
    """What saved it for its derivative would otherwise use the new contents."""
    given = {"addend": torch.ones(2, 4, device=device), "factor": 0.5}
    buffer = torch_triton.run(RECURRENCES["affine_scan"], given, method)
    loss = (torch.ones(2, 4, device=device, requires_grad=True) * buffer).sum()
    torch_triton.run(RECURRENCES["affine_scan"], given, method, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("shape", "axis"), [((5, 1), -1), ((1, 5), -1), ((5, 1), 0), ((1, 1), 0)])
def test_strides_of_axes_with_one_element_do_not_matter(shape, axis, device):
    given = gae_of(shape, axis, device)
    first = torch_triton.gae(**given)
    assert torch_triton.gae(**given, out=first).returns is first.returns


@pytest.mark.gpu
def test_prepared_calls_are_made_again_with_other_contents(device):
    """The second and third call of a kind go past the checks and past Triton's dispatcher, with other tensors and numbers."""
    for recurrence in RECURRENCES.values():
        for variant in covering(variants(recurrence)):
            for seed in range(3):
                problem = Problem("again", str(variant), recurrence, draw(recurrence, variant, (6, 300), seed=seed))
                results = getattr(torch_triton, recurrence.name)(**tensors(problem.arguments, device))
                assert wrong(problem, as_numpy(results if isinstance(results, tuple) else (results,))) is None


@pytest.mark.gpu
def test_wrong_numbers_are_refused_in_calls_that_are_made_again(device):
    given = tensors(draw(RECURRENCES["gae"], smallest(RECURRENCES["gae"], "next_values"), (6, 300)), device)
    given["gamma"] = 0.5
    for _ in range(3):
        torch_triton.gae(**given)
    wrong_numbers: list[Any] = [1.5, float("nan"), True, "0.5", None]
    for gamma in wrong_numbers:
        with pytest.raises((TypeError, ValueError), match="gae: gamma"):
            torch_triton.gae(**given | {"gamma": gamma})


@pytest.mark.gpu
def test_kernels_run_on_the_current_stream_and_wait_for_nothing(device):
    """No call copies anything to the host, not even a scalar tensor."""
    recurrence = RECURRENCES["vtrace"]
    given = tensors(draw(recurrence, smallest(recurrence, "next_values", form="0-d"), (64, 300)), device)
    run(recurrence, given, "kernels")
    previous = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch_triton.vtrace(**given)
            torch_triton.vtrace(**given)
    finally:
        torch.cuda.set_sync_debug_mode(previous)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1])
@each_recurrence
def test_passes_that_overlap_wait_for_what_the_one_before_hands_on(recurrence, axis, device):
    """With other inputs each time, so that what the time before left would show; as a CUDA graph too, on the stream that captures it."""
    variant, shape = variants(recurrence)[-1], ((16384, 8), (8, 16384))[axis]
    draws = [tensors(draw(recurrence, variant, shape, axis, seed=seed), device) for seed in range(8)]
    call = check(recurrence, draws[0], Tensors())
    apart, overlapping = (Prepared(call, overlap=overlap) for overlap in (False, True))
    assert len(overlapping.launches) > 1

    def given(prepared, arguments):
        arrays = check(recurrence, arguments, Tensors()).arrays
        return {**({name: array.data_ptr() for name, array in arrays.items()} if prepared.runners else arrays), **call.numbers}

    wanted = [as_numpy(apart(given(apart, arguments))) for arguments in draws]
    for _ in range(5):
        for arguments, outs in zip(draws, wanted, strict=True):
            for one, other in zip(as_numpy(overlapping(given(overlapping, arguments))), outs, strict=True):
                np.testing.assert_array_equal(one, other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = overlapping(given(overlapping, draws[0]))
    for arguments, outs in zip(draws, wanted, strict=True):
        for name, array in call.arrays.items():
            array.copy_(check(recurrence, arguments, Tensors()).arrays[name])
        graph.replay()
        for one, other in zip(as_numpy(captured), outs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("library", ["torch", "numpy"])
@each_recurrence
def test_both_libraries_of_whole_arrays(recurrence, library, monkeypatch):
    """Large arrays go to PyTorch, all others on a CPU to NumPy, in which long arrays are selected from by their bits."""
    monkeypatch.setattr(vectorised, "MANY", 0 if library == "torch" else 1 << 20)
    monkeypatch.setattr(Flag, "MANY", 0)
    for number, variant in enumerate(covering(variants(recurrence, ("per row", "per step", "number")))):
        for dtype in ("float32", "float64"):
            shape, axis = [((3, 41), -1), ((41, 3), 0), ((2, 41, 2), 1), ((41,), 0)][number % 4]
            problem = Problem("libraries", str(variant), recurrence, draw(recurrence, variant, shape, axis, dtype=dtype, seed=number))
            assert wrong(problem, as_numpy(run(recurrence, tensors(problem.arguments, dtype=dtype), "vectorised"))) is None


@pytest.mark.parametrize("shape", [(1100, 20), (3, 200), (8, 2048)])
@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_that_are_not_finite_are_scanned_with_care(shape, axis, monkeypatch):
    """The quick forms of `step` and `then` know no cuts; what they give is kept only where all of it is finite."""
    recurrence = RECURRENCES["affine_scan"]
    shape = shape[:: 1 if axis else -1]
    random = np.random.default_rng(3)
    arguments = {"addend": random.standard_normal(shape).astype(np.float32), "factor": random.uniform(-1, 1, shape).astype(np.float32)}
    arguments |= {"initial": None, "reverse": True, "time_axis": axis}
    problem = Problem("finite", "", recurrence, arguments)
    careful = vectorised.coefficients.step
    with monkeypatch.context() as patch:
        patch.setattr(vectorised.coefficients, "step", None)
        results = as_numpy(run(recurrence, tensors(arguments), "vectorised"))
    assert vectorised.coefficients.step is careful
    assert wrong(problem, results) is None
    addend, factor = (np.moveaxis(arguments[name], axis, 0) for name in ("addend", "factor"))
    addend[13, 1], addend[7, 0], factor[5, :2] = np.nan, -np.inf, 0.0
    problem = Problem("finite", "", recurrence, arguments)
    assert wrong(problem, as_numpy(run(recurrence, tensors(arguments), "vectorised"))) is None


def test_importing_the_backend_does_not_import_triton():
    """Only kernels need it: on a machine without, PyTorch does all."""
    code = "import sys, torch; had = 'triton' in sys.modules; import rlscan.torch_triton; assert had or 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
