"""Public functions made from declarations: real signatures, so that help, editors and error messages know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rlscan.spec.recurrences import Recurrence


def signature(recurrence: Recurrence) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY if argument.keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default,
        )
        for argument in recurrence.arguments
    ]
    return inspect.Signature(parameters)


def public_function(
    recurrence: Recurrence, run: Callable[[Recurrence, Mapping[str, Any]], Any], module: str, array: str = "numpy.ndarray"
) -> Callable[..., Any]:
    """The function `recurrence.name`, which calls `run(recurrence, arguments)`.

    It is compiled from its signature, as dataclasses are, because binding arguments by `inspect` on each call costs
    more than the whole launch.
    """
    from rlscan.spec.docstrings import docstring

    names = ", ".join(f"{name!r}: {name}" for name in recurrence.argument_names)
    source = f"def {recurrence.name}{signature(recurrence)}:\n    return _run(_recurrence, {{{names}}})\n"
    namespace: dict[str, Any] = {"_run": run, "_recurrence": recurrence}
    exec(compile(source, f"<rlscan {recurrence.name}>", "exec"), namespace)
    function = namespace[recurrence.name]
    function.__module__, function.__qualname__, function.__doc__ = module, recurrence.name, docstring(recurrence, array)
    function.recurrence = recurrence
    return function
