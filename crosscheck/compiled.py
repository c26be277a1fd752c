"""Kernels compiled for a GPU that need not be there: registers, spills and memory accesses, read from the result."""

from __future__ import annotations

import dataclasses
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes.

    Attributes:
        registers: of a thread.
        spills: bytes of a thread that do not fit into registers.
        shared: bytes of shared memory of a program.
        loads, stores: instructions that touch global memory.
        wide: those of them that move 16 bytes.
    """

    registers: int
    spills: int
    shared: int
    loads: int
    stores: int
    wide: int


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
    """Read from the binary and its PTX."""
    import pathlib
    import subprocess
    import tempfile

    import triton

    ptx = compiled.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = pathlib.Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", text).group(1)) for what in ("REG", "STACK"))  # type: ignore[union-attr]
    loads = re.findall(r"ld\.global[^;]*;", ptx)
    stores = re.findall(r"st\.global[^;]*;", ptx)
    wide = [line for line in (*loads, *stores) if re.search(r"\.v4\.(b32|f32|u32)|\.v2\.(b64|f64|u64)", line)]
    return Resources(registers, stack, compiled.metadata.shared, len(loads), len(stores), len(wide))
