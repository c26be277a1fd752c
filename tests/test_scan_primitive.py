"""The scan primitive against a sequential loop in NumPy, and what it becomes in Triton's IR."""

import re
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from rlscan.crosscheck.compiled import lower_for_cuda

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
pl = pytest.importorskip("jax.experimental.pallas")
plgpu = pytest.importorskip("jax.experimental.pallas.triton")
scan_primitive = pytest.importorskip("rlscan.jax_pallas._scan_primitive")

pytestmark = pytest.mark.newest_jax


def pair(first_addend, first_factor, second_addend, second_factor):
    carried = jnp.where(second_factor == 0, 0.0, second_factor * first_addend)
    return second_addend + carried, second_factor * first_factor


def pair_and_exclusive(first_addend, first_factor, first_addend_before, first_factor_before, *second):
    second_addend, second_factor, second_addend_before, second_factor_before = second
    return (
        *pair(first_addend, first_factor, second_addend, second_factor),
        *pair(first_addend, first_factor, second_addend_before, second_factor_before),
    )


def least(first, second):
    return (jnp.minimum(first, second),)


def greatest_magnitude(first, second):
    return (jnp.where(jnp.abs(first) > jnp.abs(second), first, second),)


# Neither commutative nor symmetric in any other way: only the documented order of arguments and of elements gives the right answer.
def last_positive(first, second):
    return (jnp.where(second > 0, second, first),)


def operands_of(combine, shape, dtype):
    rng = np.random.default_rng(0)
    if combine in (least, last_positive):
        return (rng.integers(-50, 50, shape, dtype=np.int32),)
    if combine is greatest_magnitude:
        return (rng.standard_normal(shape).astype(dtype),)
    addend = rng.standard_normal(shape).astype(dtype)
    factor = np.where(rng.random(shape) < 0.1, 0, rng.uniform(0.5, 1, shape)).astype(dtype)
    if combine is pair:
        return addend, factor
    # An element's exclusive pair composes what came before it, so of a single element it is the identity.
    return addend, factor, np.zeros(shape, dtype), np.ones(shape, dtype)


def sequential(combine, operands, axis, reverse):
    """The scan as a loop: the state so far is `first`, the element met next is `second`."""
    moved = [np.moveaxis(operand, axis, 0) for operand in operands]
    outputs = [np.empty_like(array) for array in moved]
    steps = range(moved[0].shape[0])
    state = None
    for step in reversed(steps) if reverse else steps:
        element = [array[step] for array in moved]
        state = element if state is None else [np.asarray(value) for value in combine(*state, *element)]
        for output, value in zip(outputs, state, strict=True):
            output[step] = value
    return [np.moveaxis(output, 0, axis) for output in outputs]


def in_pallas(combine, *, axis, reverse, interpret=False, compiler_params=None):
    def kernel(*refs):
        inputs, outputs = refs[: len(refs) // 2], refs[len(refs) // 2 :]
        results = scan_primitive.associative_scan(combine, [ref[...] for ref in inputs], axis=axis, reverse=reverse)
        for ref, result in zip(outputs, results, strict=True):
            ref[...] = result

    def call(*operands):
        return pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands],
            compiler_params=compiler_params or scan_primitive.compiler_params(num_warps=4),
            interpret=interpret,
        )(*operands)

    return jax.jit(call)


def triton_ir(lowered):
    """The text of the Triton modules that a lowered function carries as bytecode in the attributes of its custom calls."""
    from jax._src.lib.mlir import ir
    from jax._src.pallas.triton import lowering

    modules = []

    def collect(operation):
        for region in operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    if inner.operation.name == "stablehlo.custom_call" and "triton" in str(inner.attributes["call_target_name"]):
                        modules.append(ir.StringAttr(ir.DictAttr(inner.attributes["mhlo.backend_config"])["ir"]).value_bytes)
                    collect(inner.operation)

    collect(lowered.compiler_ir("stablehlo").operation)
    assert modules, "the lowered function has no Triton kernel"
    with lowering._new_ir_context():
        return "\n".join(str(ir.Module.parse(module)) for module in modules)


CASES = [
    pytest.param(combine, dtype, id=f"{combine.__name__}-{dtype.__name__}")
    for combine in (pair, pair_and_exclusive, greatest_magnitude, least, last_positive)
    for dtype in {pair: (np.float32, np.float64), least: (np.int32,), last_positive: (np.int32,)}.get(combine, (np.float32,))
]
directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
axes = pytest.mark.parametrize("axis", [0, 1])


def assert_close(got, combine, operands, axis, reverse):
    """Within one rounding of every addition and multiplication that an element went through, in this order and in that of the loop.

    A term passes at most one of each a step, and all terms together are no larger than the scan of the magnitudes. Integers and selections are exact.
    """
    want = sequential(combine, operands, axis, reverse)
    largest = sequential(combine, tuple(np.abs(operand) for operand in operands), axis, reverse)
    for value, expected, magnitude in zip(got, want, largest, strict=True):
        assert value.dtype == expected.dtype
        exact = combine not in (pair, pair_and_exclusive)
        limit = np.zeros_like(magnitude) if exact else 2 * (2 * expected.shape[axis] + 1) * np.finfo(expected.dtype).eps / 2 * magnitude
        assert (np.abs(np.asarray(value) - expected) <= limit).all()


def check(combine, dtype, axis, reverse, shape, interpret):
    with jax.enable_x64(dtype == np.float64):
        operands = operands_of(combine, shape, dtype)
        got = in_pallas(combine, axis=axis, reverse=reverse, interpret=interpret)(*operands)
        assert len(got) == len(operands)
        assert_close(got, combine, operands, axis, reverse)


