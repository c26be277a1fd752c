"""Public functions made from declarations: real signatures, so that help, editors and error messages know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rlscan.spec.arguments import OUT
from rlscan.spec.recurrences import Recurrence


def signature(recurrence: Recurrence, out: bool = False) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY if argument.keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default,
        )
        for argument in (*recurrence.arguments, *[OUT] * out)
    ]
    return inspect.Signature(parameters)


def public_function(recurrence: Recurrence, run: Callable[..., Any], module: str, array: str = "numpy.ndarray", out: bool = False) -> Callable[..., Any]:
    """The function `recurrence.name`, which calls `run(recurrence, arguments)`, or `run(recurrence, arguments, out)`.

    It is compiled from its signature, as dataclasses are, because binding arguments by `inspect` on each call costs
    more than the whole launch.
    """
    from rlscan.spec.docstrings import docstring

    names = ", ".join(f"{name!r}: {name}" for name in recurrence.argument_names)
    source = f"def {recurrence.name}{signature(recurrence, out)}:\n    return _run(_recurrence, {{{names}}}{', out' * out})\n"
    namespace: dict[str, Any] = {"_run": run, "_recurrence": recurrence}
    exec(compile(source, f"<rlscan {recurrence.name}>", "exec"), namespace)
    function = namespace[recurrence.name]
    function.__module__, function.__qualname__, function.__doc__ = module, recurrence.name, docstring(recurrence, array, out)
    function.recurrence = recurrence
    return function
