"""One coefficient function, any array library."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any


def _as_it_is(function: Callable) -> Callable:
    return function


def bind(
    function: Callable, xp: Any, array_type: Any, wrap: Callable[[Callable], Any] = _as_it_is, replace: Mapping[Callable, Callable] = types.MappingProxyType({})
) -> Any:
    """`function` with its `xp`, its annotations' `Array` and its helpers taken from another array library.

    The copy shares the code object, so that its source is found where Triton looks for it, and the original keeps
    NumPy. `wrap` is applied to the copy and to each helper (`triton.jit`). `replace` puts other functions in the place
    of helpers, which is how the crosscheck breaks one rule at a time.
    """
    return _bind(function, xp, array_type, wrap, tuple(replace.items()))


@functools.cache
def _bind(function: Callable, xp: Any, array_type: Any, wrap: Callable[[Callable], Any], replace: tuple[tuple[Callable, Callable], ...]) -> Any:
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"bind: wanted a plain function, got {function!r}")
    # by code, which copies share, so that a copy can be bound again
    function = next((other for one, other in replace if one.__code__ is function.__code__), function)
    names: dict[str, Any] = {"__name__": function.__module__, "__builtins__": __builtins__, "xp": xp, "Array": array_type}
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType):
            names[name] = _bind(helper, xp, array_type, wrap, replace)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__annotations__, copy.__doc__, copy.__module__, copy.__qualname__ = (
        function.__annotations__,
        function.__doc__,
        function.__module__,
        function.__qualname__,
    )
    return wrap(copy)
