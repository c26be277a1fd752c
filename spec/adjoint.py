"""The adjoint of a call, as recurrences that the same kernels run: derived from the declarations, as everything about a recurrence is.

Gradients come in for the results of `y_t = alpha_t + beta_t y_(t+1)`, of which `g_t` reaches `y_t` through the results at t, and `h_t` reaches `y_(t+1)`. Then

    z_t = g_t + h_(t-1) + beta_(t-1) z_(t-1)

is the gradient of `y_t` and of `alpha_t`, and `z_t y_(t+1)` that of `beta_t`: a recurrence the other way. What the coefficient functions at t and t-1 make of
them is the gradient of what is stored at t. A forward recurrence likewise, with t-1 and t+1 exchanged. What is differentiated is the call that
`steps.FiniteSteps` says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from rlscan.spec import coefficients
from rlscan.spec.arguments import Argument
from rlscan.spec.calls import Call
from rlscan.spec.geometry import axes_of
from rlscan.spec.recurrences import Recurrence
from rlscan.spec.steps import INFINITE, Finite, Steps, WholeArrays
from rlscan.spec.taps import STATE, STATE_BEYOND, At, Constant, Outside, Read, Source, Wiring, wire
from rlscan.spec.terms import Term, Terms, function_of, in_order, is_zero, pulled_back, symbol, symbols, term, with_symbols

STATES = "states"
"""The argument of an adjoint that is y at every step, or the result of the call that tells it."""


@dataclasses.dataclass(frozen=True)
class Adjoint:
    """What gives the gradients of a call.

    Attributes:
        recurrence: of z; its results are `steps` and `rows`.
        states: the recurrence that gives y at every step, if the gradients depend on it and no result tells it, or whatever else `recurrence` finds at no
            step that it reads; its arguments are those of the call, its results are arguments of `recurrence`.
        result: the result that tells y.
        steps: the arguments whose gradient it gives at every step; of an expectation over actions, that by it, under the name of the values.
        rows: those to which something flows from the scan's last step, one number for each row.
    """

    recurrence: Recurrence
    states: Recurrence | None
    result: str | None
    steps: tuple[str, ...]
    rows: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Telling:
    """The result of a call that tells y at every step: it is y, or the sum of y and an argument."""

    result: str
    added: str | None


def incoming(output: str) -> str:
    """The argument of an adjoint that is the gradient of an output."""
    return f"gradient_of_{output}"


def of_steps(argument: str) -> str:
    """The result of an adjoint that is what flows into an argument at each step."""
    return f"of_{argument}"


def of_rows(argument: str) -> str:
    """The result that is what flows into it from the scan's last step."""
    return f"of_{argument}_beyond"


@functools.cache
def adjoint(wiring: Wiring, dtype: str, wanted: frozenset[str], given: frozenset[str], kept: bool = False) -> Adjoint | None:
    """What gives the gradients of a call by the arguments `wanted`, where gradients come in for the outputs `given`; None where kernels can't.

    They give none by what is stored at a step that is not valid. `kept` says that the result that tells y, if there is one, is still at hand.
    """
    derived = _Derivation(wiring, dtype, wanted, given, telling(wiring, dtype) if kept else None)
    try:
        return derived.adjoint()
    except _NotReadError:
        return None


@functools.cache
def telling(wiring: Wiring, dtype: str) -> Telling | None:
    """Which result tells y. With `valid` none does, for y is something where results are 0."""
    if wiring.validity == "given":
        return None
    sums = None
    for name, output in _Derivation(wiring, dtype).outputs().items():
        if output is _STATE:
            return Telling(name, None)
        if output.operation != "+" or _STATE not in output.operands or wiring.seed:
            continue
        other = next((one for one in output.operands if one is not _STATE), None)
        source = other.of[0].source if other is not None and other.operation == "symbol" else None
        if isinstance(source, Read) and source.at == "step":
            sums = sums or Telling(name, source.source)
    return sums


def result_to_keep(call: Call, wanted: Collection[str]) -> int | None:
    """The place of the result that gradients by the arguments `wanted` are made of, if they are."""
    names = call.recurrence.output_names
    derived = adjoint(call.wiring, call.dtype, frozenset(wanted), frozenset(names), kept=True)
    return None if derived is None or derived.result is None else names.index(derived.result)


