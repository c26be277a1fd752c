"""Every wrong use of every argument is refused, with the argument's name, and in the same words whatever the framework."""

import contextlib
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlscan.crosscheck.draw import FLAG_DTYPES, draw, variants
from rlscan.spec import reference
from rlscan.spec.arguments import REQUIRED
from rlscan.spec.calls import check
from rlscan.spec.recurrences import RECURRENCES

# No two sizes are equal, so that a transposed array has a wrong shape.
ROWS, STEPS, ACTIONS = 3, 5, 4


@dataclasses.dataclass(frozen=True)
class Framework:
    """A module with the public functions, and how it is given arrays."""

    name: str
    array_name: str
    module: Any
    convert: Callable[[np.ndarray], Any]
    context: Callable[[], Any] = contextlib.nullcontext

    def call(self, recurrence, arguments):
        converted = {name: self.convert(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        return getattr(self.module, recurrence.name)(**converted)

    def refusal(self, recurrence, arguments) -> Exception | None:
        """What is raised, if anything is."""
        with self.context():
            try:
                self.call(recurrence, arguments)
            except Exception as error:
                return error
        return None


def frameworks() -> dict[str, Framework]:
    found = {"reference": Framework("reference", "numpy.ndarray", reference, lambda x: x)}
    with contextlib.suppress(ImportError):
        torch = importlib.import_module("torch")
        found["torch"] = Framework("torch", "torch.Tensor", importlib.import_module("rlscan.torch_triton"), torch.from_numpy)
    with contextlib.suppress(ImportError):
        jax = importlib.import_module("jax")
        # float64 must stay what it is to be refused.
        wide = jax.enable_x64 if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental").enable_x64
        found["jax"] = Framework("jax", "jax.Array", importlib.import_module("rlscan.jax_pallas"), jax.numpy.asarray, lambda: wide(True))
    return found


FRAMEWORKS = frameworks()
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One wrong call: the argument to be named, and words that must be in the message."""

    op: str
    argument: str
    id: str
    arguments: dict[str, Any]
    error: type[Exception]
    words: str

    def __str__(self):
        return f"{self.op}-{self.argument}-{self.id}"


def good(recurrence, *given: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Arguments that are right, and have those named."""
    fitting = [variant for variant in variants(recurrence) if variant.gives(*given) and not any(map(variant.gives, without))]
    return draw(recurrence, min(fitting, key=lambda variant: len(variant.given)), (ROWS, STEPS), actions=ACTIONS, seed=1)


def wrong_arrays(recurrence, argument) -> Iterator[tuple[str, Any, type[Exception], str]]:
    """What an argument that is an array must not be."""
    right = good(recurrence, *([] if argument.default is REQUIRED else [argument.name]))[argument.name]
    is_frame = argument.name == recurrence.frame.name
    yield "a list", right.tolist(), TypeError, r"is a builtins.list; wanted a \S+$"
    yield "a number", 1.0, TypeError, "is a builtins.float; wanted"
    yield "a string", "values", TypeError, "is a builtins.str; wanted"
    yield "complex", right.astype(np.complex64), TypeError, "is complex64; wanted"
    if not argument.flag:
        floats = r"float16, bfloat16, float32, float64; convert it \(nothing is cast silently\)$"
        yield "of integers", right.astype(np.int32), TypeError, f"is int32; wanted one of {floats}"
        yield "of flags", right > 0, TypeError, "is bool; wanted"
    if not argument.flag and not is_frame:
        yield "wider", right.astype(np.float64), TypeError, f"is float64 and {recurrence.frame.name} is float32; wanted all float64 or none"
    if is_frame:
        yield "without axes", np.zeros((), np.float32), ValueError, "has no axes"
        return
    wanted = r"; wanted|which does not broadcast|has more axes"
    yield "with one step", right[:, :1] if right.ndim > 1 else right[:1], ValueError, wanted
    yield "with a step more", np.concatenate([right, right[:, :1]], 1) if right.ndim > 1 else np.append(right, right[:1]), ValueError, wanted
    yield "with one row", right[:1] if right.ndim > 1 else right[None], ValueError, wanted
    yield "with an axis more", right[..., None], ValueError, wanted
    yield "without axes", np.zeros((), right.dtype), ValueError, wanted
    if right.ndim == 2:
        yield "transposed", np.ascontiguousarray(right.T), ValueError, wanted


def wrong_parameters(recurrence, argument) -> Iterator[tuple[str, Any, type[Exception], str]]:
    yield "a list", [0.5, 0.5], TypeError, "is a builtins.list; wanted"
    yield "a flag", True, TypeError, "is a builtins.bool; wanted"
    yield "a string", "0.5", TypeError, "is a builtins.str; wanted"
    yield "complex", 0.5 + 0j, TypeError, "is a builtins.complex; wanted"
    yield "None", None, TypeError, "was None; wanted" if argument.default is not REQUIRED else "is required, and was None; wanted"
    yield "of integers", np.ones((ROWS, STEPS), np.int64), TypeError, "is int64; wanted one of"
    yield "a 0-d array of integers", np.ones((), np.int32), TypeError, "is int32; wanted one of"
    yield "wider", np.ones((ROWS, STEPS), np.float64), TypeError, "is float64 and .* is float32"
    wanted = r"; wanted|which does not broadcast"
    yield "with a step too few", np.ones((ROWS, STEPS - 1), np.float32), ValueError, wanted
    yield "with a row too few", np.ones((ROWS - 1, 1), np.float32), ValueError, wanted
    yield "with an axis more", np.ones((1, ROWS, STEPS), np.float32), ValueError, wanted
    yield "by row without a time axis", np.ones(ROWS, np.float32), ValueError, wanted
    if argument.low is None:
        yield "with one step", np.ones((ROWS, 1), np.float32), ValueError, wanted
        yield "with one row", np.ones((1, STEPS), np.float32), ValueError, wanted
        return
    for number in (-0.01, 1.01, float("nan"), float("inf"), -float("inf"), 2):
        yield f"{number}", number, ValueError, re.escape(f"is {float(number)!r}; wanted a number in [0, 1] or a")


def wrong_numbers(recurrence, argument) -> Iterator[tuple[str, Any, type[Exception], str]]:
    yield "a list", [1.0], TypeError, "is a builtins.list; wanted a number >= 0 or None"
    yield "a flag", True, TypeError, "is a builtins.bool; wanted a number >= 0 or None"
    yield "a string", "1", TypeError, "is a builtins.str; wanted a number >= 0 or None"
    yield "complex", 1j, TypeError, "is a builtins.complex; wanted a number >= 0 or None"
    yield "an array", np.ones((), np.float32), TypeError, "is a numpy.ndarray; wanted a number >= 0 or None"
    for number in (-1, -0.5, float("nan"), -float("inf")):
        yield f"{number}", number, ValueError, re.escape(f"is {float(number)!r}; wanted a number >= 0 or None")


def wrong_options(recurrence, argument) -> Iterator[tuple[str, Any, type[Exception], str]]:
    if argument.name == "time_axis":
        for axis in (2, -3, 10**9):
            yield f"{axis}", axis, ValueError, rf"is {axis}; wanted an axis of \w+, whose shape is \({ROWS}, {STEPS}\)"
        for axis in (1.0, True, "0", (0,), np.float32(0)):
            yield f"{axis!r}", axis, TypeError, re.escape(f"is {axis!r}; wanted an integer")
        yield "an array", np.zeros((), np.int32), TypeError, "is a numpy.ndarray; wanted an integer"
        yield "None", None, TypeError, "was None; wanted an integer"
        return
    for choice in ("sometimes", "", 1, 0, 1.0, ["next_step"]) + ((True,) if argument.name == "autoreset" else ("True",)):
        yield f"{choice!r}", choice, ValueError, re.escape(f"is {choice!r}; wanted one of {argument.choices}")
    yield "an array", np.ones((), bool), TypeError, re.escape(f"is a numpy.ndarray; wanted one of {argument.choices}")


def each_wrong_value() -> Iterator[Fault]:
    for recurrence in RECURRENCES.values():
        for argument in recurrence.arguments:
            kinds = {"parameter": wrong_parameters, "number": wrong_numbers, "option": wrong_options}
            needed = [argument.name] if argument.default is None and argument.shape not in ("number", "option") else []
            base = good(recurrence, *needed)
            for id, value, error, words in kinds.get(argument.shape, wrong_arrays)(recurrence, argument):
                # Where flags say which axes are not features, it is they that do not fit.
                named = "terminated" if argument.shape == "inputs" and words == "has no axes" else argument.name
                words = "has more axes than inputs" if named != argument.name else words
                yield Fault(recurrence.name, named, f"{argument.name} {id}" if named != argument.name else id, base | {argument.name: value}, error, words)
            if argument.default is REQUIRED and argument.shape != "parameter":
                yield Fault(recurrence.name, argument.name, "None", base | {argument.name: None}, TypeError, "is required, and was None; wanted a")


def each_wrong_combination() -> Iterator[Fault]:
    def fault(op: str, argument: str, id: str, arguments: dict[str, Any], words: str) -> Fault:
        return Fault(op, argument, id, arguments, ValueError, words)

    for op in ("gae", "vtrace", "lambda_returns", "discounted_returns"):
        recurrence = RECURRENCES[op]
        explicit = good(recurrence, "next_values", without=("truncated",))
        window = good(recurrence, "bootstrap_value", "values", without=("truncated",)) if op.endswith("returns") else good(recurrence, "bootstrap_value")
        window.pop("truncated", None)
        window.pop("final_values", None)
        flags = np.zeros((ROWS, STEPS), bool)
        row, steps = np.zeros(ROWS, np.float32), np.zeros((ROWS, STEPS), np.float32)
        nothing = {name: x for name, x in explicit.items() if name != "next_values"}
        if op != "discounted_returns":
            yield fault(op, "next_values", "or bootstrap missing", nothing, "or bootstrap_value must be given: V.* has no source")
        yield fault(op, "next_values", "missing where cut", nothing | {"truncated": flags}, "or bootstrap_value must be given")
        yield fault(op, "bootstrap_value", "doubled", explicit | {"bootstrap_value": row}, "was given beside next_values")
        yield fault(op, "final_values", "beside next_values", explicit | {"truncated": flags, "final_values": steps}, "was given beside next_values")
        yield fault(op, "final_values", "without bootstrap", nothing | {"truncated": flags, "final_values": steps}, "goes with bootstrap_value")
        yield fault(op, "final_values", "without truncated", window | {"final_values": steps}, "is read only where truncated, which was not given")
        yield fault(op, "truncated", "without its values", window | {"truncated": flags}, "needs the values of the states it cut off at: pass final_values")
        yield fault(op, "truncated", "in the same step", window | {"truncated": flags, "autoreset": "same_step"}, "needs the values of the states")
        doubled = window | {"truncated": flags, "final_values": steps, "autoreset": "next_step"}
        yield fault(op, "final_values", "beside next-step autoreset", doubled, "was given beside autoreset='next_step'")
        if op.endswith("returns"):
            yield fault(op, "values", "beside next_values", explicit | {"values": steps}, "was given beside next_values")
            cut = explicit | {"values": steps, "truncated": flags, "autoreset": "next_step"}
            yield fault(op, "values", "beside next_values after a reset", cut, "was given beside next_values")
            bare = {name: x for name, x in window.items() if name != "values"} | {"truncated": flags, "autoreset": "next_step"}
            yield fault(op, "values", "missing after a reset", bare, "must be given with bootstrap_value")
    bare = {name: x for name, x in window.items() if name != "values"} | {"lam": 0.5}
    yield fault("lambda_returns", "values", "missing", bare, "must be given with bootstrap_value")
    # the successors of all steps but the last would be told, and lost
    no_end = {name: x for name, x in window.items() if name != "bootstrap_value"}
    yield fault("discounted_returns", "values", "without bootstrap", no_end, "goes with bootstrap_value, which was not given; pass bootstrap_value too")

    retrace = RECURRENCES["retrace"]
    expected, summed = good(retrace, "expected_next_q"), good(retrace, "next_q_values", "next_policy")
    neither = {name: x for name, x in expected.items() if name != "expected_next_q"}
    choice = r"or both next_q_values and next_policy must be given, and not all three; given: "
    yield fault("retrace", "expected_next_q", "nothing", neither, choice + "none$")
    for name in ("next_q_values", "next_policy"):
        yield fault("retrace", "expected_next_q", f"{name} alone", neither | {name: summed[name]}, choice + f"{name}$")
        yield fault("retrace", "expected_next_q", f"and {name}", expected | {name: summed[name]}, choice + f"expected_next_q, {name}$")
        yield fault("retrace", name, "no actions", summed | {name: summed[name][..., :0]}, "and an axis of at least one action behind it")
        yield fault("retrace", "next_policy", f"or {name} of other actions", summed | {name: summed[name][..., 1:]}, "wanted the shape of next_")
        yield fault("retrace", name, "actions first", summed | {name: np.moveaxis(summed[name], -1, 0).copy()}, "and an axis of at least one action")
        yield fault("retrace", name, "no action axis", summed | {name: summed[name][..., 0]}, "and an axis of at least one action behind it")
    yield fault("retrace", "expected_next_q", "all three", summed | {"expected_next_q": expected["expected_next_q"]}, choice + "expected_next_q, next_q")

    sums = RECURRENCES["episodic_prefix_sum"]
    starts, ends = good(sums, "starts", without=("terminated", "truncated")), good(sums, "terminated", "truncated")
    either = r"or terminated \(and truncated\) must be given, and not both; given: "
    for names in (("terminated",), ("truncated",), ("terminated", "truncated")):
        both = starts | {name: ends[name] for name in names}
        yield fault("episodic_prefix_sum", "starts", f"and {' and '.join(names)}", both, either + "starts, " + ", ".join(names))
    yield fault("episodic_prefix_sum", "starts", "nothing", {name: x for name, x in starts.items() if name != "starts"}, either + "none$")

    traces = good(RECURRENCES["eligibility_traces"], "initial")
    wide = traces | {"inputs": np.zeros((ROWS, STEPS, 2), np.float32)}
    yield fault("eligibility_traces", "initial", "without features", wide, rf"has shape \({ROWS},\); wanted \({ROWS}, 2\)")
    features_first = traces | {"inputs": np.zeros((2, ROWS, STEPS), np.float32)}
    yield fault("eligibility_traces", "terminated", "not the first axes", features_first, "wanted the first 2 axes of the shape of inputs")
    vector = traces | {"inputs": np.zeros(STEPS, np.float32)}
    yield fault("eligibility_traces", "terminated", "more axes than inputs", vector, "which has more axes than inputs")


FAULTS = [*each_wrong_value(), *each_wrong_combination()]


def test_every_argument_of_every_function_is_used_wrongly():
    wrong = {(fault.op, fault.argument) for fault in FAULTS}
    assert wrong == {(recurrence.name, name) for recurrence in RECURRENCES.values() for name in recurrence.argument_names}
    assert len({str(fault) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_wrong_call_is_refused_in_the_same_words_everywhere(fault):
    refusals = {}
    for framework in FRAMEWORKS.values():
        error = framework.refusal(RECURRENCES[fault.op], fault.arguments)
        assert type(error) is fault.error, f"{framework.name}: {error!r}"
        refusals[framework.name] = str(error).replace(framework.array_name, "array")
    assert len(set(refusals.values())) == 1, refusals
    assert re.match(rf"{fault.op}: {fault.argument} (.*)", refusals["reference"]), refusals["reference"]
    # Words are those before array types were made alike.
    assert re.search(fault.words, str(FRAMEWORKS["reference"].refusal(RECURRENCES[fault.op], fault.arguments))), refusals["reference"]


@each_framework
@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_what_is_right_is_not_refused(framework, recurrence):
    """The other half of a test of refusals: all legal combinations, each parameter at its ends, flags of every dtype."""
    every = variants(recurrence)
    # JAX compiles anew for each.
    for number, variant in enumerate({"reference": every, "torch": every[::5], "jax": every[-1:]}[framework.name]):
        arguments = draw(recurrence, variant, (ROWS, STEPS), actions=ACTIONS, flag_dtype=FLAG_DTYPES[number % len(FLAG_DTYPES)])
        assert framework.refusal(recurrence, arguments) is None, variant
    ends = {"gamma": (0, 1, 0.0, 1.0, np.float32(0.5), np.float64(0.5), np.int64(1)), "lam": (0, 1)}
    bars = dict.fromkeys(("rho_bar", "c_bar", "pg_rho_bar"), (None, 0, 0.0, 2, float("inf"), np.float32(1)))
    arguments = good(recurrence)
    for name, numbers in (ends | bars).items():
        for number in numbers if name in arguments or name in recurrence.argument_names else ():
            assert framework.refusal(recurrence, arguments | {name: number}) is None, (name, number)
    for axis in (-1, 1, np.int64(1)):
        assert framework.refusal(recurrence, arguments | {"time_axis": axis}) is None
    if "gamma" in arguments:
        # A 0-d array counts as a number: it may be wider.
        assert framework.refusal(recurrence, arguments | {"gamma": np.asarray(0.5, np.float64)}) is None


@each_framework
@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_signatures_are_enforced_by_python(framework, recurrence):
    function = getattr(framework.module, recurrence.name)
    arguments = good(recurrence)
    with framework.context():
        error = framework.refusal(recurrence, arguments | {"discount": 0.9})
        assert isinstance(error, TypeError)
        assert "unexpected keyword argument 'discount'" in str(error)
        for argument in recurrence.arguments:
            if argument.default is REQUIRED:
                error = framework.refusal(recurrence, {name: x for name, x in arguments.items() if name != argument.name})
                assert isinstance(error, TypeError)
                assert f"required {'keyword-only' if argument.keyword else 'positional'} argument: '{argument.name}'" in str(error)
        positional = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        with pytest.raises(TypeError, match="positional"):
            function(*range(len(positional) + 1))


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "reference"])
def test_arrays_of_another_library_are_refused(name):
    framework, recurrence = FRAMEWORKS[name], RECURRENCES["gae"]
    arguments = good(recurrence, "next_values")
    wanted = re.escape(f"gae: values is a numpy.ndarray; wanted a {framework.array_name}")
    with framework.context():
        converted = {name: framework.convert(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
        with pytest.raises(TypeError, match=wanted):
            framework.module.gae(**converted | {"values": arguments["values"]})
        with pytest.raises(TypeError, match=r"gae: values is a .*; wanted a numpy\.ndarray"):
            reference.gae(**arguments | {"values": converted["values"]})


@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_mixed_devices_are_refused(recurrence):
    torch = pytest.importorskip("torch")
    framework = FRAMEWORKS["torch"]
    arguments = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in good(recurrence).items()}
    frame = recurrence.frame.name
    for name in [name for name, x in arguments.items() if isinstance(x, torch.Tensor) and name != frame]:
        with pytest.raises(ValueError, match=f"^{recurrence.name}: {name} is on meta and {frame} is on cpu; wanted one device$"):
            getattr(framework.module, recurrence.name)(**arguments | {name: arguments[name].to("meta")})
    if "gamma" in arguments:
        with pytest.raises(ValueError, match="gamma is on meta"):
            getattr(framework.module, recurrence.name)(**arguments | {"gamma": torch.full((), 0.5, device="meta")})


def test_nothing_that_is_given_is_ignored():
    """Whatever is let through is read somewhere, but for what has to be given."""
    for recurrence in RECURRENCES.values():
        for variant in variants(recurrence):
            call = check(recurrence, draw(recurrence, variant, (ROWS, STEPS)), reference.NumPyArrays())
            reads = (*call.wiring.reads, *(call.wiring.reads[tap] for tap in call.wiring.valid_taps if isinstance(tap, int)))
            read = {name for one in reads for name in one.needs} | {call.wiring.seed}
            assert set(call.arrays) <= read, variant


@each_framework
def test_run_says_what_it_cannot_take(framework):
    gae = RECURRENCES["gae"]
    for arguments, kind in ((None, "NoneType"), ([], "list"), (1.0, "float")):
        with pytest.raises(TypeError, match=f"^gae: arguments is a {kind}; wanted a mapping from names to what is given$"):
            framework.module.run(gae, arguments)
    with pytest.raises(TypeError, match=r"^recurrence is a NoneType; wanted a rlscan"):
        framework.module.run(None, None)
    if framework.name != "reference":
        # what is missing comes first, everywhere
        with pytest.raises(TypeError, match=r"^gae: rewards is required, and was not given$"):
            framework.module.run(gae, {}, "foo")
        arguments = {name: framework.convert(x) if isinstance(x, np.ndarray) else x for name, x in good(gae).items()}
        with pytest.raises(ValueError, match=r"^method is 'foo'; wanted 'kernels', 'vectorised' or None$"):
            framework.module.run(gae, arguments, "foo")


SPARSE = "is in the layout torch.sparse_{}; wanted a dense (strided) torch.Tensor"
NESTED = "is nested; wanted a dense (strided) torch.Tensor"


@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta).*:UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch, x: x.to_sparse(), SPARSE.format("coo")),
        (lambda torch, x: torch.zeros(2, 3).to_sparse_csr(), SPARSE.format("csr")),
        (lambda torch, x: torch.nested.nested_tensor([x, x]), NESTED),
        (lambda torch, x: torch.nested.nested_tensor([x.reshape(-1)] * 2, layout=torch.jagged), NESTED),
        (lambda torch, x: torch.masked.masked_tensor(x, x > 0), "is a torch.masked.maskedtensor.core.MaskedTensor; wanted a"),
    ],
    ids=["sparse", "compressed", "nested", "jagged", "masked"],
)
def test_tensors_that_are_not_dense_are_refused(recurrence, make, words):
    torch = pytest.importorskip("torch")
    arguments = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in good(recurrence).items()}
    parameters = [argument.name for argument in recurrence.arguments if argument.shape == "parameter"]
    for name in [*(name for name, x in arguments.items() if isinstance(x, torch.Tensor)), *parameters]:
        of = arguments[name] if isinstance(arguments[name], torch.Tensor) else torch.ones(ROWS, STEPS)
        with pytest.raises(TypeError, match=f"^{recurrence.name}: {name} {re.escape(words)}"):
            getattr(FRAMEWORKS["torch"].module, recurrence.name)(**arguments | {name: make(torch, of)})


