"""Stubs for editors and type checkers, which can't see functions that are made from declarations at run time.

`python -m rlscan.spec.stubs`, in a checkout, writes the `.pyi` beside each module of public functions.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

from rlscan.spec.arguments import REQUIRED, Argument
from rlscan.spec.docstrings import docstring
from rlscan.spec.recurrences import RECURRENCES, Recurrence

MODULES = ("spec/reference.py", "torch_triton/__init__.py", "jax_pallas/__init__.py")

# The arrays of each module as its declarations call them, as a stub calls them, and what the stub then imports.
ARRAYS = {
    "numpy.ndarray": ("np.ndarray", "import numpy as np"),
    "torch.Tensor": ("torch.Tensor", "import torch"),
    "jax.Array": ("jax.Array", "import jax"),
}

WIDTH = 160

HEAD = """# Made from the declarations by `python -m rlscan.spec.stubs`; edit them, not this file.
# ruff: noqa: PYI021  (editors show the docstrings)
"""


def stubs() -> dict[str, str]:
    """The text of every stub, by its path from the repository's root."""
    root = Path(__file__).resolve().parent.parent
    return {module.removesuffix(".py") + ".pyi": stub((root / module).read_text(encoding="utf-8")) for module in MODULES}


def stub(source: str) -> str:
    """The stub of a module: what it defines, and the signatures of the public functions that it makes from the declarations."""
    module = ast.parse(source)
    parts, results, imports = [], [], {"from typing import NamedTuple"}
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and not statement.name.startswith("_"):
            parts.append(_outline(statement))
        elif isinstance(statement, ast.For) and (made := _made(statement)):
            array, out = made
            array_type, needed = ARRAYS[array]
            imports |= {needed, "from typing import Literal"}
            for recurrence in RECURRENCES.values():
                parts.append(_signature(recurrence, array_type, out) + "\n" + _docstring(docstring(recurrence, array, out)))
                if recurrence.result:
                    fields = "\n".join(f"    {name}: {array_type}" for name in recurrence.output_names)
                    results.append(f"class _{recurrence.result}(NamedTuple):\n{_docstring(_result_says(recurrence))}\n\n{fields}")
    public = ", ".join(f'"{name}"' for name in sorted(("run", *RECURRENCES)))
    parts.insert(0, f"__all__ = [{public}]")
    text = re.sub(r"(?m)^((?:def|\)) .*\.\.\.(?:  # .*)?)\n\n(?=def )", r"\1\n", "\n\n".join([*results, *parts]))
    imports |= {line for line, name in _imports(module) if name in _names(text)}
    return HEAD + "\n" + _sorted(imports) + "\n\n" + text + "\n"


def _made(loop: ast.For) -> tuple[str, bool] | None:
    """The array type of the loop that makes a module's public functions, and whether they write where they are told to."""
    for call in ast.walk(loop):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "public_function":
            array = ast.literal_eval(call.args[3]) if len(call.args) > 3 else "numpy.ndarray"
            return array, any(keyword.arg == "out" for keyword in call.keywords)
    return None


def _signature(recurrence: Recurrence, array: str, out: bool) -> str:
    lines = []
    for argument in recurrence.arguments:
        if argument.keyword and "    *," not in lines:
            lines.append("    *,")
        default = "" if argument.default is REQUIRED else f" = {argument.default!r}"
        lines.append(f"    {argument.name}: {_type(argument, array)}{default},")
    returns = f"_{recurrence.result}" if recurrence.result else array
    if out:
        lines.append(f"    out: {f'tuple[{array}, ...]' if recurrence.result else array} | None = None,")
    return f"def {recurrence.name}(\n" + "\n".join(lines) + f"\n) -> {returns}:"


def _type(argument: Argument, array: str) -> str:
    if argument.name == "time_axis":
        return "int"
    if argument.choices == (False, True):
        return "bool"
    if argument.shape == "option":
        return f"Literal[{', '.join(_quoted(choice) for choice in argument.choices if choice is not None)}] | None"
    kind = {"parameter": f"float | {array}", "number": "float"}.get(argument.shape, array)
    return kind + " | None" if argument.default is None or argument.none_is is not None else kind


