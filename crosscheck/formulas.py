"""What other libraries compute, as loops over NumPy arrays that a reader can check: the one place for each of their formulas.

Arguments and results are named and ordered as theirs. Those of one sequence there take rows of sequences here, `[N, T]`.
"""

import numpy as np


def backward(addend, factor, axis, carry=0.0):
    """`y_t = addend_t + factor_t y_(t+1)` along `axis`."""
    addend, factor = np.moveaxis(addend, axis, 0), np.moveaxis(np.broadcast_to(factor, addend.shape), axis, 0)
    result = np.empty_like(addend)
    for t in reversed(range(len(addend))):
        result[t] = carry = addend[t] + factor[t] * carry
    return np.moveaxis(result, 0, axis)


def following(x, last, axis):
    """`x` of the next step, and `last` at the last one."""
    return np.concatenate([np.delete(x, 0, axis), np.expand_dims(last, axis)], axis)


def generic_gae(rewards, values, next_values, d, e, gamma, lam, axis):
    """`δ = r + γ (1 - d) N - V`, `A = δ + γλ (1 - e) A'`; advantages and returns."""
    advantages = backward(rewards + gamma * (1 - d) * next_values - values, gamma * lam * (1 - e), axis)
    return advantages, advantages + values


def torchrl_generalized_advantage_estimate(gamma, lmbda, state_value, next_state_value, reward, done, terminated=None, *, time_dim=-2):
    d = done if terminated is None else terminated
    return generic_gae(reward, state_value, next_state_value, d * 1.0, done, gamma, lmbda, time_dim)


def torchrl_td_lambda_return_estimate(gamma, lmbda, next_state_value, reward, done, terminated=None, *, time_dim=-2):
    n = next_state_value * (1 - (done if terminated is None else terminated))
    r, n, e = (np.moveaxis(x, time_dim, 0) for x in (reward, n, done))
    returns, g = np.empty_like(r), n[-1]
    for t in reversed(range(len(r))):
        g = np.where(e[t], n[t], g)
        returns[t] = g = r[t] + gamma * ((1 - lmbda) * n[t] + lmbda * g)
    return np.moveaxis(returns, 0, time_dim)


torchrl_vec_generalized_advantage_estimate, torchrl_vec_td_lambda_return_estimate = torchrl_generalized_advantage_estimate, torchrl_td_lambda_return_estimate


def torchrl_vtrace_advantage_estimate(
    gamma, log_pi, log_mu, state_value, next_state_value, reward, done, terminated=None, rho_thresh=1.0, c_thresh=1.0, *, time_dim=-2
):
    d = (done if terminated is None else terminated) * 1.0
    w = np.exp(log_pi - log_mu)
    rho, c = np.minimum(w, rho_thresh), np.minimum(w, c_thresh)
    vs = state_value + backward(rho * (reward + gamma * (1 - d) * next_state_value - state_value), gamma * c * (1 - done), time_dim)
    n = np.where(done, next_state_value, following(vs, np.take(next_state_value, -1, time_dim), time_dim))
    return rho * (reward + gamma * (1 - d) * n - state_value), vs


