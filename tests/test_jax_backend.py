"""The JAX backend: both ways of computing against the oracle, kernels in interpret mode and lowered for CUDA, and what jit, vmap and grad do."""

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
chex = pytest.importorskip("chex")
pytest.importorskip("rlscan.jax_pallas._scan_primitive")

from rlscan import jax_pallas  # noqa: E402
from rlscan.crosscheck.compiled import lower_for_cuda  # noqa: E402
from rlscan.crosscheck.draw import FLAG_DTYPES, FORMS, draw, variants  # noqa: E402
from rlscan.crosscheck.transformations_of_jax import steps_of  # noqa: E402
from rlscan.jax_pallas import _derivative_primitives as primitives  # noqa: E402
from rlscan.jax_pallas import launch  # noqa: E402
from rlscan.jax_pallas import vectorised as whole_arrays  # noqa: E402
from rlscan.jax_pallas.arrays import Arrays  # noqa: E402
from rlscan.spec.bound import bound, distance  # noqa: E402
from rlscan.spec.calls import check  # noqa: E402
from rlscan.spec.geometry import contiguous, geometry  # noqa: E402
from rlscan.spec.plan import BEFORE_AT_ONCE, Plan, plan  # noqa: E402
from rlscan.spec.program import program  # noqa: E402
from rlscan.spec.recurrences import RECURRENCES  # noqa: E402
from rlscan.spec.reference import NumPyArrays, loop  # noqa: E402

each_recurrence = pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
each_method = pytest.mark.parametrize("method", ["vectorised", "kernels"])

# Small enough for interpret mode, and yet more than one of everything: programs, segments, blocks, steps of a block.
TINY = {
    "batch-major": Plan("rows", rows=2, positions=1, steps=4, segments=2, blocks=2),
    "time-major": Plan("columns", rows=2, positions=2, steps=1, segments=3, blocks=2, band=2, reread=True),
}
WHOLE = {
    "batch-major": Plan("rows", rows=2, positions=2, steps=4, segments=1, blocks=2),
    "time-major": Plan("columns", rows=4, positions=2, steps=1, segments=1, blocks=6, turn=2, abreast=2, band=2),
}
TIME_AXIS = {"batch-major": -1, "time-major": 0}
ROWS, STEPS = 3, 11


def shape_of(layout):
    return (ROWS, STEPS) if layout == "batch-major" else (STEPS, ROWS)


