"""What is checked where JAX has several devices: `python devices.py`, with eight of the host's. `test_sharding.py` starts it."""

import contextlib
import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rlscan import jax_pallas
from rlscan.crosscheck.draw import draw, exact, variants
from rlscan.crosscheck.scenarios import covering
from rlscan.jax_pallas import launch
from rlscan.jax_pallas.arrays import Arrays
from rlscan.jax_pallas.vectorised import by_whole_arrays, differentiable
from rlscan.spec import reference
from rlscan.spec.calls import check, complete
from rlscan.spec.recurrences import RECURRENCES

COLLECTIVES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter|ragged-all-to-all")
DEVICES, STEPS = 8, 4
# As many rows as are turned at a time on a CPU, and twice as many and some.
FEW, MANY = 16, 8 * 17
LAYOUTS = {"batch-major": ((FEW, STEPS), -1, 0), "time-major": ((STEPS, FEW), 0, 1), "many": ((MANY, STEPS), -1, 0)}


def mesh_of(kind: AxisType) -> Mesh:
    return Mesh(np.array(jax.devices()), ("rows",), axis_types=(kind,))


def spec_of(recurrence, name: str, x: np.ndarray, frame: tuple[int, ...], row: int) -> PartitionSpec:
    """Of an argument, where this axis of the frame is sharded."""
    shape = next(argument.shape for argument in recurrence.arguments if argument.name == name)
    own = 0 if shape == "row" else row - (len(frame) - x.ndim) if shape == "parameter" else row
    whole = 0 <= own < x.ndim and x.shape[own] == frame[row]
    return PartitionSpec(*("rows" if whole and axis == own else None for axis in range(x.ndim)))


def results(made: Any) -> tuple[Any, ...]:
    return tuple(made) if isinstance(made, tuple) else (made,)


def has_collectives(compiled: Any) -> list[str]:
    return sorted(set(COLLECTIVES.findall(compiled.as_text())))


def calls(layout: str):
    """One of each operation, with most of what it can be given; where there are many rows, of one operation, for all turn them alike."""
    frame, time, row = LAYOUTS[layout]
    for recurrence in [RECURRENCES["gae"]] if layout == "many" else RECURRENCES.values():
        variant = covering(variants(recurrence, ("per row", "number")))[0]
        yield recurrence, exact(recurrence, draw(recurrence, variant, frame, time)), frame, row


def check_calls(kind: AxisType, layout: str, method: Any, with_gradients: bool) -> None:
    """Every operation and its gradients: the numbers of one device, laid out as the rows are, by a program without a collective."""
    mesh = mesh_of(kind)
    for recurrence, arguments, frame, row in calls(layout):
        specs = {name: NamedSharding(mesh, spec_of(recurrence, name, x, frame, row)) for name, x in arguments.items() if isinstance(x, np.ndarray)}
        others = {name: x for name, x in arguments.items() if name not in specs}
        floats = [name for name in specs if arguments[name].dtype == np.float32]

        def both(arrays, weights, recurrence=recurrence, others=others, floats=floats):
            def values(some):
                return results(jax_pallas.run(recurrence, {**arrays, **some, **others}, method))

            if not with_gradients:
                return values({}), {}
            made, pull_back = jax.vjp(values, {name: arrays[name] for name in floats})
            return made, pull_back(weights)[0]

        arrays = {name: jax.device_put(arguments[name], specs[name]) for name in specs}
        wanted = results(getattr(reference, recurrence.name)(**arguments))
        rows = NamedSharding(mesh, PartitionSpec(*("rows" if axis == row else None for axis in range(len(frame)))))
        weights = tuple((np.arange(x.size).reshape(x.shape) % 3).astype(np.float32) for x in wanted)
        given = arrays, tuple(jax.device_put(x, rows) for x in weights)
        compiled = jax.jit(both).lower(*given).compile()
        what = recurrence.name, kind, layout, method
        assert not has_collectives(compiled), (*what, has_collectives(compiled))
        made, found = compiled(*given)
        for one, other in zip(made, wanted, strict=True):
            assert one.sharding.is_equivalent_to(rows, one.ndim), (*what, one.sharding)
            np.testing.assert_array_equal(one, other, err_msg=str(what))
        if with_gradients:
            alone = jax.jit(both)({name: jnp.asarray(arguments[name]) for name in specs}, tuple(map(jnp.asarray, weights)))[1]
            for name in floats:
                assert found[name].sharding.is_equivalent_to(specs[name], found[name].ndim), (*what, name, found[name].sharding)
                np.testing.assert_array_equal(found[name], alone[name], err_msg=f"{what}, {name}")


def gae(method: Any, rewards: Any, bootstrap_value: Any, gamma: Any = 0.5) -> Any:
    given = {"rewards": rewards, "values": rewards, "terminated": rewards > 2, "bootstrap_value": bootstrap_value, "gamma": gamma, "lam": 0.5}
    return jax_pallas.run(RECURRENCES["gae"], given, method).advantages