def pulled_back_by(
    run: Callable[[Call], Sequence[Any]],
    library: WholeArrays,
    call: Call,
    gradients: Mapping[str, Any],
    wanted: Collection[str],
    results: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """The gradients by the arguments `wanted` where these come in for outputs; `run` gives the outputs of a call by kernels. None where those can't.

    `results` of the call that are still at hand spare what would give them again.
    """
    told, results = telling(call.wiring, call.dtype), results or {}
    derived = adjoint(call.wiring, call.dtype, frozenset(wanted), frozenset(gradients), kept=told is not None and told.result in results)
    if derived is None:
        return None
    if call.wiring.validity == "derived":
        # results at resets are 0, whatever is stored there
        valid = library.xp.moveaxis(Steps(call, library).valid, 0, call.time_axis)
        gradients = {name: library.xp.where(valid, gradient, library.constant(0.0)) for name, gradient in gradients.items()}
    arrays = {**call.arrays, **{incoming(name): gradient for name, gradient in gradients.items()}}
    finite = Finite(library.xp, library.array_type, call.dtype)
    if derived.states is not None:
        seed = call.wiring.seed
        of_states = {**call.arrays, **({seed: finite.number(library.number(call.arrays[seed]))} if seed else {})}
        arrays |= zip(derived.states.output_names, run(call_of(call, derived.states, of_states)), strict=True)
    elif derived.result is not None:
        arrays[STATES] = results[derived.result]
    found: dict[str, Any] = {}
    if derived.steps or derived.rows:
        made = dict(zip(derived.recurrence.output_names, run(call_of(call, derived.recurrence, arrays)), strict=True))
        for name in derived.steps:
            gradient = made[of_steps(name)]
            weights = next((read.edge for read in call.wiring.reads if read.at == "actions" and read.source == name), None)
            if not isinstance(weights, str):
                found[name] = _summed(call, name, gradient)
            else:
                both = {one: finite.given(library.number(call.arrays[one]), _argument(call, one)) for one in (name, weights)}
                found |= {one: gradient[..., None] * both[other] for one, other in ((name, weights), (weights, name)) if one in wanted}
        for name in derived.rows:
            found[name] = found[name] + made[of_rows(name)] if name in found else made[of_rows(name)]
    if missing := [name for name in wanted if name not in found]:
        # a constant is a kernel of its own
        nothing = library.constant(0.0)
        found |= {name: library.xp.broadcast_to(nothing, tuple(call.arrays[name].shape)) for name in missing}
    return {name: found[name] for name in wanted}


def _argument(call: Call, name: str) -> Argument:
    return next(argument for argument in call.recurrence.arguments if argument.name == name)


def call_of(call: Call, recurrence: Recurrence, arrays: Mapping[str, Any]) -> Call:
    """The call of a recurrence that was made from that of `call`, with what it reads."""
    wiring = wire(recurrence, frozenset(arrays) | frozenset(call.numbers), frozenset(call.numbers))
    read = {recurrence.frame.name, wiring.seed, *(name for read in wiring.reads for name in (read.source, read.edge))}
    return dataclasses.replace(call, wiring=wiring, arrays={name: array for name, array in arrays.items() if name in read})


def _summed(call: Call, name: str, gradient: Any) -> Any:
    """A gradient at every step, over all along which an argument repeats."""
    shape = tuple(call.arrays[name].shape)
    own = {axis for axis, size in zip(axes_of(call, name, len(shape)), shape, strict=True) if size == call.shape[axis]}  # type: ignore[index]
    over = tuple(axis for axis in range(len(call.shape)) if axis not in own)
    return (gradient.sum(over) if over else gradient).reshape(shape)


class _NotReadError(Exception):
    """What would have to be read or written is nowhere that a kernel does: an expectation over actions at another step, flags two steps away, or a gradient
    at a step that is none."""


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """What a symbol stands for.

    Attributes:
        source: of a tap of the call, or of y, z and what comes in.
        at: of this step, or of the one before it in the order of the adjoint's scan; or of the last valid one, where the scan's last step is none.
    """

    source: Source | str
    at: Literal["step", "before", "last"] = "step"


_STATE = symbol(_Leaf(STATE))


class _Derivation:
    def __init__(
        self, wiring: Wiring, dtype: str, wanted: frozenset[str] = frozenset(), given: frozenset[str] = frozenset(), told: Telling | None = None
    ) -> None:
        self.told = told
        self.wiring, self.recurrence, self.wanted = wiring, wiring.recurrence, wanted
        self.arguments = {argument.name: argument for argument in self.recurrence.arguments}
        self.finite = Finite(Terms, Term, dtype)
        self.backward = self.recurrence.direction == "backward"
        self.masked = wiring.validity == "given"
        # names of places on both sides, in the order of the adjoint's scan
        behind, ahead = ("previous", "next") if self.masked else ("preceding", "following")
        self.past: At = behind if self.backward else ahead
        self.future: At = ahead if self.backward else behind
        self.given = [name for name in self.recurrence.output_names if name in given]
        # outside the window y is the seed or 0: there the result is what is added to it
        edges = [read.edge for read in wiring.reads if told and read.source == told.added and read.at == self.future]
        self.edge = wiring.seed or next(iter(edges), 0.0)
        self.handed_over: dict[Source | str, str] = {}

    def tap(self, tap: int | Constant | Outside | str) -> Term:
        if isinstance(tap, Constant):
            return term(tap.value)
        return symbol(_Leaf(self.wiring.reads[tap] if isinstance(tap, int) else tap))

    def outputs(self) -> dict[str, Term]:
        made: Any = _STATE
        if self.recurrence.outputs is not None:
            made = self.finite.bound(self.recurrence.outputs)(*map(self.tap, self.wiring.outputs))
        return dict(zip(self.recurrence.output_names, map(term, made if isinstance(made, tuple) else (made,)), strict=True))

    def adjoint(self) -> Adjoint:
        alpha, beta = map(term, self.finite.bound(self.recurrence.coefficients)(*map(self.tap, self.wiring.coefficients)))
        outputs, beyond = self.outputs(), symbol(_Leaf(STATE_BEYOND))

        of_outputs = pulled_back([(outputs[name], symbol(_Leaf(incoming(name)))) for name in self.given])
        nothing = term(0.0)
        of_state, of_beyond = of_outputs.get(_STATE, nothing), of_outputs.get(beyond, nothing)
        z = symbol(_Leaf("z")) if not is_zero(of_state) or not is_zero(of_beyond) else nothing
        of_coefficients = pulled_back([(alpha, z), (beta, z * self.tap(STATE_BEYOND))])

        steps: dict[str, Term] = {}
        rows: dict[str, Term] = {}

        def flows(to: dict[str, Term], name: str, gradient: Term) -> None:
            if not is_zero(gradient):
                to[name] = to.get(name, nothing) + gradient

        for read in self.wiring.reads:
            if self.arguments[read.source].flag or read.at == "number":
                continue
            one = symbol(_Leaf(read))
            gradient = of_outputs.get(one, nothing) + of_coefficients.get(one, nothing)
            if read.at == "actions":
                if self.wanted & {read.source, read.edge}:
                    flows(steps, read.source, gradient)
                continue
            if read.source in self.wanted:
                if self.masked and read.at in ("following", "preceding"):
                    # a step that is none has a gradient then
                    raise _NotReadError
                flows(steps, read.source, gradient if read.at in ("step", "row") else self.before(gradient))
            if read.edge in self.wanted:
                at_the_end = self.last_stored(gradient) if read.at in ("following", "preceding") else self.last(gradient)
                flows(rows, read.edge, at_the_end)
        if self.wiring.seed in self.wanted:
            flows(rows, self.wiring.seed, self.last(self.finite.bound(coefficients.step)(of_beyond, beta, z)))
        return self.declared((of_state + self.before(of_beyond), self.before(beta)), steps, rows, (alpha, beta), self.valid(beta))

    def valid(self, beta: Term) -> Term:
        """Whether a step is a transition. Where that is derived, a step that is none stands behind an episode's end, over which nothing may flow: then z
        begins anew there, and whether the step before was a transition need not be known."""
        if self.wiring.validity != "derived":
            return term(True)
        for tap in self.wiring.valid_taps:
            if isinstance(tap, int):
                flag = symbol(_Leaf(Read(self.wiring.reads[tap].source)))
                if not is_zero(with_symbols(beta, lambda own, flag=flag: term(True) if own is flag else own)):
                    raise _NotReadError
        return term(self.finite.bound(coefficients.not_a_reset)(*map(self.tap, self.wiring.valid_taps)))

    def before(self, one: Term) -> Term:
        """The same of the step before, in the order of the adjoint's scan; where there is none, it is made of 0."""

        def leaf(own: Term) -> Term:
            source = own.of[0].source
            # the scan's first step lies beyond what is stored, and has no step of the window before it
            return term(False) if isinstance(source, Outside) else symbol(_Leaf(source, "before"))

        moved = with_symbols(one, leaf)
        if any(part.operation == "/" for part in in_order([moved])):
            # by which a quotient is infinite
            return Terms.where(symbol(_Leaf(Outside("previous" if self.backward else "next"))), 0.0, moved)
        return moved

    def last(self, one: Term) -> Term:
        """What is found at the scan's last step, of the last one that is valid."""
        if not self.masked:
            return one
        # behind either lies nothing
        here = self.at_the_end(one)
        return Terms.where(symbol(_Leaf(Read("valid"))), here, with_symbols(here, lambda own: symbol(_Leaf(own.of[0].source, "last"))))

    def last_stored(self, one: Term) -> Term:
        """What is found at the scan's last step, whose neighbour in memory is what lies outside; nothing where that step is none."""
        return Terms.where(symbol(_Leaf(Read("valid"))), self.at_the_end(one), 0.0) if self.masked else one

    def at_the_end(self, one: Term) -> Term:
        """The same, where nothing lies behind."""
        return with_symbols(one, lambda own: term(True) if isinstance(own.of[0].source, Outside) else own)

    def declared(self, of_z: tuple[Term, Term], steps: Mapping[str, Term], rows: Mapping[str, Term], of_states: tuple[Term, Term], valid: Term) -> Adjoint:
        name, frame = self.recurrence.name, self.recurrence.frame
        came_in = [dataclasses.replace(frame, name=incoming(output), default=None, logarithm=False) for output in self.given]
        places = _Places(self.read)
        of_z = (self.as_told(of_z[0]), self.as_told(of_z[1]))
        steps, rows = ({name: self.as_told(one) for name, one in some.items()} for some in (steps, rows))
        last_only = tuple(map(of_rows, rows))
        made_of = [Terms.where(valid, one, 0.0) for one in (of_z[0], self.finite.number(of_z[1]))]
        functions = places.function(f"{name}_adjoint", made_of), places.function(f"{name}_adjoint_outputs", (*steps.values(), *rows.values()))
        if any(isinstance(source, Read) and source.source == STATES for _, (source,) in places.taps):
            self.handed_over[STATE] = STATES
        arrays = [dataclasses.replace(frame, name=one, default=None, logarithm=False, flag=self.is_flag(source)) for source, one in self.handed_over.items()]
        recurrence = dataclasses.replace(
            self.recurrence,
            name=f"{name}_adjoint",
            title=f"The adjoint of {name}.",
            direction="forward" if self.backward else "backward",
            coefficients=functions[0],
            outputs=functions[1],
            arguments=(*self.recurrence.arguments, *came_in, *arrays),
            output_names=(*map(of_steps, steps), *last_only),
            last_only=last_only,
            result=None,
            seed=None,
            extra_taps=places.taps,
        )
        if self.told:
            return Adjoint(recurrence, None, self.told.result if self.handed_over else None, tuple(steps), tuple(rows))
        return Adjoint(recurrence, self.states(*of_states) if self.handed_over else None, None, tuple(steps), tuple(rows))

    def states(self, alpha: Term, beta: Term) -> Recurrence:
        """What gives y, and what else is handed over: what it finds at the nearest valid step on its side."""
        name, places = self.recurrence.name, _Places(lambda leaf: (self.given_as_before(leaf.source), self.value(leaf)))
        function = places.function(f"{name}_states", [self.finite.number(alpha), self.finite.number(beta)])
        handed = {one: symbol(_Leaf(source)) for source, one in self.handed_over.items()}
        outputs = None
        if list(handed) != [STATES]:
            numbers = [Terms.where(one, 1.0, 0.0) if self.is_flag(one.of[0].source) else one for one in handed.values()]
            outputs = places.function(f"{name}_handed_over", numbers)
        return dataclasses.replace(
            self.recurrence, coefficients=function, outputs=outputs, output_names=tuple(handed), last_only=(), result=None, extra_taps=places.taps
        )

    def is_flag(self, source: Source | str) -> bool:
        return isinstance(source, Outside) or (isinstance(source, Read) and self.arguments[source.source].flag)

    def as_told(self, one: Term) -> Term:
        """The same, in which y is what the result tells."""
        if not self.told or not self.told.added:
            return one
        added = {STATE: Read(self.told.added), STATE_BEYOND: Read(self.told.added, self.future, edge=self.edge)}

        def told(own: Term) -> Term:
            leaf = own.of[0]
            if leaf.source not in (STATE, STATE_BEYOND):
                return own
            # a state of which that is not known is 0
            return Terms.where(Terms.abs(own) < INFINITE[self.finite.dtype], own - symbol(_Leaf(added[leaf.source], leaf.at)), 0.0)

        return with_symbols(one, told)

    def read(self, leaf: _Leaf) -> tuple[Source | str, Callable[[Term], Term]]:
        """Where the adjoint reads what a symbol stands for, and what makes it finite."""
        return self.place(leaf), self.value(leaf)

    def value(self, leaf: _Leaf) -> Callable[[Term], Term]:
        source = leaf.source
        if source in (STATE, STATE_BEYOND):
            return (lambda x: x) if self.told and self.told.added else self.finite.number
        if isinstance(source, Read) and source.at != "number":
            return lambda x: self.finite.given(x, self.arguments[source.source])
        return lambda x: x

    def place(self, leaf: _Leaf) -> Source | str:
        source, here = leaf.source, leaf.at == "step"
        if source == "z":
            # a step that is not valid has that of the last one that is
            return STATE_BEYOND if leaf.at == "before" else STATE
        if self.masked and here and (source == STATE_BEYOND or (isinstance(source, Read | Outside) and source.at == self.future)):
            # a scan looks for the nearest valid step on one side, and this one on the other
            return Read(self.handed_over.setdefault(source, f"handed_over_{len(self.handed_over)}"))
        if source == STATE_BEYOND:
            source = Read(STATES, self.future, edge=self.edge)
        elif isinstance(source, str):
            source = Read(STATES if source == STATE else source)
        if not isinstance(source, Read):
            if self.masked and isinstance(source, Outside):
                raise _NotReadError
            return source
        if source.at == self.future and leaf.at == "last":
            # behind the last valid step there is none
            return Read(source.edge, "row") if isinstance(source.edge, str) else Constant(source.edge or 0.0)
        if source.at in ("row", "number") or (here and source.at in ("step", "actions")):
            return self.given_as_before(source)
        if source.at == "step":
            return Read(source.source, self.past, edge=False if source.source in self.arguments and self.arguments[source.source].flag else 0.0)
        if source.at == self.future and leaf.at == "before":
            return Read(source.source)
        if not here:
            raise _NotReadError
        return source

    def given_as_before(self, source: Source | str) -> Source | str:
        """Whether a number is read as one is for `wire` to say, by what is given then."""
        return Read(source.source) if isinstance(source, Read) and source.at == "number" else source


class _Places:
    """The taps of a recurrence that is made, each under one name."""

    def __init__(self, read: Callable[[_Leaf], tuple[Any, Callable[[Term], Term]]]) -> None:
        self.read = read
        self.names: dict[Source | str, str] = {}

    def function(self, name: str, results: Sequence[Term]) -> Callable[..., Any]:
        """A function of taps that gives these."""

        def value(own: Term) -> Term:
            place, finite = self.read(own.of[0])
            return finite(symbol(place))

        made = tuple(with_symbols(one, value) for one in results)
        own = [(self.names.setdefault(one.of[0], one.of[0] if isinstance(one.of[0], str) else f"tap{len(self.names)}"), one) for one in symbols(made)]
        return function_of(name, tuple(own), made)

    @property
    def taps(self) -> tuple[tuple[str, tuple[Source]], ...]:
        return tuple((name, (place,)) for place, name in self.names.items() if not isinstance(place, str))
