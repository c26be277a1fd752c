"""Docstrings and pages made from the declarations."""

from __future__ import annotations

import textwrap

from rlscan.spec.arguments import OUT, Argument
from rlscan.spec.recurrences import RECURRENCES, Recurrence
from rlscan.spec.rules import RULES

WIDTH = 112


def docstring(recurrence: Recurrence, array: str, out: bool = False) -> str:
    """The docstring of the public function, for arrays of this type."""
    parts = [recurrence.title, _indented(recurrence.formula, 4)]
    parts += [_filled(f"- {boundary}", 2) for boundary in recurrence.boundaries]
    parts.append(
        _filled(
            "d_t is terminated, x_t truncated, e_t either, N_t = V(s'_t). [p] is 1 where p holds, else 0, and always selects: what is not selected is "
            "not read. The boundary rules B1 to B12 hold (rlscan.spec.rules).",
            0,
        )
    )
    parts.append(f"Source: {recurrence.source}.")
    arguments = "\n".join(
        _filled(f"{argument.name}: {shape_of(recurrence, argument, array)}. {argument.says}", 8, first=4) for argument in (*recurrence.arguments, *[OUT] * out)
    )
    parts.append(f"Args:\n{arguments}")
    returns = "; ".join(f"{name}: {says.rstrip('.')}" for name, says in zip(recurrence.output_names, recurrence.output_says, strict=True))
    shape = "the shape of " + recurrence.frame.name
    dtypes = "always float64" if array.startswith("numpy") else "float64 for float64 inputs, else float32"
    kind = f"{recurrence.result}({', '.join(recurrence.output_names)}), a named tuple. " if recurrence.result else ""
    parts.append("Returns:\n" + _filled(f"{kind}{returns}. Each has {shape}; {dtypes}.", 4, first=4))
    parts.append(
        "Raises:\n"
        + _filled("TypeError: an argument is of the wrong type, or float64 is mixed with narrower types.", 8, first=4)
        + "\n"
        + _filled("ValueError: a shape does not match, a source of V(s'_t) is missing or given twice, or a number is out of its range.", 8, first=4)
    )
    return "\n\n".join(parts) + "\n"


def shape_of(recurrence: Recurrence, argument: Argument, array: str) -> str:
    """Type, shape and dtype of an argument in words."""
    frame = recurrence.frame.name
    if argument is OUT:
        return f"{recurrence.result or array} or None"
    dtype = "any type, nonzero is True" if argument.flag else "float16, bfloat16, float32 or float64"
    if argument.name == frame:
        return f"{array} [.., T{', features..' if argument.shape == 'inputs' else ''}], {dtype}"
    default = recurrence.defaults.get(argument.name)
    without = "" if default is None else f" (default {default!r})"
    return {
        "steps": f"{array} [.., T], {dtype}",
        "inputs": f"{array} [.., T, features..], {dtype}",
        "row": f"{array} [..], the shape of {frame} without time, {dtype}",
        "actions": f"{array} [.., T, A], {dtype}",
        "parameter": f"number or {array}{without}",
        "number": f"number or None{without}",
        "option": {"time_axis": "int", "reverse": "bool"}.get(argument.name, "str or None") + without,
    }[argument.shape]


def recurrences_page() -> str:
    """`docs/recurrences.md`."""
    parts = [
        "# The recurrences",
        "Made from `rlscan.spec` by `python -m rlscan.crosscheck docs`; edit the declarations, not this page.",
        (
            "Every function has the same arguments in `rlscan.torch_triton`, `rlscan.jax_pallas` and, on NumPy arrays, `rlscan.spec.reference`. "
            "`[p]` is 1 where p holds, else 0, and always selects: what is not selected is not read. `d_t` is `terminated`, `x_t` `truncated`, `e_t` either, "
            "`N_t` = V(s'_t), `g_t` `gamma`, `l_t` `lam`, `w_t` `exp(log_rhos)`."
        ),
    ]
    for recurrence in RECURRENCES.values():
        parts.append(f"## `{recurrence.name}`")
        parts.append(f"{recurrence.title} The scan runs {recurrence.direction}{' unless reversed' if 'reverse' in recurrence.argument_names else ''}.")
        parts.append(f"```text\n{recurrence.formula}\n```")
        if recurrence.boundaries:
            parts.append("\n".join(f"- {boundary}" for boundary in recurrence.boundaries))
        parts.append(f"Source: {recurrence.source}.")
        rows = [f"| `{argument.name}` | {shape_of(recurrence, argument, 'array')} | {_in_a_table(argument.says)} |" for argument in recurrence.arguments]
        parts.append("\n".join(["| argument | what | meaning |", "| --- | --- | --- |", *rows]))
        outputs = "; ".join(f"`{name}`: {says.rstrip('.')}" for name, says in zip(recurrence.output_names, recurrence.output_says, strict=True))
        parts.append(f"Returns {outputs}.")
    parts.append("## Boundary rules")
    parts.append("\n".join(["| rule | | statement |", "| --- | --- | --- |", *(f"| {rule.id} | {rule.title} | {rule.statement} |" for rule in RULES.values())]))
    return "\n\n".join(parts) + "\n"


def _in_a_table(text: str) -> str:
    return text.replace("|", r"\|")


def _filled(text: str, indent: int, first: int = 0) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * indent)


def _indented(text: str, indent: int) -> str:
    return textwrap.indent(text, " " * indent)