def window(shape: tuple[int, ...] = (FEW, STEPS)) -> tuple[np.ndarray, np.ndarray]:
    rewards = np.random.default_rng(1).choice([-2, -1, 1, 3], shape).astype(np.float32)
    return rewards, rewards[..., 0]


def check_time(kind: AxisType, method: Any) -> None:
    """Sharded over time, the rows are put together, and the numbers are the same."""
    rewards, bootstrap = window((4, DEVICES))
    wanted = gae("vectorised", *map(jnp.asarray, (rewards, bootstrap)))
    by_time = NamedSharding(mesh_of(kind), PartitionSpec(None, "rows"))
    given = jax.device_put(rewards, by_time), jax.device_put(bootstrap, NamedSharding(by_time.mesh, PartitionSpec()))
    compiled = jax.jit(functools.partial(gae, method)).lower(*given).compile()
    assert has_collectives(compiled)
    np.testing.assert_array_equal(compiled(*given), wanted)


def check_mixed(kind: AxisType, method: Any) -> None:
    """What all devices have is cut, and the gradient of a number is a sum over them; outside of `jax.jit` too."""
    rewards, bootstrap = window()
    mesh = mesh_of(kind)
    given = jax.device_put(rewards, NamedSharding(mesh, PartitionSpec("rows"))), jax.device_put(bootstrap, NamedSharding(mesh, PartitionSpec()))

    def total(rewards, bootstrap, gamma):
        return gae(method, rewards, bootstrap, gamma).sum()

    wanted = jax.value_and_grad(total, (0, 1, 2))(*map(jnp.asarray, (rewards, bootstrap)), jnp.float32(0.5))
    with jax.set_mesh(mesh):
        for function in (jax.value_and_grad(total, (0, 1, 2)), jax.jit(jax.value_and_grad(total, (0, 1, 2)))):
            jax.tree.map(np.testing.assert_array_equal, function(*given, jnp.float32(0.5)), wanted)
    made = gae(method, *given)
    assert made.sharding.is_equivalent_to(given[0].sharding, 2), made.sharding


def check_on_one_device(method: Any) -> None:
    """Arrays that were there before the mesh, for whose sharding XLA has no names."""
    given = *map(jnp.asarray, window()), jnp.float32(0.5)

    def total(rewards, bootstrap, gamma):
        return gae(method, rewards, bootstrap, gamma).sum()

    derivatives = jax.value_and_grad(total, (0, 1, 2))
    wanted = derivatives(*given)
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        for function in (derivatives, jax.jit(derivatives)):
            jax.tree.map(np.testing.assert_array_equal, function(*given), wanted)


def check_transformed(kind: AxisType, method: Any) -> None:
    """More rows by `jax.vmap`, twice and in a loop, on a mesh of two axes: of rows that were added, and of rows that were there; or of the latter alone."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("more", "rows"), axis_types=(kind,) * 2)
    rewards, bootstrap = window((2, 3, FEW, STEPS))
    alone = jax.vmap(jax.vmap(functools.partial(gae, "vectorised")))(*map(jnp.asarray, (rewards, bootstrap)))
    for spec in (PartitionSpec("more", None, "rows"), PartitionSpec(None, None, "rows")):
        check_looped(method, mesh, spec, rewards, bootstrap, alone)


def check_looped(method: Any, mesh: Mesh, spec: PartitionSpec, rewards: np.ndarray, bootstrap: np.ndarray, alone: Any) -> None:
    given = tuple(jax.device_put(x, NamedSharding(mesh, spec)) for x in (rewards, bootstrap))

    def looped(rewards, bootstrap):
        def again(carry, _):
            return carry, jax.vmap(jax.vmap(functools.partial(gae, method)))(rewards, bootstrap)

        return jax.lax.scan(again, 0, length=2)[1][1]

    compiled = jax.jit(looped).lower(*given).compile()
    # JAX 0.10 gathers what `jax.vmap` adds along an explicit axis
    if mesh.axis_types[0] == AxisType.Auto or "more" not in spec:
        assert not has_collectives(compiled), (method, spec, has_collectives(compiled))
    made = compiled(*given)
    assert made.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4), made.sharding
    np.testing.assert_array_equal(made, alone)


def check_mapped_over_all_of_a_mesh() -> None:
    """By `jax.vmap` over the only axis of an explicit mesh there is nothing left to split."""
    mesh = mesh_of(AxisType.Explicit)
    given = window((DEVICES, 3, STEPS))
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows"))) for x in given]

    def total(rewards, bootstrap):
        return jax.vmap(functools.partial(gae, "vectorised"))(rewards, bootstrap).sum()

    # not made before it is entered, for it sets the mesh at once
    known, unknown = functools.partial(jax.set_mesh, mesh), contextlib.nullcontext
    for function in (jax.vmap(functools.partial(gae, "vectorised")), jax.grad(total)):
        wanted, compiled = function(*map(jnp.asarray, given)), jax.jit(function)
        # outside of `jax.jit` JAX itself wants to know the mesh
        for context, one in ((known, function), (known, compiled), (unknown, compiled)):
            with context():
                made = one(*spread)
                assert not has_collectives(compiled.lower(*spread).compile())
            assert made.sharding.is_equivalent_to(spread[0].sharding, 3), made.sharding
            np.testing.assert_array_equal(made, wanted)


def check_kernels_on_explicit_axes() -> None:
    """For a GPU: the kernel is given the rows of one device."""
    rewards = jax.device_put(window()[0], NamedSharding(mesh_of(AxisType.Explicit), PartitionSpec("rows")))

    def advantages(rewards, gamma=0.5):
        given = {"rewards": rewards, "values": rewards, "terminated": rewards > 2, "next_values": rewards, "gamma": gamma}
        return launch.by_kernels(check(RECURRENCES["gae"], complete(RECURRENCES["gae"], given), Arrays()), interpret=False)[0]

    def gradients(rewards):
        return jax.grad(lambda rewards, gamma: advantages(rewards, gamma).sum(), (0, 1))(rewards, jnp.float32(0.5))

    for function in (advantages, gradients):
        _, *kernels = str(jax.make_jaxpr(function)(rewards)).split("pallas_call[")
        assert kernels
        for kernel in kernels:
            assert f"float32[{FEW // DEVICES},{STEPS}]" in kernel
            assert f"float32[{FEW},{STEPS}]" not in kernel


@dataclasses.dataclass(frozen=True)
class StandIn:
    """For kernels, whose interpreter can't run inside `jax.shard_map`."""

    def __call__(self, call):
        return by_whole_arrays(call)