@pytest.mark.parametrize(("combine", "dtype"), CASES)
@directions
@pytest.mark.parametrize(("shape", "axis"), [((8, 16), 1), ((5, 7), 0)], ids=str)
def test_interpret_mode_equals_the_loop(combine, dtype, axis, reverse, shape):
    check(combine, dtype, axis, reverse, shape, interpret=True)


@pytest.mark.gpu
@pytest.mark.parametrize(("combine", "dtype"), CASES)
@directions
@axes
def test_gpu_equals_the_loop(combine, dtype, axis, reverse):
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    check(combine, dtype, axis, reverse, (64, 32), interpret=False)


@pytest.mark.parametrize(("combine", "dtype"), CASES)
@directions
@axes
def test_cuda_lowering_is_one_tt_scan(combine, dtype, axis, reverse):
    assert scan_primitive.AVAILABLE, scan_primitive.WHY
    with jax.enable_x64(dtype == np.float64):
        operands = operands_of(combine, (8, 16), dtype)
        text = triton_ir(lower_for_cuda(in_pallas(combine, axis=axis, reverse=reverse), *operands))
    scans = re.findall(r'"tt.scan"\((.*?)\) <\{axis = (\d) : i32, reverse = (\w+)\}>', text)
    assert [(len(names.split(",")), int(at), how == "true") for names, at, how in scans] == [(len(operands), axis, reverse)]
    # The region holds the caller's arithmetic, on scalars.
    assert re.search(r"arith\.(select|minsi) .* : [fi]\d\d$", text, re.MULTILINE)


@pytest.mark.skipif(tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11), reason="Pallas' Triton lowering is not deprecated in this JAX")
def test_only_our_kernels_are_spared_the_deprecation_warning():
    operands = operands_of(pair, (8, 16), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower_for_cuda(in_pallas(pair, axis=1, reverse=True), *operands)
    with pytest.warns(DeprecationWarning, match="Pallas Triton backend"):
        lower_for_cuda(in_pallas(pair, axis=1, reverse=True, compiler_params=plgpu.CompilerParams(num_warps=4)), *operands)


def first_column(array):
    rows, columns = array.shape

    def kernel(array_ref, out_ref):
        row = pl.program_id(0) * 4 + jnp.arange(4, dtype=jnp.int32)
        column = jnp.arange(4, dtype=jnp.int32)
        tile = plgpu.load(array_ref.at[row[:, None], column[None, :]], mask=(column < columns)[None, :], other=0)
        plgpu.store(out_ref.at[row], jnp.sum(tile.astype(jnp.float32), axis=1), mask=row < rows)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows,), jnp.float32),
        grid=(pl.cdiv(rows, 4),),
        compiler_params=scan_primitive.compiler_params(num_warps=4),
    )(scan_primitive.addressable(array))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("elements", [2**31 + 2**21, 2**33])
def test_offsets_into_large_arrays_have_64_bits(dtype, elements):
    array = jax.ShapeDtypeStruct((2**21, elements >> 21), dtype)
    text = triton_ir(lower_for_cuda(jax.jit(first_column), array))
    assert re.search(r"tt\.addptr .*tensor<4x4xi64>", text)
    assert not re.search(r"tt\.addptr .*tensor<4x4xi32>", text)


def test_small_arrays_are_left_as_they_are():
    flags = jnp.zeros((4, 8), bool)
    assert scan_primitive.addressable(flags) is flags


def test_operands_and_axis_are_checked():
    with pytest.raises(ValueError, match="one shape"):
        scan_primitive.associative_scan(pair, (jnp.zeros((2, 4)), jnp.zeros((4, 2))), axis=1)
    with pytest.raises(ValueError, match="axis 2"):
        scan_primitive.associative_scan(pair, (jnp.zeros((2, 4)), jnp.zeros((2, 4))), axis=2)


def test_outside_a_kernel_and_with_a_negative_axis():
    operands = operands_of(pair, (3, 4), np.float32)
    got = scan_primitive.associative_scan(pair, [jnp.asarray(operand) for operand in operands], axis=-1, reverse=True)
    assert_close(got, pair, operands, 1, True)


@pytest.mark.parametrize(
    "breakage",
    [
        "sys.modules['jax._src.lib.triton'] = None",
        "sys.modules['jax._src.pallas.triton.lowering'] = None",
        "sys.modules['jax._src.pallas.triton.pallas_call_registration'] = None",
        "import jax._src.lib.triton as triton; del triton.dialect.ScanOp",
        "import jax._src.pallas.triton.lowering as lowering; del lowering.lower_fun",
    ],
)
def test_a_jax_without_the_private_modules_is_reported_and_not_raised(breakage):
    program = f"""
        import sys
        import jax
        {breakage}
        from rlscan.jax_pallas import _scan_primitive as scan_primitive
        assert not scan_primitive.AVAILABLE
        assert jax.__version__ in scan_primitive.WHY and "Error" in scan_primitive.WHY, scan_primitive.WHY
        # Only the Triton rule is missing.
        total, = scan_primitive.associative_scan(lambda first, second: (first + second,), (jax.numpy.arange(4),), axis=0, reverse=True)
        assert total.tolist() == [6, 6, 5, 3]
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], check=True)


def test_importing_starts_no_backend_and_warns_of_nothing():
    program = """
        import jax
        from rlscan.jax_pallas import _scan_primitive as scan_primitive
        assert scan_primitive.AVAILABLE and not scan_primitive.WHY, scan_primitive.WHY
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], check=True)
