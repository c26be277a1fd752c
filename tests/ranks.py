"""What each of several processes does that have parts of the same DTensors: `python ranks.py RANK PROCESSES STORE`. `test_sharding.py` starts them."""

import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

from rlscan import torch_triton as operations
from rlscan.crosscheck.draw import FORMS, draw, exact, variants
from rlscan.crosscheck.scenarios import covering
from rlscan.spec.recurrences import RECURRENCES

# that results are DTensors, stubs don't say
torch_triton: Any = operations

STEPS = 4
# Of those that hold every pair of choices, which come first are those that hold most.
VARIANTS = 4
NAMES = ("one", "two")

# A frame, its time axis, features, and the axis of the results that each dimension of the mesh shards.
# Five rows divide by no number of processes, and leave the last of four none.
LAYOUTS: dict[tuple[int, ...], list[tuple[tuple[int, ...], int, tuple[int, ...], tuple[int | None, ...]]]] = {
    (2,): [((5, STEPS), -1, (), (0,)), ((STEPS, 5), 0, (), (1,)), ((2, STEPS, 3), 1, (), (2,)), ((2, STEPS), -1, (3,), (2,)), ((5, STEPS), -1, (), (None,))],
    (4,): [((5, STEPS), -1, (), (0,)), ((STEPS, 5), 0, (), (1,))],
    (2, 2): [((3, STEPS, 5), 1, (), (0, 2)), ((5, STEPS), -1, (), (0, 0)), ((STEPS, 5), 0, (), (None, 1)), ((STEPS, 3), 0, (2,), (2, 1))],
}


def replicated(x: torch.Tensor, mesh: Any) -> Any:
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def spread(x: torch.Tensor, mesh: Any, placements: list[Any]) -> Any:
    """Of what each process has, its own part."""
    return replicated(x, mesh).redistribute(mesh, placements).detach()


def placements(recurrence, name: str, x: torch.Tensor, frame: tuple[int, ...], time: int, sharded: tuple[int | None, ...]) -> list[Any]:
    """Of an argument, where these axes of the results are sharded."""
    shape = next(argument.shape for argument in recurrence.arguments if argument.name == name)
    made = []
    for axis in sharded:
        if axis is not None and shape == "row":
            axis -= axis > time % len(frame)
        elif axis is not None and shape == "parameter":
            axis -= len(frame) - x.ndim
            axis = axis if 0 <= axis < x.ndim and x.shape[axis] > 1 else None
        elif axis is not None and shape != "inputs" and axis >= len(frame):
            axis = None
        made.append(Replicate() if axis is None else Shard(axis))
    return made