def check_gradients_inside_shard_map(is_given_valid: bool) -> None:
    """A number that all devices have gets the sum of what each finds, by the adjoint and without one, and in derivatives of gradients."""
    mesh, of_rows, of_all = mesh_of(AxisType.Auto), PartitionSpec("rows"), PartitionSpec()
    rewards, gamma = jnp.asarray(window()[0]), jnp.float32(0.5)

    def total(kernels, rewards, gamma):
        given = {"rewards": rewards, "terminated": rewards > 2, "gamma": gamma, **({"valid": rewards != 1} if is_given_valid else {})}
        call = check(RECURRENCES["discounted_returns"], complete(RECURRENCES["discounted_returns"], given), Arrays())
        return jnp.square(differentiable(call, by_whole_arrays, kernels)[0]).sum()

    alone, own = functools.partial(total, None), functools.partial(total, StandIn())

    def spread(rewards, gamma):
        one_each = jax.shard_map(lambda *given: own(*given)[None], mesh=mesh, in_specs=(of_rows, of_all), out_specs=of_rows)
        return one_each(rewards, gamma).sum()

    def linearized(function):
        return lambda rewards, gamma: jax.linearize(functools.partial(function, rewards), gamma)[1](gamma)

    def over_numbers(function):
        return lambda rewards, gamma: jax.grad(lambda more: jax.vmap(function, (None, 0))(rewards, more).sum())(jnp.stack([gamma, gamma / 2]))

    for derivative in (lambda function: jax.grad(function, (0, 1)), lambda function: jax.hessian(function, 1), linearized, over_numbers):
        # sums of whole multiples of 2^-10, which have no roundings
        jax.tree.map(np.testing.assert_array_equal, jax.jit(derivative(spread))(rewards, gamma), derivative(alone)(rewards, gamma))
    inside = jax.shard_map(jax.grad(own, (0, 1)), mesh=mesh, in_specs=(of_rows, of_all), out_specs=(of_rows, of_all))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(inside)(rewards, gamma), jax.grad(alone, (0, 1))(rewards, gamma))


def main() -> None:
    assert jax.device_count() == DEVICES
    automatic, explicit = AxisType.Auto, AxisType.Explicit
    for layout in LAYOUTS:
        check_calls(automatic, layout, "vectorised", True)
    check_calls(explicit, "time-major", "vectorised", True)
    check_calls(automatic, "batch-major", "kernels", False)
    for kind, method in ((automatic, "vectorised"), (explicit, "vectorised"), (automatic, "kernels")):
        check_time(kind, method)
        check_mixed(kind, method)
        check_transformed(kind, method)
    for method in ("vectorised", "kernels"):
        check_on_one_device(method)
    check_mapped_over_all_of_a_mesh()
    check_kernels_on_explicit_axes()
    for is_given_valid in (False, True):
        check_gradients_inside_shard_map(is_given_valid)


if __name__ == "__main__":
    main()