def in_jax(arguments, dtype="float32"):
    """Arrays of JAX; bfloat16 comes in float32."""
    return {
        name: jnp.asarray(value, dtype if dtype == "bfloat16" and value.dtype == np.float32 else None) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def x64(wide):
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def checked(recurrence, arguments):
    """A call as `run` hands it on."""
    return check(recurrence, arguments, Arrays())


def agree(recurrence, arguments, results):
    """`results` of NumPy arguments lie within the bound."""
    call = check(recurrence, arguments, NumPyArrays())
    with np.errstate(all="ignore"):
        oracles = loop(call)
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(oracles)
    for name, result, oracle, limit in zip(recurrence.output_names, results, oracles, bound(call), strict=True):
        assert result.dtype == call.dtype
        assert result.shape == oracle.shape
        worst = distance(np.asarray(result), oracle, limit).max(initial=0.0)
        assert worst <= 1, f"{name} is {worst} times the bound away"


def features(recurrence, variant):
    """What a kernel has to know for this variant: where each parameter is read, and what is valid."""
    wiring = check(recurrence, draw(recurrence, variant, (2, 3)), NumPyArrays()).wiring
    taps = [wiring.reads[tap] if isinstance(tap, int) else tap for tap in (*wiring.coefficients, *wiring.outputs)]
    return frozenset(enumerate(taps)) | {wiring.validity, wiring.seed, wiring.recurrence.direction}


@functools.cache
def covering(recurrence):
    """Few variants that have every feature of all."""
    legal = {variant: features(recurrence, variant) for variant in variants(recurrence)}
    missing, chosen = set().union(*legal.values()), []
    while missing:
        best = max(legal, key=lambda variant: len(legal[variant] & missing))
        chosen.append(best)
        missing -= legal[best]
    return chosen


def each(choose):
    """Every recurrence with every variant that `choose` gives."""
    return pytest.mark.parametrize(
        ("recurrence", "variant"),
        [pytest.param(recurrence, variant, id=f"{recurrence.name}: {variant}") for recurrence in RECURRENCES.values() for variant in choose(recurrence)],
    )


def with_plan(recurrence, arguments, chosen, interpret=True):
    """What the kernels give with this plan."""
    call = checked(recurrence, arguments)
    return launch.by_kernels(call, interpret, chosen)


# A different form of the parameters, and a row in one program or in several, for every second and fifth test.
MIXED = [(recurrence, variant, layout) for recurrence in RECURRENCES.values() for variant in covering(recurrence) for layout in TIME_AXIS]
each_mixed = pytest.mark.parametrize(
    ("recurrence", "variant", "layout", "chosen"),
    [
        pytest.param(recurrence, variant, layout, chosen, id=f"{recurrence.name}: {variant}, {layout}, {chosen.segments} segments")
        for number, (recurrence, plain, layout) in enumerate(MIXED)
        for variant in [dataclasses.replace(plain, form=FORMS[number % len(FORMS)])]
        for chosen in [(TINY if number % 3 else WHOLE)[layout]]
    ],
)


@each(variants)
def test_whole_arrays_step_by_step(recurrence, variant):
    layout = list(TIME_AXIS)[len(variant.given) % 2]
    arguments = draw(recurrence, variant, shape_of(layout), TIME_AXIS[layout])
    with jax.disable_jit():
        agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), method="vectorised"))


@each(covering)
@pytest.mark.parametrize("layout", TIME_AXIS)
def test_whole_arrays(recurrence, variant, layout):
    arguments = draw(recurrence, variant, shape_of(layout), TIME_AXIS[layout])
    agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments)))


@each_mixed
def test_kernels(recurrence, variant, layout, chosen):
    arguments = draw(recurrence, variant, shape_of(layout), TIME_AXIS[layout])
    agree(recurrence, arguments, with_plan(recurrence, in_jax(arguments), chosen))


@each(covering)
def test_a_window_of_one_step_has_no_neighbours(recurrence, variant):
    """Time is an axis of size 1 then, which kernels are not told of. Episodes end there, which no other step is to hear of."""
    layout = list(TIME_AXIS)[len(variant.given) % 2]
    arguments = draw(recurrence, variant, {"batch-major": (ROWS, 1), "time-major": (1, ROWS)}[layout], TIME_AXIS[layout])
    if "terminated" in arguments:
        arguments["terminated"] = np.ones_like(arguments["terminated"])
    agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), method="kernels"))


def test_gradients_of_a_window_of_one_step():
    """Nothing comes before the only step that its factor could carry on; y_0 = a_0."""
    addend, factor = jnp.array([[3.0], [5]]), jnp.full((2, 1), 0.5)

    def total(factor):
        return jax_pallas.run(RECURRENCES["affine_scan"], {"addend": addend, "factor": factor}, method="kernels").sum()

    assert jax.grad(total)(factor).tolist() == [[0], [0]]


def richest(recurrence):
    """The variant that is given most."""
    return max(covering(recurrence), key=lambda variant: len(variant.given))


@pytest.mark.parametrize(("layout", "steps"), [("batch-major", 12), ("time-major", 10)])
def test_tiles_of_the_last_segment_may_be_empty(layout, steps):
    """All tiles that are there are whole, and yet the last one lies outside the window."""
    plan, recurrence = TINY[layout], RECURRENCES["gae"]
    assert steps % plan.block_steps == 0
    assert not plan.whole(steps)
    arguments = draw(recurrence, richest(recurrence), *(((ROWS, steps), -1) if layout == "batch-major" else ((steps, ROWS), 0)))
    agree(recurrence, arguments, with_plan(recurrence, in_jax(arguments), plan))


