"""What is particular to tensors: strides, dtypes and devices of inputs and outputs, rows split over programs, and calls that are made again."""

import dataclasses
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rlscan import torch_triton  # noqa: E402
from rlscan.crosscheck.backends import tensor  # noqa: E402
from rlscan.crosscheck.compare import wrong  # noqa: E402
from rlscan.crosscheck.draw import DTYPES, draw, variants  # noqa: E402
from rlscan.crosscheck.scenarios import Problem, covering  # noqa: E402
from rlscan.spec.calls import check  # noqa: E402
from rlscan.spec.plan import Plan  # noqa: E402
from rlscan.spec.recurrences import RECURRENCES  # noqa: E402
from rlscan.torch_triton import repeated, vectorised  # noqa: E402
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


# Small tiles, so that small problems have several of everything. 13 and 16 steps: an end inside a tile and at its edge.
PLANS = {
    "rows": Plan("rows", rows=1, positions=2, steps=4, segments=2, blocks=1),
    "rows of several tiles": Plan("rows", rows=2, positions=1, steps=4, segments=2, blocks=2),
    "columns": Plan("columns", rows=2, positions=2, steps=2, segments=2, blocks=2),
    "columns of one tile each": Plan("columns", rows=4, positions=4, steps=1, segments=4, blocks=1),
}
SPLITS = [
    (recurrence, variant, name, steps)
    for recurrence in RECURRENCES.values()
    for (variant, (name, steps)) in zip(covering(variants(recurrence, ("per step",))), itertools.cycle(itertools.product(PLANS, (13, 16))), strict=False)
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
    assert ("nearest" in passes) == (prepared.nearest_ends is not None)
    results = as_numpy(prepared(call.arrays, call.numbers))
    assert wrong(problem, results) is None
    again = as_numpy(prepared(call.arrays, call.numbers))
    assert all(np.array_equal(one, two, equal_nan=True) for one, two in zip(results, again, strict=True))


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
    assert wrong(problem, as_numpy(prepared(call.arrays, call.numbers))) is None


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
        passed = prepared.tensors(call.arrays, call.numbers, outs)
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


def test_calls_that_are_prepared_apart(device):
    """What a preparation depends on tells calls apart: all but the contents of tensors and the values of numbers."""
    recurrence = RECURRENCES["affine_scan"]
    addend, factor = torch.zeros(4, 8, device=device), torch.zeros(4, 8, device=device)

    def key(**changes):
        return repeated.key_of(recurrence, {"addend": addend, "factor": factor, "initial": None, "reverse": False, "time_axis": 1} | changes)

    assert key() == key()
    assert key() == key(addend=torch.ones(4, 8, device=device))
    assert key(factor=0.5) == key(factor=0.75)
    others = [
        {"addend": addend.double()},
        {"addend": torch.zeros(8, 4, device=device).t()},
        {"addend": torch.zeros(4 * 8 + 1, device=device)[1:].reshape(4, 8)},
        {"addend": torch.zeros(4, 9, device=device)},
        {"addend": addend.clone().requires_grad_()},
        {"factor": 0.5},
        {"factor": factor[0]},
        {"initial": torch.zeros(4, device=device)},
        {"reverse": True},
        {"time_axis": 0},
    ]
    keys = [key(), *(key(**other) for other in others)]
    assert len(set(keys)) == len(keys)
    # Numbers are looked at each time.
    assert repeated.key_of(RECURRENCES["gae"], {"gamma": 1.5}) is None
    assert repeated.key_of(RECURRENCES["gae"], {"gamma": "0.5", "rewards": [1.0]}) is None


def test_a_prepared_call_does_not_let_another_type_pass(device):
    """True equals 1, but is refused as an axis; 0 equals False, but is refused as a choice."""
    addend = torch.zeros(4, 8, device=device)

    def key(**changes):
        return repeated.key_of(RECURRENCES["affine_scan"], {"addend": addend, "factor": 0.5, "initial": None, "reverse": False, "time_axis": 1} | changes)

    for wrong_type in ({"time_axis": True}, {"reverse": 0}):
        assert key(**wrong_type) is None or key(**wrong_type) != key()


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


@pytest.mark.parametrize("library", ["torch", "numpy"])
@each_recurrence
def test_both_libraries_of_whole_arrays(recurrence, library, monkeypatch):
    """Large arrays and gradients go to PyTorch, all others on a CPU to NumPy, in which long arrays are selected from by their bits."""
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


def test_whole_arrays_of_pytorch_have_a_gradient():
    """It is refused by `run`, and not wrong below."""
    recurrence = RECURRENCES["gae"]
    arguments = draw(recurrence, smallest(recurrence, "next_values"), (3, 7))
    given = tensors(arguments)
    given["rewards"].requires_grad_()
    advantages, _ = vectorised.by_whole_arrays(check(recurrence, given, Tensors()))
    advantages.sum().backward()
    adjoint = {name: arguments[name] for name in ("terminated", "truncated", "gamma", "lam") if arguments.get(name) is not None}
    adjoint |= {"inputs": np.ones((3, 7), np.float32), "time_axis": arguments["time_axis"]}
    expected = run(RECURRENCES["eligibility_traces"], tensors(adjoint), "vectorised")[0]
    torch.testing.assert_close(given["rewards"].grad, expected)


def test_importing_the_backend_does_not_import_triton():
    """Only kernels need it: on a machine without, PyTorch does all."""
    code = "import sys, torch; had = 'triton' in sys.modules; import rlscan.torch_triton; assert had or 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