def test_what_must_be_static_is_named_under_jit():
    jax = pytest.importorskip("jax")
    module = FRAMEWORKS["jax"].module
    static = re.escape("; it is traced, and must be known when the program is compiled: mark it static (static_argnames)")
    for op, name, value, words in [
        *((op, "time_axis", -1, "is a jax.Array; wanted an integer") for op in RECURRENCES),
        ("gae", "autoreset", 0, r"is a jax.Array; wanted one of \(None, .*\)"),
        ("affine_scan", "reverse", True, r"is a jax.Array; wanted one of \(False, True\)"),
        *(("vtrace", bar, 1.0, "is a jax.Array; wanted a number >= 0 or None") for bar in ("rho_bar", "c_bar", "pg_rho_bar")),
        *(("gae", number, 1, "is int32; wanted one of float16, bfloat16, float32, float64") for number in ("gamma", "lam")),
        ("affine_scan", "factor", 1, "is int32; wanted one of float16, bfloat16, float32, float64"),
    ]:
        arguments = {other: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for other, x in good(RECURRENCES[op]).items()}
        function = jax.jit(lambda x, op=op, name=name, arguments=arguments: getattr(module, op)(**arguments | {name: x}))
        floats = "; a number that is traced is an array of its type: pass a float" if "float16" in words else ""
        with pytest.raises(TypeError, match=rf"^{op}: {name} {words}{floats or static}(\n|$)"):  # JAX adds lines of its own
            function(value)
        if floats:
            function(float(value))


