"""Coefficient functions as terms: what they compute when they are called with symbols, its derivative, and functions made of terms again.

No derivative of a recurrence is written here: only those of sums, products, selections and the functions that the language of `coefficients` has.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any


class Term:
    """A number or a flag of one step: a symbol, a constant, or an operation on other terms. Equal terms are one object, and `==` is the operation."""

    # by identity, so that different terms are never compared where they are keys
    __hash__ = object.__hash__

    def __init__(self, operation: str, of: tuple[Any, ...]) -> None:
        self.operation, self.of = operation, of

    @property
    def operands(self) -> tuple[Term, ...]:
        return () if self.operation in ("symbol", "constant") else self.of

    @property
    def value(self) -> float | bool | None:
        """Of a constant."""
        return self.of[0] if self.operation == "constant" else None

    def __add__(self, other: Any) -> Term:
        other = term(other)
        return other if is_zero(self) else self if is_zero(other) else _term("+", self, other)

    def __sub__(self, other: Any) -> Term:
        other = term(other)
        return -other if is_zero(self) else self if is_zero(other) else _term("-", self, other)

    def __mul__(self, other: Any) -> Term:
        other = term(other)
        if is_zero(self) or is_zero(other):
            return term(0.0)
        return other if self.value == 1.0 else self if other.value == 1.0 else _term("*", self, other)

    def __truediv__(self, other: Any) -> Term:
        return self if is_zero(self) else _term("/", self, term(other))

    def __neg__(self) -> Term:
        if self.operation == "constant":
            return term(-self.of[0]) if self.of[0] else self
        return self.of[0] if self.operation == "negative" else _term("negative", self)

    def __radd__(self, other: Any) -> Term:
        return term(other) + self

    def __rsub__(self, other: Any) -> Term:
        return term(other) - self

    def __rmul__(self, other: Any) -> Term:
        return term(other) * self

    def __rtruediv__(self, other: Any) -> Term:
        return term(other) / self

    def __and__(self, other: Any) -> Term:
        return _chosen("&", True, self, term(other))

    def __or__(self, other: Any) -> Term:
        return _chosen("|", False, self, term(other))

    __rand__, __ror__ = __and__, __or__

    def __eq__(self, other: object) -> Any:
        other = term(other)
        if isinstance(other.value, bool) and isinstance(self.value, bool):
            return term(self.value == other.value)
        return self if other.value is True else _term("==", self, other)

    def __ne__(self, other: object) -> Any:
        return _term("!=", self, term(other))

    def __lt__(self, other: Any) -> Term:
        other = term(other)
        if other.operation == "constant" and (chosen := _of_choices(lambda x: x < other.of[0], self)) is not None:
            return chosen
        return _term("<", self, other)

    def __le__(self, other: Any) -> Term:
        return _term("<=", self, term(other))

    def __gt__(self, other: Any) -> Term:
        return _term(">", self, term(other))

    def __ge__(self, other: Any) -> Term:
        return _term(">=", self, term(other))


_terms: dict[tuple[Any, ...], Term] = {}


def _term(operation: str, *of: Any) -> Term:
    # types tell True from 1
    return _terms.setdefault((operation, *((type(x), id(x) if isinstance(x, Term) else x) for x in of)), Term(operation, of))


def symbol(name: Hashable) -> Term:
    return _term("symbol", name)


def term(x: Any) -> Term:
    """What stands for `x`: itself, or the constant."""
    return x if isinstance(x, Term) else _term("constant", x if isinstance(x, bool) else float(x))


def is_zero(x: Term) -> bool:
    return x.operation == "constant" and x.of[0] == 0.0 and not isinstance(x.of[0], bool)


def _chosen(operation: str, neutral: bool, one: Term, other: Term) -> Term:
    for first, second in ((one, other), (other, one)):
        if isinstance(first.value, bool):
            return second if first.value is neutral else first
    return one if one is other else _term(operation, one, other)


def _of_choices(function: Callable[[float], float | bool], x: Term) -> Term | None:
    """`function` of a number that is one of some constants, so that what is known is not computed: array libraries do not know the dtype of such numbers."""
    if x.operation == "constant":
        return term(function(x.of[0]))
    if x.operation != "where":
        return None
    yes, no = (_of_choices(function, branch) for branch in x.of[1:])
    return None if yes is None or no is None else Terms.where(x.of[0], yes, no)


class Terms:
    """The functions of the language, and what `steps.Finite` asks for beside them, for terms."""

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Term:
        condition, yes, no = term(condition), term(yes), term(no)
        if isinstance(condition.value, bool):
            return yes if condition.value else no
        return yes if yes is no else _term("where", condition, yes, no)

    @staticmethod
    def exp(x: Term) -> Term:
        return _term("exp", x)

    @staticmethod
    def abs(x: Term) -> Term:
        chosen = _of_choices(abs, x)
        return _term("abs", x) if chosen is None else chosen


_PULLS: dict[str, Callable[..., tuple[Term | None, ...]]] = {
    "+": lambda result, g, a, b: (g, g),
    "-": lambda result, g, a, b: (g, -g),
    "*": lambda result, g, a, b: (g * b, g * a),
    "/": lambda result, g, a, b: (g / b, -(g * result) / b),
    "negative": lambda result, g, a: (-g,),
    "where": lambda result, g, condition, a, b: (None, Terms.where(condition, g, 0.0), Terms.where(condition, 0.0, g)),
    "exp": lambda result, g, a: (g * result,),
    "abs": lambda result, g, a: (Terms.where(a < 0.0, -g, g),),
}
"""For each operation, what a gradient of its result adds to those of its operands. Flags have none."""


def in_order(results: Iterable[Term]) -> list[Term]:
    """All that the results are made of, operands first."""
    found: dict[Term, None] = {}

    def visit(one: Term) -> None:
        if one not in found:
            for operand in one.operands:
                visit(operand)
            found[one] = None

    for result in results:
        visit(result)
    return list(found)


def symbols(results: Iterable[Term]) -> list[Term]:
    return [one for one in in_order(results) if one.operation == "symbol"]


def pulled_back(results: Sequence[tuple[Term, Term]]) -> dict[Term, Term]:
    """The gradient, by each symbol, of the sum of these results, each times the term beside it."""
    order = in_order(one for one, _ in results)
    arrived = {one: term(0.0) for one in order}
    for one, gradient in results:
        arrived[one] += gradient
    for one in reversed(order):
        if not is_zero(arrived[one]) and one.operation in _PULLS:
            for operand, pulled in zip(one.operands, _PULLS[one.operation](one, arrived[one], *one.operands), strict=True):
                if pulled is not None:
                    arrived[operand] += pulled
    return {one: gradient for one, gradient in arrived.items() if one.operation == "symbol"}


def with_symbols(result: Term, other: Callable[[Term], Term]) -> Term:
    """The same of other symbols."""
    made: dict[Term, Term] = {}
    for one in in_order([result]):
        if one.operation == "symbol":
            made[one] = other(one)
        elif one.operation == "constant":
            made[one] = one
        else:
            made[one] = _made_of(one.operation, [made[operand] for operand in one.operands])
    return made[result]


def _made_of(operation: str, operands: Sequence[Term]) -> Term:
    one = operands[0]
    match operation:
        case "+":
            return one + operands[1]
        case "-":
            return one - operands[1]
        case "*":
            return one * operands[1]
        case "/":
            return one / operands[1]
        case "&":
            return one & operands[1]
        case "|":
            return one | operands[1]
        case "==":
            return one == operands[1]
        case "negative":
            return -one
        case "where":
            return Terms.where(*operands)
    return _term(operation, *operands)


def _written(one: Term, names: Mapping[Term, str]) -> str:
    own = [names[operand] for operand in one.operands]
    if one.operation == "constant":
        return repr(one.of[0])
    if one.operation == "negative":
        return f"-{own[0]}"
    if hasattr(Terms, one.operation):
        return f"xp.{one.operation}({', '.join(own)})"
    return f"{own[0]} {one.operation} {own[1]}"


# no two have one, be they made in two threads or after tools have cleared the cache
_files = itertools.count()


@functools.cache
def function_of(name: str, parameters: tuple[tuple[str, Term], ...], results: tuple[Term, ...]) -> types.FunctionType:
    """A function in the language of `coefficients`, with its source, that computes these terms from the symbols that its parameters stand for."""
    names = {one: parameter for parameter, one in parameters}
    lines = []
    for one in in_order(results):
        if one.operation == "constant":
            names[one] = _written(one, names)
        elif one not in names:
            names[one] = f"v{len(lines)}"
            lines.append(f"    {names[one]} = {_written(one, names)}")
    made = ", ".join(names[one] for one in results)
    source = "\n".join([f"def {name}({', '.join(parameter for parameter, _ in parameters)}):", *lines, f"    return {made}", ""])
    # Triton compiles from the source, and finds it here
    file = f"<rlscan {name} {next(_files)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space: dict[str, Any] = {"__name__": __name__, "xp": Terms}
    exec(compile(source, file, "exec"), space)
    return space[name]