@each(covering)
def test_a_single_row_is_read_within_the_window_only(recurrence, variant):
    """What is read of it has no axis but time, and single numbers of it have a mask as lanes do: a GPU may have no memory before and behind."""
    arguments = draw(recurrence, variant, (1, STEPS), -1)
    plan = dataclasses.replace(TINY["batch-major"], rows=1)
    agree(recurrence, arguments, with_plan(recurrence, in_jax(arguments), plan))
    arrays = {name: value for name, value in in_jax(arguments).items() if isinstance(value, jax.Array)}
    traced = jax.make_jaxpr(lambda arrays: with_plan(recurrence, arguments | arrays, plan))(arrays)
    numbers = [step for step in steps_of(traced.jaxpr) if step.primitive.name == "get"]
    # all that has no mask has no place either
    assert [step for step in numbers if len(step.invars) > 1] == []


@each_recurrence
def test_more_segments_than_a_position_looks_at_at_once(recurrence):
    plan = Plan("columns", rows=2, positions=1, steps=1, segments=STEPS, blocks=1, band=2)
    assert plan.segments > BEFORE_AT_ONCE
    arguments = draw(recurrence, richest(recurrence), shape_of("time-major"), 0)
    agree(recurrence, arguments, with_plan(recurrence, in_jax(arguments), plan))


# Lanes take neighbouring steps where actions are more than one load.
OVER_ACTIONS = [
    (4, Plan("rows", rows=2, positions=4, steps=4, segments=2, blocks=2)),
    (6, Plan("rows", rows=2, positions=4, steps=4, segments=1, blocks=2)),
    (6, Plan("rows", rows=1, positions=2, steps=4, segments=2, blocks=2)),
    (6, Plan("columns", rows=2, positions=2, steps=2, segments=2, blocks=2, band=2)),
]


@pytest.mark.parametrize(("actions", "plan"), OVER_ACTIONS, ids=str)
def test_the_expectation_over_actions(actions, plan):
    """Taken in the first pass over rows that are split, and handed on to the last."""
    recurrence = RECURRENCES["retrace"]
    variant = min((v for v in variants(recurrence) if v.gives("next_q_values", "next_policy")), key=lambda v: len(v.given) + len(v.options))
    steps = plan.segments * plan.blocks * plan.block_steps - 3
    shape, axis = ((3, steps), -1) if plan.layout == "rows" else ((steps, 3), 0)
    arguments = draw(recurrence, variant, shape, axis, actions=actions, seed=7)
    agree(recurrence, arguments, with_plan(recurrence, in_jax(arguments), plan))


@each_method
@pytest.mark.parametrize(
    ("name", "shape", "time_axis", "features", "gamma_shape"),
    [
        ("gae", (2, 4, 3), 1, (), (1, 1, 3)),
        ("gae", (2, 4, 3), 1, (), (4, 1)),
        ("gae", (4, 2, 3), 0, (), (3,)),
        ("gae", (2, 3, 4), -1, (), (2, 1, 1)),
        ("retrace", (2, 4, 3), 1, (), (2, 1, 3)),
        ("eligibility_traces", (2, 4), 1, (3,), (2, 1)),
        ("eligibility_traces", (4, 2), 0, (3, 2), ()),
        ("eligibility_traces", (4,), 0, (), (4,)),
        ("vtrace", (1, 1), 1, (), (1,)),
        ("vtrace", (3, 1), 1, (), (1, 1)),
        ("lambda_returns", (1, 5), 0, (), (5,)),
    ],
    ids=str,
)
def test_row_axes(name, shape, time_axis, features, gamma_shape, method):
    recurrence = RECURRENCES[name]
    arguments = draw(recurrence, richest(recurrence), shape, time_axis, features=features, actions=1)
    arguments["gamma"] = np.random.default_rng(0).uniform(0.5, 1, gamma_shape).astype(np.float32)
    agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), method))


