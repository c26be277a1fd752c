"""The arithmetic of the recurrences is in spec/coefficients.py alone, in the language that all array libraries share."""

import ast
import copy
import dataclasses
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlscan.spec import coefficients
from rlscan.spec.arguments import ARGUMENTS
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.signatures import signature

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(inspect.getfile(coefficients)).read_text(encoding="utf-8")

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.BitAnd, ast.BitOr)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
OF_XP = ("where", "exp")


class ForeignError(Exception):
    """What is no part of the language, and where."""


def check_module(source: str) -> list[str]:
    """The names of the functions, if all is in the language."""
    module = ast.parse(source)
    functions = {statement.name: statement for statement in module.body if isinstance(statement, ast.FunctionDef)}
    for statement in module.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_head = ast.unparse(statement) in ("from __future__ import annotations", "import numpy as xp", "Array = xp.ndarray")
        if not (is_text or is_head or isinstance(statement, ast.FunctionDef)):
            raise ForeignError(ast.unparse(statement))
    for function in functions.values():
        check_function(function, set(functions))
    return list(functions)


def check_function(function: ast.FunctionDef, siblings: set[str]) -> None:
    own = function.args
    if own.defaults or own.kwonlyargs or own.vararg or own.kwarg or own.posonlyargs or function.decorator_list:
        raise ForeignError(f"{function.name}: parameters are plain and positional")
    known = {argument.arg for argument in own.args}
    if any(argument.annotation is None or ast.unparse(argument.annotation) != "Array" for argument in own.args):
        raise ForeignError(f"{function.name}: parameters are arrays")
    body = function.body[1:] if ast.get_docstring(function) else function.body
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            check_expression(statement.value, known, siblings)
            target = statement.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            if not all(isinstance(name, ast.Name) for name in names):
                raise ForeignError(ast.unparse(statement))
            known |= {name.id for name in names if isinstance(name, ast.Name)}
        elif isinstance(statement, ast.Return) and statement.value is not None:
            check_expression(statement.value, known, siblings)
        else:
            raise ForeignError(ast.unparse(statement))
    if not isinstance(body[-1], ast.Return):
        raise ForeignError(f"{function.name}: returns nothing")


def check_expression(node: ast.expr, known: set[str], siblings: set[str]) -> None:
    inner: list[ast.expr]
    match node:
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, OPERATORS):
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, COMPARISONS):
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in siblings:
            inner = args
        case ast.Call(func=ast.Attribute(value=ast.Name(id="xp"), attr=name), args=args, keywords=[]) if name in OF_XP:
            inner = args
        case ast.Tuple(elts=elements):
            inner = elements
        case ast.Name(id=name) if name in known:
            inner = []
        case ast.Constant(value=float() | bool()):
            inner = []
        case _:
            raise ForeignError(ast.unparse(node))
    for expression in inner:
        check_expression(expression, known, siblings)


def test_coefficients_are_in_the_language():
    names = check_module(SOURCE)
    used = {function for recurrence in RECURRENCES.values() for function in (recurrence.coefficients, recurrence.outputs) if function}
    assert {function.__name__ for function in used} <= set(names)
    assert all(inspect.getmodule(function) is coefficients for function in used)


@pytest.mark.parametrize(
    "statement",
    [
        "return x ** 2.0",
        "return x % 2.0",
        "return ~x",
        "return not x",
        "x *= 2.0\n    return x",
        "return min(x, y)",
        "return max(x, y)",
        "return abs(x)",
        "return xp.minimum(x, y)",
        "return xp.clip(x, 0.0, 1.0)",
        "return xp.where(condition=x, x=y, y=x)",
        "return x.clip(y)",
        "return x[0]",
        "return x if x > y else y",
        "return x < y < 1.0",
        "return x and y",
        "return x + EPSILON",
        "return x + 1",
        "return x + None",
        "return [x, y]",
        "return other(*x)",
        "return xp.inf",
        "for z in x:\n        y = z\n    return y",
        "import math\n    return math.exp(x)",
        "print(x)\n    return y",
        "x.y = y\n    return x",
        "y = x",
    ],
)
def test_what_is_not_in_the_language_is_noticed(statement):
    module = "import numpy as xp\n\nArray = xp.ndarray\n\n\ndef other(x: Array) -> Array:\n    return x\n\n\n{}"
    check_module(module.format("def one(x: Array, y: Array) -> Array:\n    return other(xp.where(x > -y, x, 0.0))\n"))
    with pytest.raises(ForeignError):
        check_module(module.format(f"def one(x: Array, y: Array) -> Array:\n    {statement}\n"))


@pytest.mark.parametrize("head", ["x: Array, *, y: Array", "x: Array, y: Array = 1.0", "*x: Array", "x, y: Array", "x: Array, /, y: Array"])
def test_parameters_that_are_not_in_the_language_are_noticed(head):
    with pytest.raises(ForeignError):
        check_module(f"def one({head}) -> Array:\n    return x\n")


# What a recurrence is made of: to add or multiply any of it is arithmetic of a recurrence.
QUANTITIES = {argument.name for argument in ARGUMENTS.values() if argument.shape != "option" and not argument.flag} | {
    *("alpha", "beta", "state", "ratio", "rho", "rhos", "log_rho", "delta", "deltas", "td_error", "discount", "advantages", "returns", "targets", "vs"),
    *("reward", "value", "next_value", "final_value", "q_value", "next_q_value", "next_lam", "next_log_rho", "previous_gamma", "previous_lam", "carry"),
}

