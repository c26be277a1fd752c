"""Kernels of both backends compiled for a GPU that need not be there."""

from __future__ import annotations

import dataclasses
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlscan.crosscheck.draw import Form, Variant, draw
from rlscan.spec.adjoint import STATES, adjoint, call_of, incoming
from rlscan.spec.calls import Call, check
from rlscan.spec.plan import Plan
from rlscan.spec.program import program
from rlscan.spec.recurrences import RECURRENCES

Layout = Literal["rows", "columns"]


@dataclasses.dataclass(frozen=True)
class Build:
    """One call whose kernels are compiled.

    Attributes:
        op: the recurrence.
        given: the optional arrays that are given, and options as `name=value`.
        layout: `rows` for contiguous steps, `columns` for contiguous rows.
        shape: rows, steps.
        dtype: of the floating arrays.
        actions: where there is an action axis.
        form: of the parameters, such as gamma and lam.
        capability: of the GPU, 90 for an H200.
        backend: whose kernels.
        wanted: the arguments by which gradients are taken; none: the kernels are those of the results.
    """

    op: str
    given: tuple[str, ...] = ()
    layout: Layout = "rows"
    shape: tuple[int, int] = (1024, 128)
    dtype: str = "float32"
    actions: int = 3
    form: Form = "number"
    capability: int = 90
    backend: Literal["torch", "jax"] = "torch"
    wanted: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [*[self.backend] * (self.backend != "torch"), self.op, *self.given, self.layout, f"{self.shape[0]}x{self.shape[1]}", f"sm_{self.capability}"]
        parts += [self.dtype] * (self.dtype != "float32") + [f"A={self.actions}"] * (self.actions != 3) + [self.form] * (self.form != "number")
        parts += [f"gradients by {' '.join(self.wanted)}"] * bool(self.wanted)
        return "-".join(parts)


def arguments(build: Build, empty: Callable[[tuple[int, ...], str], Any]) -> dict[str, Any]:
    """The arguments of a build, arrays made by `empty(shape, dtype)`."""
    options = [name.partition("=") for name in build.given if "=" in name]
    variant = Variant(
        given=tuple(name for name in build.given if "=" not in name),
        options=tuple((name, value == "True" if value in ("True", "False") else value) for name, _, value in options),
        form=build.form,
    )
    # drawn small, then enlarged: sizes that tell rows, steps and actions apart
    rows, steps, actions = 2, 3, 5
    real: dict[int, int] = {rows: build.shape[0], steps: build.shape[1], actions: build.actions}
    drawn = draw(RECURRENCES[build.op], variant, *(((rows, steps), -1) if build.layout == "rows" else ((steps, rows), 0)), actions=actions)
    return {
        name: empty(tuple(real.get(int(size), int(size)) for size in x.shape), build.dtype if x.dtype.kind == "f" else str(x.dtype))
        if isinstance(x, np.ndarray)
        else x
        for name, x in drawn.items()
    }


def kernels_call(build: Build, call: Call, empty: Callable[[tuple[int, ...], str], Any]) -> Call:
    """The call whose kernels are meant: this one, or the one that gives its gradients."""
    if not build.wanted:
        return call
    derived = adjoint(call.wiring, call.dtype, frozenset(build.wanted), frozenset(call.recurrence.output_names), kept=True)
    if derived is None:
        raise ValueError(f"{build}: kernels can't give these gradients")
    handed_over = derived.states.output_names if derived.states else (STATES,)
    arrays = {name: empty(call.shape, call.dtype) for name in (*map(incoming, call.recurrence.output_names), *handed_over)}
    return call_of(call, derived.recurrence, {**call.arrays, **arrays})


def prepared(build: Build) -> tuple[Call, Any, dict[str, Any]]:
    """The checked call of a build, its `rlscan.torch_triton.launch.Prepared`, and tensors to launch it with, which take no memory."""
    import torch

    from rlscan.torch_triton.arrays import Tensors
    from rlscan.torch_triton.launch import OVERLAPS_FROM, Prepared

    def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    call = kernels_call(build, check(RECURRENCES[build.op], arguments(build, empty), Tensors()), empty)
    ready = Prepared(call, overlap=build.capability >= OVERLAPS_FROM)
    outs = tuple([new() for new in ready.news])
    return call, ready, ready.passed({**call.arrays, **call.numbers}, outs)


def lower_for_cuda(function: Any, *operands: Any) -> Any:
    """Lower a jitted function for CUDA on a machine that may have no GPU; newer JAX asks the abstract mesh which GPU is meant."""
    import jax

    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        return function.trace(*operands).lower(lowering_platforms=("cuda",))