@each_method
@pytest.mark.parametrize(("shape", "time_axis"), [((3, 0), 1), ((0, 3), 1), ((0, 3), 0)], ids=str)
@each_recurrence
def test_no_elements(recurrence, shape, time_axis, method):
    arguments = draw(recurrence, richest(recurrence), shape, time_axis)
    agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), method))


@each_method
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype, method):
    recurrence = RECURRENCES["retrace"]
    arguments = draw(recurrence, richest(recurrence), (3, 5), dtype=dtype)
    with x64(dtype == "float64"):
        agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments, dtype), method))


@pytest.mark.parametrize(("method", "flag_dtype"), [("kernels", "float16"), ("kernels", "int64"), *(("vectorised", dtype) for dtype in FLAG_DTYPES)])
def test_flags(flag_dtype, method):
    recurrence = RECURRENCES["gae"]
    arguments = draw(recurrence, richest(recurrence), (3, 5), flag_dtype=flag_dtype)
    with x64(flag_dtype in ("int64", "float64")):
        agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), method))


@pytest.mark.parametrize("shape", [(5, 7), (7, 1), (1, 7), (7,), (2, 7, 1), (2, 7, 3), (2, 2048)], ids=str)
def test_the_plan_is_that_of_a_row_major_tensor(shape):
    recurrence = RECURRENCES["episodic_prefix_sum"]
    for time_axis in range(len(shape)):
        call = checked(recurrence, in_jax(draw(recurrence, variants(recurrence)[0], shape, time_axis)))
        place = geometry(call, {name: (array.shape, contiguous(array.shape)) for name, array in call.arrays.items()}, contiguous(shape))
        code = program(call.wiring)
        layout = "rows" if place.steps_are_contiguous else "columns"
        assert launch._plan(call) == plan(layout, place.num_rows, place.steps, code.reads, code.outputs, 4, code.flags, cached=False)