def tensors(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


def spread_call(recurrence, given: dict[str, Any], mesh: Any, frame, time, sharded) -> dict[str, Any]:
    return {
        name: spread(x, mesh, placements(recurrence, name, x, frame, time, sharded)) if isinstance(x, torch.Tensor) else x for name, x in given.items()
    }  # fmt: skip


def results(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def same_part(one: Any, other: torch.Tensor) -> bool:
    """Whether this process has its part of `other`, and knows the shape of all."""
    if any(placement.is_partial() for placement in one.placements):
        return same(one.full_tensor(), other)
    return one.shape == other.shape and same(one.to_local(), spread(other.detach(), one.device_mesh, list(one.placements)).to_local())


def check_values(mesh: Any, frame, time, features, sharded) -> None:
    """Every way to call every operation gives the bits of the call on one device, laid out as the rows are, and no process hears of another."""
    wanted = [Replicate() if axis is None else Shard(axis) for axis in sharded]
    for recurrence in RECURRENCES.values():
        if features and recurrence.frame.shape != "inputs":
            continue
        for number, variant in enumerate(covering(variants(recurrence, FORMS))[:VARIANTS]):
            given = tensors(draw(recurrence, variant, frame, time, features=features, seed=number))
            here = spread_call(recurrence, given, mesh, frame, time, sharded)
            operation = getattr(torch_triton, recurrence.name)
            made, alone = operation(**here), operation(**given)
            assert isinstance(alone, torch.Tensor) or type(made) is type(alone)
            for one, other in zip(results(made), results(alone), strict=True):
                assert list(one.placements) == wanted, (recurrence.name, variant, one.placements)
                assert one.stride() == other.stride()
                assert same_part(one, other), (recurrence.name, variant, frame)
            if number == 0:
                with CommDebugMode() as traffic:
                    operation(**here)
                assert traffic.get_total_counts() == 0, traffic.get_comm_counts()


def check_gradients(mesh: Any, frame, time, features, sharded) -> None:
    """Gradients by all that is floating, and second ones, are those of one device; none is fetched where every argument has its rows."""
    for recurrence in RECURRENCES.values():
        if features and recurrence.frame.shape != "inputs":
            continue
        for number, variant in enumerate(covering(variants(recurrence, ("0-d", "per time", "per step")))[:2]):
            given = tensors(exact(recurrence, draw(recurrence, variant, frame, time, features=features, dtype="float64", seed=number)))
            here = spread_call(recurrence, given, mesh, frame, time, sharded)
            names = [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
            for name in names:
                given[name].requires_grad_()
                here[name].requires_grad_()
            operation = getattr(torch_triton, recurrence.name)
            alone = results(operation(**given))
            weights = [torch.arange(1.0, 1.0 + x.numel(), dtype=torch.float64).reshape(x.shape) for x in alone]
            with CommDebugMode() as traffic:
                made = results(operation(**here))
                found = torch.autograd.grad(
                    made, [here[name] for name in names], [spread(w, mesh, list(made[0].placements)) for w in weights], create_graph=True, allow_unused=True
                )
            assert traffic.get_total_counts() == 0, (recurrence.name, traffic.get_comm_counts())
            wanted = torch.autograd.grad(alone, [given[name] for name in names], weights, create_graph=True, allow_unused=True)
            for name, one, other in zip(names, found, wanted, strict=True):
                assert (one is None) == (other is None), (recurrence.name, name)
                assert one is None or same_part(one, other), (recurrence.name, variant, name)
            if mesh.size() > 2:
                continue  # a process without rows has no second derivatives
            both = []
            for gradients, arguments in ((found, here), (wanted, given)):
                squares = [gradient.square().sum() for gradient in gradients if gradient is not None and gradient.requires_grad]
                both.append(torch.autograd.grad(squares, [arguments[name] for name in names], allow_unused=True) if squares else [])
            for one, other in zip(*both, strict=True):
                assert one is None or same_part(one, other), (recurrence.name, variant, "second")


def check_mixed(mesh: Any) -> None:
    """What every process has whole is cut to its rows, at no cost; its gradient is whole again."""
    x, terminated = torch.arange(5.0 * STEPS).reshape(5, STEPS), torch.zeros(5, STEPS)
    rows = [Shard(0)] * mesh.ndim
    rewards, values = spread(x, mesh, rows), replicated(x, mesh).requires_grad_()
    given = {"terminated": replicated(terminated, mesh), "bootstrap_value": replicated(x[:, 0], mesh), "gamma": 0.5, "lam": 0.5}
    with CommDebugMode() as traffic:
        made = torch_triton.gae(rewards, values, **given).advantages
    assert traffic.get_total_counts() == 0
    assert list(made.placements) == rows
    alone: Any = x.clone().requires_grad_()
    wanted = torch_triton.gae(x, alone, terminated=terminated, bootstrap_value=x[:, 0], gamma=0.5, lam=0.5).advantages
    # the sums above were counted, and so not made by NumPy
    assert same(torch_triton.gae(rewards, values, **given).advantages.full_tensor(), wanted)
    wanted.sum().backward()
    made.sum().backward()
    assert values.grad.placements == values.placements
    assert torch.equal(values.grad.full_tensor(), alone.grad)


def refuses(kind: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(kind, match=message):
        call()


def check_errors(mesh: Any) -> None:
    x = torch.ones(4, 6)
    rows, time, whole = (spread(x, mesh, [placement]) for placement in (Shard(0), Shard(1), Replicate()))

    def gae(rewards=rows, values=rows, terminated=rows, next_values=rows, **others):
        return torch_triton.gae(rewards, values, terminated=terminated, next_values=next_values, **others)

    refuses(ValueError, r"gae: rewards is Shard\(dim=1\) over dimension 0 of the mesh, and that axis is time, .* redistribute it to Shard", lambda: gae(time))
    refuses(ValueError, r"gae: terminated is Shard\(dim=1\) .* that axis is time", lambda: gae(terminated=time))
    refuses(ValueError, r"gae: rewards is Shard\(dim=0\) .* that axis is time", lambda: gae(time_axis=0))
    by_row, by_time = (spread(torch.ones(1, 6), mesh, [Shard(axis)]) for axis in (0, 1))
    refuses(ValueError, r"gae: gamma is Shard\(dim=1\) .* that axis is time", lambda: gae(gamma=by_time))
    refuses(ValueError, r"gae: gamma is Shard\(dim=0\) .* one element along that axis for all of rewards", lambda: gae(gamma=by_row))
    refuses(ValueError, r"gae: values is Partial\(sum\) over dimension 0", lambda: gae(values=DTensor.from_local(x, mesh, [Partial()], run_check=False)))
    refuses(TypeError, "gae: next_values is a torch.Tensor beside DTensors", lambda: gae(next_values=x))
    refuses(TypeError, "gae: gamma is a torch.Tensor beside DTensors", lambda: gae(gamma=torch.tensor(0.5)))
    refuses(TypeError, "gae: rewards is a torch.Tensor beside DTensors", lambda: gae(x))
    refuses(TypeError, "gae: .* is inside of torch.func, beside DTensors", lambda: torch.func.grad(lambda v: gae(values=v).advantages.sum())(rows))
    refuses(ValueError, "gae: out was given beside arguments that are DTensors", lambda: gae(out=gae()))
    plain = {"rewards": x, "values": x, "terminated": x, "next_values": x}
    refuses(TypeError, "gae: out has for advantages a DTensor, whose memory is not its own", lambda: torch_triton.gae(**plain, out=gae()))
    refuses(ValueError, r"gae: values has shape \(4, 5\)", lambda: gae(values=spread(x[:, :5], mesh, [Shard(0)])))
    other = init_device_mesh("cpu", (1, mesh.size()), mesh_dim_names=NAMES)
    refuses(ValueError, "gae: values is on .* wanted one mesh", lambda: gae(values=spread(x, other, [Replicate(), Shard(0)])))
    cube = [spread(torch.ones(4, 6, 4), mesh, [Shard(axis)]) for axis in (0, 2)]
    refuses(ValueError, "axis 2 of the results, where addend is sharded along axis 0", lambda: torch_triton.affine_scan(cube[0], cube[1], time_axis=1))
    actions = spread(torch.ones(4, 6, 4), mesh, [Shard(2)])
    refuses(
        ValueError, r"retrace: next_q_values is Shard\(dim=2\) .* that axis is actions",
        lambda: torch_triton.retrace(rows, rows, rows, next_q_values=actions, next_policy=actions, terminated=rows),
    )  # fmt: skip
    assert torch_triton.gae(whole, whole, terminated=whole, next_values=whole).advantages.placements == whole.placements


def check_compiled(mesh: Any) -> None:
    x = spread(torch.arange(30.0).reshape(5, 6), mesh, [Shard(0)])

    def advantages(x: Any) -> Any:
        return torch_triton.gae(x, x, terminated=x > 25, next_values=x).advantages * 2

    made: Any = torch.compile(advantages, fullgraph=True, backend="aot_eager")(x)
    assert made.placements == x.placements
    torch.testing.assert_close(made.full_tensor(), advantages(x).full_tensor())


def main(rank: int, processes: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    for shape, layouts in LAYOUTS.items():
        if np.prod(shape) != processes:
            continue
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES[: len(shape)])
        for layout in layouts:
            check_values(mesh, *layout)
        for layout in layouts[:2]:
            check_gradients(mesh, *layout)
        check_mixed(mesh)
        if shape == (2,):
            check_errors(mesh)
            # PyTorch 2.11's compiler takes the placements of `x > 25` for others, and the call is refused
            if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
                check_compiled(mesh)
    # nobody leaves while another is still to be answered
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    # all is checked; gloo's threads, which outlive their group, now and then abort a process that ends in the ordinary way
    os._exit(0)