def cleanrl_gae(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    advantages, last = np.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        go_on = 1.0 - (next_done if t == len(rewards) - 1 else dones[t + 1])
        n = next_value.reshape(-1) if t == len(rewards) - 1 else values[t + 1]
        advantages[t] = last = rewards[t] + gamma * n * go_on - values[t] + gamma * gae_lambda * go_on * last
    return advantages, advantages + values


def sb3_compute_returns_and_advantage(rewards, values, episode_starts, last_values, dones, gamma, gae_lambda):
    advantages, last = np.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        go_on = 1.0 - (dones if t == len(rewards) - 1 else episode_starts[t + 1])
        n = last_values if t == len(rewards) - 1 else values[t + 1]
        advantages[t] = last = rewards[t] + gamma * n * go_on - values[t] + gamma * gae_lambda * go_on * last
    return advantages + values, advantages


def tianshou_gae(v_s, v_s_, rew, end_flag, gamma, gae_lambda):
    return backward(rew + gamma * v_s_ - v_s, gamma * gae_lambda * (1.0 - end_flag), 0)


def rllib_compute_value_targets(values, rewards, terminateds, truncateds, gamma, lambda_):
    n, d = following(values, 0.0, 0), terminateds * 1.0
    return backward(rewards + gamma * (1 - d) * n - values, gamma * lambda_ * (1 - d) * (1 - truncateds), 0) + values


def rllib_vtrace_torch(
    *, target_action_log_probs, behaviour_action_log_probs, discounts, rewards, values, bootstrap_values, clip_rho_threshold=1.0, clip_pg_rho_threshold=1.0
):
    w = np.exp(target_action_log_probs - behaviour_action_log_probs)
    rho, pg_rho = (w if bar is None else np.minimum(w, bar) for bar in (clip_rho_threshold, clip_pg_rho_threshold))
    n = following(values, bootstrap_values, 0)
    vs = values + backward(rho * (rewards + discounts * n - values), discounts * np.minimum(w, 1.0), 0)
    return vs, pg_rho * (rewards + discounts * following(vs, bootstrap_values, 0) - values)


def verl_unwhitened(rewards, values, mask, gamma, lam):
    """Masked tokens carry the next value and the advantage on as they are."""
    advantages, n, last = np.zeros_like(rewards), np.zeros(len(rewards)), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        here = rewards[:, t] + gamma * n - values[:, t] + gamma * lam * last
        n, last = np.where(mask[:, t], values[:, t], n), np.where(mask[:, t], here, last)
        advantages[:, t] = last
    return advantages


def masked_whiten(x, mask, floor):
    count = mask.sum()
    mean = (x * mask).sum() / (count + floor)
    variance = ((x - mean) ** 2 * mask).sum() / (count + floor) * count / (count - 1)
    return (x - mean) / np.sqrt(variance + 1e-8)


def verl_compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam):
    advantages = verl_unwhitened(token_level_rewards, values, response_mask, gamma, lam)
    return masked_whiten(advantages, response_mask, 1e-8), advantages + values


def trl_gae(rewards, values, padding_mask, gamma, lam):
    never = np.zeros_like(rewards)
    advantages, returns = generic_gae(rewards, values, following(values, never[:, 0], 1), never, never, gamma, lam, 1)
    return np.where(padding_mask, 0.0, masked_whiten(advantages, ~padding_mask, 0.0)), returns


def rl_triton_next_values(values, truncateds, bootstrap_values, last_value):
    if last_value is not None:
        return following(values, last_value, 1)
    bootstrap_values = np.zeros_like(values) if bootstrap_values is None else bootstrap_values
    n = following(values, bootstrap_values[:, -1], 1)
    return n if truncateds is None else np.where(truncateds, bootstrap_values, n)


def rl_triton_compute_gae(rewards, values, terminateds, truncateds=None, gamma=0.99, lambda_=0.95, bootstrap_values=None, last_value=None):
    e = terminateds if truncateds is None else np.maximum(terminateds, truncateds)
    n = rl_triton_next_values(values, truncateds, bootstrap_values, last_value)
    return generic_gae(rewards, values, n, terminateds, e, gamma, lambda_, 1)[0]


def rl_triton_compute_vtrace(
    log_pi_target, log_pi_behavior, values, rewards, terminateds, truncateds=None, gamma=0.99, rho_bar=1.0, c_bar=1.0, bootstrap_values=None, last_value=None
):
    w, e = np.exp(log_pi_target - log_pi_behavior), terminateds if truncateds is None else np.maximum(terminateds, truncateds)
    rho, c = np.minimum(w, rho_bar), np.minimum(w, c_bar)
    n = rl_triton_next_values(values, truncateds, bootstrap_values, last_value)
    vs = values + backward(rho * (rewards + gamma * n * (1 - terminateds) - values), gamma * c * (1 - e), 1)
    n = rl_triton_next_values(vs, truncateds, bootstrap_values, last_value)
    return vs, rho * (rewards + gamma * n * (1 - terminateds) - values)


def rl_triton_compute_retrace(
    action_probs_target,
    action_probs_behavior,
    q_values,
    next_q_values_all,
    actions,
    rewards,
    terminateds,
    truncateds,
    gamma,
    lambda_=1.0,
    c_bar=1.0,
    rho_bar=1.0,
):
    w = np.take_along_axis(action_probs_target, actions[..., None], -1)[..., 0] / action_probs_behavior
    zero, e = np.zeros(len(rewards)), np.maximum(terminateds, truncateds)
    expected = (action_probs_target * next_q_values_all).sum(-1)
    next_c = following(lambda_ * np.minimum(w, c_bar), zero, 1)
    targets = q_values + backward(rewards + gamma * expected * (1 - terminateds) - q_values, gamma * next_c * (1 - e), 1)
    return targets, np.minimum(w, rho_bar) * (rewards + gamma * following(targets, zero, 1) * (1 - terminateds) - q_values)