def lowered_kernels(recurrence, arguments, chosen=None):
    """How many kernels there are in the program for CUDA."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, jax.Array)}
    others = {name: value for name, value in arguments.items() if name not in arrays}
    text = lower_for_cuda(jax.jit(lambda arrays: with_plan(recurrence, arrays | others, chosen, interpret=False)), arrays).as_text()
    return text.count("custom_call @__gpu$xla.gpu.triton")


@pytest.mark.newest_jax
@each_mixed
def test_kernels_lower_for_cuda(recurrence, variant, layout, chosen):
    arguments = in_jax(draw(recurrence, variant, shape_of(layout), TIME_AXIS[layout]))
    segmented = chosen.segments > 1
    assert lowered_kernels(recurrence, arguments, chosen) == 1 + segmented + (segmented and "valid" in arguments and recurrence.name != "affine_scan")


@pytest.mark.newest_jax
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", TIME_AXIS)
def test_dtypes_lower_for_cuda(dtype, layout):
    recurrence = RECURRENCES["retrace"]
    with x64(dtype == "float64"):
        arguments = in_jax(draw(recurrence, richest(recurrence), shape_of(layout), TIME_AXIS[layout], dtype=dtype), dtype)
        assert lowered_kernels(recurrence, arguments, TINY[layout]) == 3


@pytest.mark.newest_jax
@pytest.mark.parametrize("flag_dtype", [*FLAG_DTYPES, "uint16", "uint32", "uint64"])
def test_flags_lower_for_cuda(flag_dtype):
    recurrence = RECURRENCES["gae"]
    with x64("64" in flag_dtype):
        assert lowered_kernels(recurrence, in_jax(draw(recurrence, richest(recurrence), (3, 5), flag_dtype=flag_dtype))) == 1


@pytest.mark.newest_jax
@pytest.mark.parametrize("layout", TIME_AXIS)
def test_real_plans_lower_for_cuda(layout):
    shape = (2, 2100) if layout == "batch-major" else (2100, 2)
    recurrence = RECURRENCES["vtrace"]
    assert lowered_kernels(recurrence, in_jax(draw(recurrence, richest(recurrence), shape, TIME_AXIS[layout]))) == 3


def gae_arguments(shape=(3, 7), time_axis=-1):
    return draw(RECURRENCES["gae"], richest(RECURRENCES["gae"]), shape, time_axis)


def split(arguments):
    """The arrays, in JAX, and the rest."""
    arrays = {name: jnp.asarray(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
    return arrays, {name: value for name, value in arguments.items() if name not in arrays}


class TestTransformations(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    def test_with_and_without_jit(self):
        recurrence, arguments = RECURRENCES["gae"], gae_arguments()
        arrays, others = split(arguments)
        agree(recurrence, arguments, self.variant(lambda arrays: jax_pallas.run(recurrence, arrays | others, "vectorised"))(arrays))
        agree(recurrence, arguments, self.variant(lambda arrays: jax_pallas.run(recurrence, arrays | others, "kernels"))(arrays))

    @chex.variants(with_jit=True, without_jit=True)
    def test_public_function(self):
        arguments = gae_arguments()
        arrays, others = split(arguments)
        result = self.variant(lambda arrays: jax_pallas.gae(**arrays, **others))(arrays)
        chex.assert_trees_all_equal_shapes_and_dtypes(result, jax_pallas.gae(**arrays, **others))
        agree(RECURRENCES["gae"], arguments, result)


@each_method
def test_vmap_adds_rows(method):
    recurrence, arguments = RECURRENCES["gae"], gae_arguments()
    arrays, others = split(arguments)
    agree(recurrence, arguments, jax.vmap(lambda arrays: jax_pallas.run(recurrence, arrays | others, method))(arrays))


@pytest.mark.parametrize("shape", [(0, 3, 5), (0, 5), (2, 0, 5), (2, 1, 0, 5)], ids=str)
@each_method
def test_vmap_over_nothing_and_several_times(shape, method):
    def sums(inputs):
        return jax_pallas.run(RECURRENCES["affine_scan"], {"addend": inputs, "factor": 1.0}, method)

    mapped = functools.reduce(lambda function, _: jax.vmap(function), shape[2:], sums)
    for inputs in (jnp.ones(shape), jnp.arange(24.0).reshape(*(2,) * (len(shape) - 1), -1)):
        found, slope = mapped(inputs), jax.grad(lambda inputs: mapped(inputs).sum())(inputs)
        assert np.array_equal(found, jnp.cumsum(inputs, -1))
        assert np.array_equal(slope, np.broadcast_to(np.arange(inputs.shape[-1], 0, -1), inputs.shape))


@each_method
def test_a_traced_gamma_is_an_array_like_others(method):
    recurrence, arguments = RECURRENCES["gae"], gae_arguments()
    arrays, others = split(arguments)
    function = jax.jit(lambda arrays, gamma, lam: jax_pallas.run(recurrence, arrays | others | {"gamma": gamma, "lam": lam}, method))
    arguments |= {"gamma": np.float32(0.75), "lam": np.asarray([0.5] * 7, np.float32)}
    agree(recurrence, {**arguments, "gamma": float(arguments["gamma"])}, function(arrays, arguments["gamma"], arguments["lam"]))


def test_in_a_loop():
    arguments = gae_arguments()
    arrays, others = split(arguments)
    _, results = jax.lax.scan(lambda carry, _: (carry, jax_pallas.gae(**arrays, **others)), 0, length=2)
    agree(RECURRENCES["gae"], arguments, jax.tree.map(lambda result: result[1], results))


@pytest.mark.parametrize(("method", "module", "traced"), [("vectorised", whole_arrays, "_loop"), ("kernels", launch, "_launches")])
def test_the_same_shapes_are_traced_once(monkeypatch, method, module, traced):
    function, calls = getattr(module, traced), []
    monkeypatch.setattr(module, traced, lambda *given, **named: calls.append(traced) or function(*given, **named))
    arguments = in_jax(gae_arguments((2, 3)))
    results = [jax_pallas.run(RECURRENCES["gae"], arguments | {"gamma": gamma}, method) for gamma in (0.5, 0.75, 1)]
    assert not np.array_equal(results[0].advantages, results[1].advantages)
    assert len(calls) == 1
    jax_pallas.run(RECURRENCES["gae"], in_jax(gae_arguments((2, 5))), method)
    assert len(calls) == 2


def test_where_a_gpu_is_at_hand_the_platform_is_chosen_when_compiling(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    recurrence, arguments = RECURRENCES["gae"], gae_arguments()
    arrays, others = split(arguments)
    function = jax.jit(lambda arrays: jax_pallas.run(recurrence, arrays | others))
    agree(recurrence, arguments, function(arrays))
    assert "triton" in lower_for_cuda(function, arrays).as_text()
    assert "triton" not in function.trace(arrays).lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("rows", [64, 65, 2100])
def test_many_rows_of_whole_arrays(rows):
    """A CPU turns batch-major arrays by some of their rows at a time."""
    recurrence, arguments = RECURRENCES["gae"], draw(RECURRENCES["gae"], variants(RECURRENCES["gae"])[-1], (rows, 9))
    agree(recurrence, arguments, jax_pallas.run(recurrence, in_jax(arguments), "vectorised"))


@pytest.mark.parametrize("rows", [3, 70])
def test_the_gradient_of_whole_arrays_is_the_adjoint(rows):
    arguments = draw(RECURRENCES["gae"], variants(RECURRENCES["gae"])[0], (rows, 7))
    arrays, others = split(arguments)
    gradient = jax.grad(lambda rewards: jax_pallas.run(RECURRENCES["gae"], arrays | others | {"rewards": rewards}, "vectorised").advantages.sum())(
        arrays["rewards"]
    )
    adjoint = {name: arguments[name] for name in ("terminated", "gamma", "lam")} | {"inputs": np.ones((rows, 7), np.float32)}
    agree(RECURRENCES["eligibility_traces"], adjoint, gradient)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"rewards": np.zeros((3, 7), np.float32)}, TypeError, "gae: rewards is a numpy.ndarray; wanted a jax.Array; jax.numpy.asarray makes one"),
        ({"values": jnp.zeros((3, 1))}, ValueError, r"gae: values has shape \(3, 1\); wanted the shape of rewards, \(3, 7\)"),
        ({"gamma": 1.5}, ValueError, r"gae: gamma is 1.5; wanted a number in \[0, 1\] or a jax.Array"),
        ({"rewards": jnp.zeros((3, 7), int)}, TypeError, "gae: rewards is int32; wanted one of float16, bfloat16, float32, float64"),
    ],
    ids=["type", "shape", "number", "dtype"],
)
def test_bad_input(change, kind, message):
    with pytest.raises(kind, match=message):
        jax_pallas.run(RECURRENCES["gae"], in_jax(gae_arguments()) | change)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_least_number_is_a_raised_flag(dtype):
    """XLA takes it for 0 on a CPU; -0 is none."""
    bits = 32 if dtype == "float32" else 16
    least = jnp.asarray(np.array([0, 1 << (bits - 1), 1, 0], f"uint{bits}")).view(dtype)
    sums = jax_pallas.run(RECURRENCES["episodic_prefix_sum"], {"inputs": jnp.ones(4), "terminated": least}, "vectorised")
    assert sums.tolist() == [1, 2, 3, 1]


def test_float64_is_refused_where_jax_would_read_it_in_32_bits():
    with jax.enable_x64(True):
        wide = jnp.ones(3, "float64")
        assert jax_pallas.affine_scan(wide, 0.5).dtype == "float64"
    with pytest.raises(TypeError, match="affine_scan: addend is float64, and jax_enable_x64 is off"):
        jax_pallas.affine_scan(wide, 0.5)


def test_kernels_refuse_sizes_that_are_not_known():
    sizes = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, t"), jnp.float32)

    def sums(inputs):
        return jax_pallas.run(RECURRENCES["affine_scan"], {"addend": inputs, "factor": 1.0}, "kernels")

    with pytest.raises(NotImplementedError, match=r"affine_scan: addend has the symbolic shape \(n, t\)"):
        jax.eval_shape(sums, sizes)


def test_several_devices():
    """Spread over them by hand, by JAX, and on one that is not the first."""
    program = """
        import numpy as np, jax, jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from rlscan import jax_pallas
        from rlscan.spec.recurrences import RECURRENCES

        mesh, rewards = Mesh(np.array(jax.devices()), ("rows",)), jnp.arange(20.0).reshape(4, 5)
        def advantages(rewards, gamma, method="vectorised"):
            given = {name: jnp.broadcast_to(x, rewards.shape) for name, x in dict(values=jnp.ones(5), terminated=jnp.zeros(5)).items()}
            arguments = given | dict(rewards=rewards, bootstrap_value=rewards[:, 0], gamma=gamma, lam=0.5)
            return jax_pallas.run(RECURRENCES["gae"], arguments, method).advantages

        spread = jax.shard_map(advantages, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
        both = [jax.value_and_grad(lambda *given: jnp.square(function(*given)).sum(), (0, 1)) for function in (spread, advantages)]
        (one, gradients), (other, wanted) = (function(rewards, jnp.float32(0.5)) for function in both)
        assert one == other and all((x == y).all() for x, y in zip(gradients, wanted)), (gradients, wanted)

        on_all = jax.device_put(rewards, NamedSharding(mesh, P("rows")))
        assert (advantages(on_all, 0.5, "kernels") == advantages(rewards, 0.5)).all()
        empty = jax.device_put(jnp.zeros((3, 0)), jax.devices()[2])
        assert jax_pallas.affine_scan(empty, 0.5).devices() == {jax.devices()[2]}
    """
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, env=environment)


@each_method
def test_second_derivatives_through_a_loop_over_windows(method):
    """JAX splits the loop for reverse mode, and keeps no rules of `jax.custom_jvp` then."""
    windows = jnp.ones((2, 4, 3))

    def returns(rewards, gamma):
        given = {"rewards": rewards, "terminated": jnp.zeros_like(rewards), "gamma": gamma}
        return jax_pallas.run(RECURRENCES["discounted_returns"], given, method).sum()

    def scanned(gamma):
        return jax.lax.scan(lambda total, rewards: (total + returns(rewards, gamma), None), 0.0, windows)[0]

    def mapped(gamma):
        return jax.lax.map(lambda rewards: returns(rewards, gamma), windows).sum()

    # eight rows of 3 + 2 γ + γ²
    for loss in (scanned, mapped, jax.checkpoint(scanned)):
        assert jax.hessian(loss)(0.5) == 16
        assert jax.grad(jax.grad(loss))(0.5) == 16
        assert jax.jacfwd(jax.jacfwd(loss))(0.5) == 16
        assert jax.vmap(jax.jit(jax.hessian(loss)))(jnp.array([0.5, 0.25])).tolist() == [16, 16]


@each_method
def test_without_primitives_of_its_own_it_differentiates_all_the_same(method, monkeypatch):
    """With a JAX in which they can't be made."""
    # numbers without roundings
    rewards, gamma = jnp.array([[1.0, 2, -1], [3, -2, 1]]), jnp.float32(0.5)

    def loss(rewards, gamma):
        given = {"rewards": rewards, "terminated": rewards > 1, "gamma": gamma}
        return jnp.square(jax_pallas.run(RECURRENCES["discounted_returns"], given, method)).sum()

    def derivatives():
        jax.clear_caches()
        of = jax.grad(loss, (0, 1)), jax.hessian(loss, 1), jax.vmap(jax.grad(loss, 1), (None, 0))
        return [function(rewards, own) for function, own in zip(of, (gamma, gamma, jnp.stack([gamma, gamma / 2])), strict=True)]

    wanted = derivatives()
    monkeypatch.setattr(primitives, "AVAILABLE", False)
    found = derivatives()
    monkeypatch.undo()
    jax.clear_caches()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_without_jit_nothing_is_traced(monkeypatch):
    """Whoever looks for a mistake sees numbers."""
    seen, by_steps = [], whole_arrays._by_steps

    def looked_at(steps, *rest, **more):
        seen.append(isinstance(steps.call.arrays["addend"], jax.core.Tracer))
        return by_steps(steps, *rest, **more)

    monkeypatch.setattr(whole_arrays, "_by_steps", looked_at)
    addend = jnp.array([[1.0, 2, -1], [3, -2, 1]])
    with jax.disable_jit():
        made = jax_pallas.run(RECURRENCES["affine_scan"], {"addend": addend, "factor": 0.5}, method="vectorised")
    assert seen == [False]
    assert made.tolist() == [[1, 2.5, 0.25], [3, -0.5, 0.75]]


def test_results_without_elements_are_arrays_of_their_own():
    rewards = jnp.zeros((3, 0))
    made = jax_pallas.gae(rewards, rewards, terminated=rewards, bootstrap_value=jnp.zeros(3))
    made.advantages.delete()
    assert not made.returns.is_deleted()
    assert not rewards.is_deleted()


def test_kernels_can_be_traced_inside_shard_map():
    """Pallas wants to be told over which devices their results vary."""
    mesh, rows = jax.sharding.AbstractMesh((2,), ("rows",)), jax.sharding.PartitionSpec("rows")

    def advantages(rewards):
        arguments = {"rewards": rewards, "values": rewards, "terminated": jnp.zeros_like(rewards), "next_values": rewards, "gamma": 0.5, "lam": 0.5}
        return with_plan(RECURRENCES["gae"], arguments, None, interpret=False)[0]

    spread = jax.shard_map(advantages, mesh=mesh, in_specs=rows, out_specs=rows)
    with jax.sharding.use_abstract_mesh(mesh):
        rewards = jax.ShapeDtypeStruct((4, 600), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, rows))
        assert jax.eval_shape(spread, rewards).shape == (4, 600)


@pytest.mark.parametrize(
    ("breakage", "warning"),
    [
        ("import jax._src.lib.triton as triton; del triton.dialect.ScanOp", "walks rows step by step"),
        ("sys.modules['jax.experimental.pallas.triton'] = None; jax.default_backend = lambda: 'gpu'", "jax.lax takes their place"),
    ],
    ids=["no scan", "no Pallas for Triton"],
)
def test_a_jax_without_what_kernels_need(breakage, warning):
    program = f"""
        import sys, warnings
        import jax, jax.numpy as jnp
        {breakage}
        from rlscan import jax_pallas
        from rlscan.spec.recurrences import RECURRENCES
        method = None if jax.default_backend() == "gpu" else "kernels"
        inputs = jnp.arange(10.0).reshape(2, 5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                arguments = dict(inputs=inputs, terminated=jnp.zeros((2, 5), bool))
                sums = jax.jit(lambda arguments: jax_pallas.run(RECURRENCES["episodic_prefix_sum"], arguments, method))(arguments)
                assert (sums == jnp.cumsum(inputs, 1)).all(), sums
        caught = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
        assert len(caught) == 1 and {warning!r} in caught[0], caught
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