def compile_pallas(build: Build) -> tuple[Call, Plan, list[tuple[str, Any, tuple[str, ...]]]]:
    """The call of a build, its plan, and of each kernel its pass, the compiled kernel, and what its parameters point to.

    Pallas hands XLA a module of Triton's intermediate code, and XLA compiles it with a Triton of its own, not quite the one that is installed.
    """
    import jax
    import jax.numpy as jnp
    import triton
    from jax._src.interpreters.mlir import make_ir_context
    from jax._src.lib.mlir import ir
    from jax._src.lib.triton import dialect
    from triton.backends.compiler import GPUTarget

    from rlscan.jax_pallas import launch
    from rlscan.jax_pallas.arrays import Arrays

    given = arguments(build, lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype))
    arrays = {name: x for name, x in given.items() if isinstance(x, jax.ShapeDtypeStruct)}
    calls = []

    def traced(arrays: dict[str, Any]) -> Any:
        calls.append(kernels_call(build, check(RECURRENCES[build.op], {**given, **arrays}, Arrays()), jnp.empty))
        return launch.by_kernels(calls[-1], interpret=False)

    module: Any = lower_for_cuda(jax.jit(traced), arrays).compiler_ir()
    (call, *_) = calls
    recurrence = call.recurrence
    code = program(call.wiring)
    # a dictionary's items come to a kernel in the order of their names
    inputs = sorted({*code.sources, *code.edges, *([call.wiring.seed] if call.wiring.seed else ())})
    kernels = []
    for op in kernels_within(module.operation):
        config = op.attributes["mhlo.backend_config"]
        name = config["name"].value.removeprefix(f"rlscan_{recurrence.name}_")
        between = len(op.operands) - len(inputs)
        results = list(recurrence.output_names) if name == "results" else ["handed_on"] * len(op.results)
        with make_ir_context() as context, tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
            dialect.register_dialect(context)
            file.write(str(ir.Module.parse(config["ir"].value_bytes)))
            file.flush()
            options = {"num_warps": config["num_warps"].value, "num_stages": config["num_stages"].value, "enable_fp_fusion": False}
            compiled = triton.compile(file.name, target=GPUTarget("cuda", build.capability, 32), options=options)
        kernels.append((name, compiled, (*inputs, *["handed_on"] * between, *results)))
    return call, launch._plan(call), kernels


def kernels_within(op: Any) -> list[Any]:
    """The calls of Triton kernels within an operation that was lowered for CUDA, such as a module, in order."""
    found = [op] if op.name == "stablehlo.custom_call" and "triton" in str(op.attributes["call_target_name"]) else []
    return found + [call for region in op.regions for block in region for inner in block for call in kernels_within(inner.operation)]


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes.

    Attributes:
        registers: of a thread.
        spills: bytes of a thread that do not fit into registers.
        shared: bytes of shared memory of a program.
        instructions: of the machine's code, which is filled up to a multiple of 8.
    """

    registers: int
    spills: int
    shared: int
    instructions: int


def compile_triton(launch: Any, tensors: dict[str, Any], capability: int = 90) -> Any:
    """The compiled kernel of a `rlscan.torch_triton.launch.Launch` of these tensors, for CUDA devices of this compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rlscan.torch_triton import kernels

    given = {**tensors, **launch.sizes}
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list] = {}
    constants: dict[Any, Any] = dict(launch.constants)
    for position, name in enumerate(launch.kernel.arg_names):
        if name in launch.constants:
            signature[name] = "constexpr"
        else:
            signature[name] = _type(given[name], (position,), attributes, name in kernels.PLAIN)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)


def _type(x: Any, path: tuple[int, ...], attributes: dict[tuple[int, ...], list], plain: bool) -> Any:
    if isinstance(x, tuple):
        return tuple(_type(item, (*path, i), attributes, plain) for i, item in enumerate(x))
    if isinstance(x, float):
        return "fp32"
    if isinstance(x, int):
        if x % 16 == 0 and not plain:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if -(2**31) <= x < 2**31 else "i64"
    if x.data_ptr() % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    names = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16", "bool": "i1", "uint8": "u8"}
    dtype = str(x.dtype).removeprefix("torch.")
    return "*" + names.get(dtype, dtype.replace("uint", "u").replace("int", "i"))


def resources(compiled: Any) -> Resources:
    """Read from the binary."""
    import triton

    binary = compiled.asm["cubin"]
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", usage).group(1)) for what in ("REG", "STACK"))  # type: ignore[union-attr]
    return Resources(registers, stack, compiled.metadata.shared, _code_bytes(binary) // 16)


def _code_bytes(elf: bytes) -> int:
    """Of the sections that are executed. A disassembler, which would count the same, takes longer than the compiler."""
    (start,), (size, count) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<QQQQ", elf, start + i * size + 8) for i in range(count)]
    executed = 4
    return sum(length for flags, _, _, length in sections if flags & executed)