# `bound.py` follows the errors of whatever the coefficients are. `mutants.py` holds definitions that are broken on purpose, and `rollouts.py` plays the
# caller, who has expectations of its own to hand over. What rlscan is timed against and compared with is other people's code, formula by formula, and
# a caller's.
ELSEWHERE = {
    *("spec/coefficients.py", "spec/bound.py", "crosscheck/mutants.py", "crosscheck/rollouts.py"),
    *("crosscheck/baselines.py", "crosscheck/plain_kernel.py", "crosscheck/ppo.py", "crosscheck/counters.py", "crosscheck/formulas.py"),
    "crosscheck/peers.py",
}


def arithmetic(source: str) -> list[str]:
    """Sums and products in which a quantity of a recurrence stands as it is or picked from."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
            for operand in (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value):
                while isinstance(operand, ast.UnaryOp):
                    operand = operand.operand
                if isinstance(operand, ast.Name | ast.Subscript) and names(operand) & QUANTITIES:
                    found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def names(node: ast.AST) -> set[str]:
    """Also the name that an argument has in a mapping."""
    inside = list(ast.walk(node))
    texts = {inner.value for inner in inside if isinstance(inner, ast.Constant) and isinstance(inner.value, str)}
    return texts | {inner.id for inner in inside if isinstance(inner, ast.Name)}


PACKAGES = ("spec", "torch_triton", "jax_pallas", "crosscheck")
FILES = [path.relative_to(ROOT).as_posix() for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", [path for path in FILES if path not in ELSEWHERE])
def test_no_other_file_has_arithmetic_of_a_recurrence(path):
    assert arithmetic((ROOT / path).read_text(encoding="utf-8")) == []


def test_arithmetic_is_found_where_it_is():
    assert len(arithmetic(SOURCE)) > 20
    for line in ("x = gamma * y", "x = r - values[t]", "x = -beta * y", "state += y", 'x = arguments["gamma"] * y', "x = y / next_policy"):
        assert arithmetic(line), line
    for line in ("x = values[t]", "x = t + 1", "gamma = x * y", "x = len(values) + 1"):
        assert not arithmetic(line), line


def modules_after(statement: str) -> set[str]:
    """The top-level packages that are loaded when it has run."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted({{name.partition('.')[0] for name in set(sys.modules) - before}}))"
    # -P and a path without the root: what lies there could be imported by a wrong name.
    return set(subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_spec_needs_numpy_and_nothing_else():
    every = "; ".join(f"import rlscan.spec.{path.stem}" for path in sorted((ROOT / "spec").glob("*.py")) if path.stem != "__init__")
    foreign = {name for name in modules_after(every) if name.lstrip("_") not in sys.stdlib_module_names and name not in sys.stdlib_module_names}
    assert foreign <= {"rlscan", "numpy"}


@pytest.mark.parametrize(("package", "framework", "others"), [("torch_triton", "torch", {"jax", "jaxlib"}), ("jax_pallas", "jax", {"torch", "triton"})])
def test_a_backend_does_not_load_the_other_framework(package, framework, others):
    pytest.importorskip(framework)
    loaded = modules_after(f"import rlscan.{package}")
    assert framework in loaded
    assert not loaded & others


def test_the_crosscheck_loads_frameworks_only_when_it_uses_them():
    loaded = modules_after("import rlscan.crosscheck.backends, rlscan.crosscheck.scenarios, rlscan.crosscheck.compare, rlscan.crosscheck.mutants")
    assert not loaded & {"torch", "triton", "jax", "gymnasium", "rich"}


WITH_OUT = ("torch_triton",)
ARRAYS = {"spec.reference": "numpy.ndarray", "torch_triton": "torch.Tensor", "jax_pallas": "jax.Array"}


def public(module: str):
    needs = {"torch_triton": "torch", "jax_pallas": "jax"}
    if module in needs:
        pytest.importorskip(needs[module])
    return importlib.import_module(f"rlscan.{module}")


@pytest.mark.parametrize("module", ARRAYS)
@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_public_functions_are_those_that_are_declared(module, recurrence):
    function = getattr(public(module), recurrence.name)
    assert inspect.signature(function) == signature(recurrence, out=module in WITH_OUT)
    assert function.__name__ == function.__qualname__ == recurrence.name
    assert function.__module__ == f"rlscan.{module}"


@pytest.mark.parametrize("module", ARRAYS)
@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_docstrings_differ_in_the_types_of_arrays_alone(module, recurrence):
    def words(module: str) -> list[str]:
        text = inspect.getdoc(getattr(public(module), recurrence.name)) or ""
        text = re.sub(r"\n    out: .*?(?=\n\n)", "", text, flags=re.DOTALL)
        # Lines are filled, so that a longer name breaks them elsewhere.
        text = " ".join(text.replace(ARRAYS[module], "ARRAY").split())
        return re.sub(r"; always float64\.|; float64 for float64 inputs, else float32\.", "; DTYPE.", text).split()

    assert len(words(module)) > 100
    assert words(module) == words("spec.reference")
    text = " ".join(words(module))
    assert recurrence.title in text
    assert recurrence.source in text
    for argument in recurrence.arguments:
        assert f"{argument.name}: " in text
    for name in recurrence.output_names:
        assert f"{name}: " in text


@pytest.mark.parametrize("again", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_declared_recurrence_is_one_object(again):
    for recurrence in RECURRENCES.values():
        assert again(recurrence) is recurrence
    own = dataclasses.replace(RECURRENCES["gae"], title="One of the user's own, of the same name.")
    copied = again(own)
    assert copied is not own
    assert copied is not RECURRENCES["gae"]
    assert dataclasses.asdict(copied) == dataclasses.asdict(own)


@pytest.mark.parametrize("module", ARRAYS)
def test_modules_export_the_declared_functions(module):
    exported = set(getattr(public(module), "__all__", RECURRENCES))
    assert exported >= set(RECURRENCES)
    assert public(module).__doc__
