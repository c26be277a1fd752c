"""The classes that take the place of a library's own, in short trainings: at each update the library computes advantages of the same data too."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

from rlscan.spec.bound import bound, distance
from rlscan.spec.calls import Call, check, complete
from rlscan.spec.recurrences import RECURRENCES
from rlscan.spec.reference import NumPyArrays
from tests.conftest import by_whitening

torch = pytest.importorskip("torch")

GAMMA, LAM = 0.99, 0.95


def checked(arguments: dict[str, Any]) -> Call:
    return check(RECURRENCES["gae"], complete(RECURRENCES["gae"], arguments), NumPyArrays())


def agree(arguments: dict[str, Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    """Advantages and returns of two right computations in float32 are two bounds apart at most."""
    call = checked(arguments)
    assert call.dtype == "float32"
    for one, other, limit in zip(ours, theirs, bound(call), strict=True):
        assert np.abs(one).max() > 0
        assert distance(one, other, 2 * limit).max() <= 1


def grew(ours: list[float], theirs: list[float], last: int) -> None:
    """Both learn, and the means of their last results are three standard errors apart at most, which is what two runs of one algorithm may be."""
    ends = [np.asarray(curve[-last:]) for curve in (ours, theirs)]
    for curve, end in zip((ours, theirs), ends, strict=True):
        assert end.mean() > np.mean(curve[:last])
    noise = np.sqrt(sum(end.var(ddof=1) / last for end in ends))
    assert abs(ends[0].mean() - ends[1].mean()) <= 3 * noise


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("default")
def test_sb3_learns_with_the_same_advantages():
    """PPO on CartPole, of which the first rollout is the same and all have equal advantages; then rounding may turn an action."""
    stable_baselines3 = pytest.importorskip("stable_baselines3", exc_type=ImportError)
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    from rlscan.torch_triton.compat.sb3 import RolloutBuffer

    updates = []

    class Compared(RolloutBuffer):
        def compute_returns_and_advantage(self, last_values: Any, dones: np.ndarray) -> None:
            buffers.RolloutBuffer.compute_returns_and_advantage(self, last_values, dones)
            theirs = self.advantages.copy(), self.returns.copy()
            super().compute_returns_and_advantage(last_values, dones)
            arguments = {
                "rewards": self.rewards,
                "values": self.values,
                "terminated": np.concatenate([self.episode_starts[1:], dones[None].astype(np.float32)]),
                "bootstrap_value": last_values.numpy().flatten(),
                "gamma": self.gamma,
                "lam": self.gae_lambda,
                "time_axis": 0,
            }
            agree(arguments, (self.advantages, self.returns), theirs)
            assert self.advantages.dtype == theirs[0].dtype == np.float32
            updates.append(arguments["terminated"].sum())

    def learn(buffer: Any) -> tuple[Any, list[float]]:
        curve = []
        callbacks = importlib.import_module("stable_baselines3.common.callbacks")

        class Record(callbacks.BaseCallback):
            def _on_step(self) -> bool:
                curve.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
                return True

        numbers = {"n_steps": 512, "n_epochs": 6, "learning_rate": 1e-3, "gamma": GAMMA, "gae_lambda": LAM, "seed": 0}
        model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", device="cpu", rollout_buffer_class=buffer, **numbers)
        model.learn(6144, callback=Record())
        return model, curve

    model, ours = learn(Compared)
    _, theirs = learn(None)
    assert isinstance(model.rollout_buffer, Compared)
    assert len(updates) == 6144 // 512
    assert min(updates) > 0
    first = int(updates[0])
    assert ours[: first - 1] == theirs[: first - 1]
    grew(ours, theirs, 20)


@pytest.mark.parametrize("name", ["RolloutBuffer", "DictRolloutBuffer"])
def test_sb3_computes_what_the_original_computes(name):
    buffers = pytest.importorskip("stable_baselines3.common.buffers", exc_type=ImportError)
    spaces = importlib.import_module("gymnasium.spaces")
    observations = spaces.Box(0, 1, (2,)) if name == "RolloutBuffer" else spaces.Dict({"position": spaces.Box(0, 1, (2,))})
    random = np.random.default_rng(0)
    results, drawn = [], [random.normal(size=(6, 3)).astype(np.float32) for _ in range(2)]
    starts, last = (random.random((6, 3)) < 0.3).astype(np.float32), torch.from_numpy(random.normal(size=(3, 1)).astype(np.float32))
    dones = random.random(3) < 0.5
    for module in (importlib.import_module("rlscan.torch_triton.compat.sb3"), buffers):
        buffer = getattr(module, name)(6, observations, spaces.Discrete(2), "cpu", LAM, GAMMA, 3)
        buffer.rewards, buffer.values, buffer.episode_starts = *(x.copy() for x in drawn), starts
        buffer.compute_returns_and_advantage(last, dones)
        results.append((buffer.advantages, buffer.returns))
    arguments = {
        "rewards": drawn[0],
        "values": drawn[1],
        "terminated": np.concatenate([starts[1:], dones[None].astype(np.float32)]),
        "bootstrap_value": last.numpy().flatten(),
        "gamma": GAMMA,
        "lam": LAM,
        "time_axis": 0,
    }
    agree(arguments, *results)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("default")
def test_torchrl_learns_with_the_same_advantages():
    """PPO on CartPole, of which the first rollout is the same and all have equal advantages; then rounding may turn an action."""
    pytest.importorskip("torchrl", exc_type=ImportError)
    envs, modules, objectives = (importlib.import_module(f"torchrl.{name}") for name in ("envs", "modules", "objectives"))
    values, utils = importlib.import_module("torchrl.objectives.value"), importlib.import_module("torchrl.envs.utils")
    from rlscan.torch_triton.compat.torchrl import GAE

    updates = []

    class Compared(GAE):
        def forward(self, tensordict: Any, **options: Any) -> Any:
            super().forward(tensordict, **options)
            after = tensordict["next"]
            given = [tensordict["state_value"], after["state_value"], after["reward"], after["done"], after["terminated"]]
            theirs = values.functional.generalized_advantage_estimate(self.gamma, self.lmbda, *given)
            value, next_value, reward, done, terminated = (x.numpy() for x in given)
            arguments = {
                "rewards": reward,
                "values": value,
                "next_values": next_value,
                "terminated": terminated,
                "truncated": done,
                "gamma": GAMMA,
                "lam": LAM,
                "time_axis": 0,
            }
            agree(arguments, (tensordict["advantage"].numpy(), tensordict["value_target"].numpy()), tuple(x.numpy() for x in theirs))
            updates.append(int(done.sum()))
            return tensordict

    def learn(estimator: Any, rollouts: int = 10, steps: int = 400, epochs: int = 5) -> list[float]:
        torch.manual_seed(0)
        env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.RewardSum())
        env.set_seed(0)
        networks = [torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, width)) for width in (2, 1)]
        tensordict_module = importlib.import_module("tensordict.nn").TensorDictModule(networks[0], in_keys=["observation"], out_keys=["logits"])
        actor = modules.ProbabilisticActor(
            tensordict_module, in_keys=["logits"], out_keys=["action"], distribution_class=modules.OneHotCategorical, return_log_prob=True
        )
        critic = modules.ValueOperator(networks[1], in_keys=["observation"])
        advantage = estimator(gamma=GAMMA, lmbda=LAM, value_network=critic)
        loss = objectives.ClipPPOLoss(actor, critic, normalize_advantage=True)
        optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
        curve = []
        for _ in range(rollouts):
            with torch.no_grad(), utils.set_exploration_type(utils.ExplorationType.RANDOM):
                data = env.rollout(steps, actor, break_when_any_done=False)
            curve += data["next", "episode_reward"][data["next", "done"]].tolist()
            for _ in range(epochs):
                advantage(data)
                for places in torch.randperm(steps).split(100):
                    found = loss(data[places])
                    optimizer.zero_grad()
                    (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
                    torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                    optimizer.step()
        return curve

    ours, theirs = learn(Compared), learn(values.GAE)
    assert len(updates) == 10 * 5
    assert min(updates) > 0
    first = updates[0]
    assert ours[:first] == theirs[:first]
    grew(ours, theirs, 20)


def torchrl_data(batch: tuple[int, ...], names: list[str | None] | None = None) -> Any:
    tensordict = importlib.import_module("tensordict")
    torch.manual_seed(0)
    done = torch.rand(*batch, 1) < 0.3
    after = {"obs": torch.randn(*batch, 3), "reward": torch.randn(*batch, 1), "done": done, "terminated": done & (torch.rand(*batch, 1) < 0.5)}
    return tensordict.TensorDict({"obs": torch.randn(*batch, 3), "next": after}, batch, names=names)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("batch", "names", "options"),
    [((4, 9), None, {}), ((9, 4), ["time", None], {"average_gae": True}), ((9, 4), None, {"time_dim": 0}), ((9,), None, {"differentiable": True})],
)
def test_torchrl_writes_what_the_original_writes(batch, names, options):
    """The same keys, and numbers from the values of the same network."""
    pytest.importorskip("torchrl", exc_type=ImportError)
    nn, values = importlib.import_module("tensordict.nn"), importlib.import_module("torchrl.objectives.value")
    from rlscan.torch_triton.compat.torchrl import GAE

    data = torchrl_data(batch, names)
    critic = nn.TensorDictModule(torch.nn.Linear(3, 1), in_keys=["obs"], out_keys=["state_value"])
    arguments = {"gamma": GAMMA, "lmbda": LAM, "value_network": critic} | options
    ours, theirs = GAE(**arguments)(data.clone()), values.GAE(**arguments, deactivate_vmap=True)(data.clone())
    assert set(ours.keys(True)) == set(theirs.keys(True))
    assert ours["advantage"].requires_grad == theirs["advantage"].requires_grad
    after, axis = theirs["next"], 0 if names or "time_dim" in options else len(batch) - 1
    call = {
        "rewards": after["reward"].numpy(),
        "values": theirs["state_value"].detach().numpy(),
        "next_values": after["state_value"].detach().numpy(),
        "terminated": after["terminated"].numpy(),
        "truncated": after["done"].numpy(),
        "gamma": GAMMA,
        "lam": LAM,
        "time_axis": axis,
    }
    results = [tuple(one[name].detach().numpy() for name in ("advantage", "value_target")) for one in (ours, theirs)]
    if not options.get("average_gae"):
        agree(call, *results)
    else:
        # besides, all of them are summed
        (one, targets), (other, _) = results
        raw = targets - call["values"]
        moved = 2 * bound(checked(call))[0].max() + 2 * raw.size * np.abs(raw).max() * np.finfo(np.float32).eps
        np.testing.assert_allclose(one, other, rtol=0, atol=moved * by_whitening(other, raw.std()))
    assert torch.equal(GAE(**arguments).value_estimate(data.clone()).detach(), ours["value_target"].detach())


def test_torchrl_refuses_what_it_would_ignore():
    pytest.importorskip("torchrl", exc_type=ImportError)
    from rlscan.torch_triton.compat.torchrl import GAE

    for name in ("shifted", "auto_reset_env", "vectorized"):
        with pytest.raises(TypeError, match=name):
            GAE(gamma=GAMMA, lmbda=LAM, value_network=None, **{name: True})
    with pytest.raises(KeyError, match="state_value"):
        GAE(gamma=GAMMA, lmbda=LAM, value_network=None)(torchrl_data((2, 3)))
    for dim in (2, -3):
        with pytest.raises(ValueError, match=rf"^time_dim is {dim}; wanted a dimension of the tensordict, whose batch size is \[2, 3\]$"):
            GAE(gamma=GAMMA, lmbda=LAM, value_network=None, time_dim=dim)(torchrl_data((2, 3)))
    with pytest.raises(NotImplementedError, match="params was given"):
        GAE(gamma=GAMMA, lmbda=LAM, value_network=None)(torchrl_data((2, 3)), params={})


@pytest.mark.parametrize(
    ("module", "name", "library"), [("torchrl", "GAE", "torchrl"), *(("sb3", name, "stable-baselines3") for name in ("RolloutBuffer", "DictRolloutBuffer"))]
)
def test_without_the_library_the_class_says_what_it_needs(module, name, library, monkeypatch):
    compat = importlib.import_module(f"rlscan.torch_triton.compat.{module}")
    for loaded in ("_torchrl_module", "_sb3_buffer"):
        monkeypatch.delitem(sys.modules, f"rlscan.torch_triton.compat.{loaded}", raising=False)
    for missing in ("torchrl", "torchrl.objectives", "stable_baselines3", "stable_baselines3.common"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=f"needs? {library}"):
        getattr(compat, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = compat.other