@each_framework
def test_messages_in_full(framework):
    """What a caller reads: the function, the argument, what it is, what it should be, and what to do."""

    def message(op, **changes):
        arguments = {
            "rewards": np.zeros((3, 5), np.float32),
            "values": np.zeros((3, 5), np.float32),
            "terminated": np.zeros((3, 5), bool),
            "bootstrap_value": np.zeros(3, np.float32),
        }
        error = framework.refusal(RECURRENCES[op], arguments | changes)
        return f"{type(error).__name__}: {error}".replace(framework.array_name, "ARRAY")

    assert message("gae", values=np.zeros((3, 1), np.float32)) == "ValueError: gae: values has shape (3, 1); wanted the shape of rewards, (3, 5)"
    assert message("gae", rewards=[[0.0]]) == "TypeError: gae: rewards is a builtins.list; wanted a ARRAY"
    assert message("gae", gamma=1.5) == "ValueError: gae: gamma is 1.5; wanted a number in [0, 1] or a ARRAY"
    assert message("gae", bootstrap_value=np.zeros((3, 1), np.float32)) == (
        "ValueError: gae: bootstrap_value has shape (3, 1); wanted (3,), the shape of rewards without its time axis"
    )
    assert message("lambda_returns", truncated=np.zeros((3, 5), bool)) == (
        "ValueError: lambda_returns: truncated needs the values of the states it cut off at: pass final_values (V of the final observation, read where "
        "truncated), or next_values instead of bootstrap_value, or autoreset='next_step' if the row after an ending step holds the final observation"
    )
    assert message("gae", time_axis=2) == "ValueError: gae: time_axis is 2; wanted an axis of rewards, whose shape is (3, 5)"
    assert message("gae", values=np.zeros((3, 5), np.float64)) == (
        "TypeError: gae: values is float64 and rewards is float32; wanted all float64 or none (nothing is cast silently)"
    )