def rl_triton_compute_lambda_returns(rewards, next_values, terminateds, truncateds=None, gamma=0.99, lambda_=0.95, bootstrap_values=None):
    x, b = (np.zeros_like(rewards) if given is None else given for given in (truncateds, bootstrap_values))
    go_on = 1 - np.maximum(terminateds, x)
    return backward(rewards + gamma * (1 - lambda_) * go_on * next_values + gamma * x * b, gamma * lambda_ * go_on, 1, b[:, -1])


def rl_triton_compute_discounted_returns(rewards, terminateds, truncateds=None, gamma=0.99, bootstrap_values=None):
    x, b = (np.zeros_like(rewards) if given is None else given for given in (truncateds, bootstrap_values))
    return backward(rewards + gamma * x * b, gamma * (1 - np.maximum(terminateds, x)), 1, b[:, -1])


def rlax_lambda_returns(r_t, discount_t, v_t, lambda_):
    return backward(r_t + discount_t * (1 - lambda_) * v_t, discount_t * lambda_, 1, v_t[:, -1])


def rlax_discounted_returns(r_t, discount_t, v_t):
    return backward(r_t, discount_t, 1, v_t[:, -1])


def rlax_n_step_bootstrapped_returns(r_t, discount_t, v_t, n, lambda_t):
    steps = r_t.shape[1]
    lambdas, returns = np.broadcast_to(lambda_t, r_t.shape), np.empty_like(r_t)
    for t in range(steps):
        end = min(t + n, steps)
        g = v_t[:, end - 1]
        for k in reversed(range(t, end)):
            g = r_t[:, k] + discount_t[:, k] * ((1 - lambdas[:, k]) * v_t[:, k] + lambdas[:, k] * g)
        returns[:, t] = g
    return returns


def rlax_truncated_generalized_advantage_estimation(r_t, discount_t, lambda_, values):
    return backward(r_t + discount_t * values[:, 1:] - values[:, :-1], discount_t * lambda_, 1)


def rlax_vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_=1.0, clip_rho_threshold=1.0, sample_mask=None):
    learnable = np.ones(r_t.shape, bool) if sample_mask is None else sample_mask
    td_error = np.minimum(rho_tm1, clip_rho_threshold) * (r_t + discount_t * v_t - v_tm1)
    return backward(np.where(learnable, td_error, 0.0), np.where(learnable, discount_t * lambda_ * np.minimum(rho_tm1, 1.0), 1.0), 1)


def rlax_vtrace_td_error_and_advantage(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_=1.0, clip_rho_threshold=1.0, clip_pg_rho_threshold=1.0, sample_mask=None):
    errors = rlax_vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, sample_mask)
    lambdas, targets, last = np.broadcast_to(lambda_, r_t.shape)[:, :-1], errors + v_tm1, v_t[:, -1:]
    q = r_t + discount_t * np.concatenate([lambdas * targets[:, 1:] + (1 - lambdas) * v_tm1[:, 1:], last], 1)
    return errors, np.minimum(rho_tm1, clip_pg_rho_threshold) * (q - v_tm1), q


def rlax_retrace(q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda_, eps=1e-8):
    def of(actions, table):
        return np.take_along_axis(table, actions[..., None], -1)[..., 0]

    c, q, expected = lambda_ * np.minimum(1.0, of(a_t, pi_t) / (mu_t + eps)), of(a_t, q_t), (pi_t * q_t).sum(-1)
    g = r_t[:, -1] + discount_t[:, -1] * expected[:, -1]
    earlier = slice(None), slice(-1)
    targets = backward((r_t + discount_t * (expected - c * q))[earlier], (discount_t * c)[earlier], 1, g)
    return np.concatenate([targets, g[:, None]], 1) - of(a_tm1, q_tm1)


def brax_compute_gae(truncation, termination, rewards, values, bootstrap_value, lambda_=1.0, discount=0.99):
    keep, go_on = 1 - truncation, 1 - termination
    delta = (rewards + discount * go_on * following(values, bootstrap_value, 0) - values) * keep
    vs = values + backward(delta, discount * go_on * keep * lambda_, 0)
    return vs, (rewards + discount * go_on * following(vs, bootstrap_value, 0) - values) * keep


def purejaxrl_gae(traj_batch, last_val, gamma, gae_lambda):
    done = traj_batch.done * 1.0
    return generic_gae(traj_batch.reward, traj_batch.value, following(traj_batch.value, last_val, 0), done, done, gamma, gae_lambda, 0)