def _quoted(choice: str) -> str:
    return f'"{choice}"'


def _result_says(recurrence: Recurrence) -> str:
    return " ".join(f"{name}: {says}" for name, says in zip(recurrence.output_names, recurrence.output_says, strict=True))


def _outline(statement: ast.FunctionDef | ast.ClassDef, indent: str = "") -> str:
    """A definition without its body; of a class, its public methods and attributes. Its docstring is found in the source."""
    if isinstance(statement, ast.FunctionDef):
        returns = f" -> {ast.unparse(statement.returns)}" if statement.returns else ""
        named_otherwise = "" if statement.name.islower() else "  # noqa: N802"
        parameters = _parameters(statement.args)
        line = f"{indent}def {statement.name}({', '.join(parameters)}){returns}: ...{named_otherwise}"
        if len(line) > WIDTH:
            between = f",\n{indent}    "
            line = f"{indent}def {statement.name}({between[1:]}{between.join(parameters)},\n{indent}){returns}: ...{named_otherwise}"
        return line.replace("'", '"')
    bases = f"({', '.join(map(ast.unparse, statement.bases))})" if statement.bases else ""
    body = []
    for inner in statement.body:
        if isinstance(inner, ast.FunctionDef) and (inner.name == "__init__" or not inner.name.startswith("_")):
            body.append(_outline(inner, indent + "    "))
        elif isinstance(inner, ast.AnnAssign):
            body.append(f"{indent}    {ast.unparse(inner.target)}: {ast.unparse(inner.annotation)}")
        elif isinstance(inner, ast.Assign):
            body += [f"{indent}    {line}" for line in _assigned(inner.targets[0], inner.value)]
    return "\n".join([f"{indent}class {statement.name}{bases}:", *(body or [f"{indent}    ..."])])


def _parameters(arguments: ast.arguments) -> list[str]:
    """As they stand, with `...` for a default that is no constant."""
    defaults = [default if isinstance(default, ast.Constant) else ast.Constant(...) for default in arguments.defaults]
    required = [ast.unparse(argument) for argument in arguments.args[: len(arguments.args) - len(defaults)]]
    optional = arguments.args[len(required) :]
    return required + [
        f"{ast.unparse(argument)}{' = ' if argument.annotation else '='}{ast.unparse(default)}" for argument, default in zip(optional, defaults, strict=True)
    ]


def _assigned(target: ast.expr, value: ast.expr) -> list[str]:
    """`name: type` for each name, where the value tells the type."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [line for pair in zip(target.elts, value.elts, strict=True) for line in _assigned(*pair)]
    return [f"{ast.unparse(target)}: {type(value.value).__name__ if isinstance(value, ast.Constant) else 'Any'}"]


def _docstring(text: str) -> str:
    lines = inspect.cleandoc(text)
    return textwrap.indent(f'"""{lines}' + ("\n" if "\n" in lines else "") + '"""', "    ")


def _imports(module: ast.Module) -> list[tuple[str, str]]:
    """Each imported name with a line that imports it alone."""
    found = []
    for statement in module.body:
        if isinstance(statement, ast.Import):
            found += [("import " + ast.unparse(alias), (alias.asname or alias.name).partition(".")[0]) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            found += [(f"from {statement.module} import {ast.unparse(alias)}", alias.asname or alias.name) for alias in statement.names]
    return found


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _sorted(imports: set[str]) -> str:
    """As ruff sorts them: the standard library, other packages, rlscan; `from` imports of one module on one line."""
    plain = [line for line in imports if line.startswith("import ")]
    merged: dict[str, list[str]] = {}
    for line in imports - set(plain):
        module, _, name = line.removeprefix("from ").partition(" import ")
        merged.setdefault(module, []).append(name)
    lines = plain + [f"from {module} import {', '.join(sorted(names))}" for module, names in merged.items()]
    groups: list[list[str]] = [[], [], []]
    for line in sorted(lines, key=lambda line: (line.startswith("from "), line.split()[1])):
        top = line.split()[1].partition(".")[0]
        groups[0 if top in ("collections", "typing") else 2 if top == "rlscan" else 1].append(line)
    return "\n\n".join("\n".join(group) for group in groups if group)


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    for path, text in stubs().items():
        (root / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
