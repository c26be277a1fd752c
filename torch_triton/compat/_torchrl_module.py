"""Apart from `torchrl.py`, because it needs the library."""

from __future__ import annotations

from typing import Any

import torch

try:
    from torchrl.objectives import value as values  # pyright: ignore[reportMissingImports]
    from torchrl.objectives.utils import hold_out_net  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(f"rlscan.torch_triton.compat.torchrl.GAE needs torchrl, which can't be imported ({error})") from error

from rlscan.torch_triton.compat.torchrl import generalized_advantage_estimate


class GAE(values.GAE):
    """TorchRL's estimator with advantages and value targets by rlscan.

    Takes the same tensordicts, keys and arguments, but for those that choose how values are computed: `shifted`, `auto_reset_env`, `vectorized`, chunks
    and groups.

    Args:
        gamma: the discount.
        lmbda: the trace parameter.
        value_network: gives the values of states; None: they are in the tensordict already.
        average_gae: whether advantages are standardised.
        differentiable: whether gradients flow through the results.
        time_dim: of the tensordict; None: the dimension named "time", else the last.
    """

    def __init__(
        self,
        *,
        gamma: float | torch.Tensor,
        lmbda: float | torch.Tensor,
        value_network: Any,
        average_gae: bool = False,
        differentiable: bool = False,
        device: torch.device | None = None,
        time_dim: int | None = None,
    ) -> None:
        super().__init__(
            gamma=gamma, lmbda=lmbda, value_network=value_network, average_gae=average_gae, differentiable=differentiable, device=device, time_dim=time_dim
        )

    def forward(self, tensordict: Any, *, params: Any = None, target_params: Any = None, time_dim: int | None = None) -> Any:
        """The tensordict, with advantages and value targets."""
        if params is not None or target_params is not None:
            raise NotImplementedError("params was given; wanted None: the value network has its own")
        with torch.set_grad_enabled(self.differentiable):
            estimates, targets = self._estimate(tensordict, time_dim)
            if self.average_gae:
                estimates = (estimates - estimates.mean()) / estimates.std().clamp_min(1e-4)
        tensordict.set(self.tensor_keys.advantage, estimates)
        tensordict.set(self.tensor_keys.value_target, targets)
        return tensordict

    def value_estimate(self, tensordict: Any, params: Any = None, target_params: Any = None, time_dim: int | None = None, **kwargs: Any) -> torch.Tensor:
        """The value targets alone."""
        if params is not None or target_params is not None:
            raise NotImplementedError("params was given; wanted None: the value network has its own")
        return self._estimate(tensordict, time_dim)[1]

    def _estimate(self, tensordict: Any, time_dim: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        keys, following, time_axis = self.tensor_keys, tensordict["next"], self._time_axis(tensordict, time_dim)
        if self.value_network is not None:
            with hold_out_net(self.value_network):
                for one in (tensordict, following):
                    one.set(keys.value, self.value_network(one.select(*self.value_network.in_keys)).get(keys.value))
        done = following[keys.done]
        discounts = self.gamma.to(done.device)
        if (steps := tensordict.get(keys.steps_to_next_obs, None)) is not None:
            discounts = discounts ** steps.view_as(done)
        return generalized_advantage_estimate(
            discounts,
            self.lmbda.to(done.device),
            tensordict[keys.value],
            following[keys.value].detach(),
            following[keys.reward],
            done,
            following.get(keys.terminated, done),
            time_dim=time_axis,
        )

    def _time_axis(self, tensordict: Any, time_dim: int | None) -> int:
        """Counted from the front, for tensors have feature axes behind those of the tensordict."""
        time_dim = self.time_dim if time_dim is None else time_dim
        if time_dim is None:
            names = list(tensordict.names)
            time_dim = names.index("time") if "time" in names else -1
        if not -tensordict.ndim <= time_dim < tensordict.ndim:
            raise ValueError(f"time_dim is {time_dim}; wanted a dimension of the tensordict, whose batch size is {list(tensordict.batch_size)}")
        return time_dim % tensordict.ndim
