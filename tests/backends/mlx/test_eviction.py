"""Which tokens stay: every policy against cases worked by hand, and what holds for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.backends.mlx.eviction import Held, Policy, Random, Recency, Schedule, TriAttention, eviction_policy
from refract.kv import parse_kv


def held(count: int, *, seen: int | None = None, key: int = 0) -> Held:
    return Held(positions=np.arange(count), seen=count if seen is None else seen, key=key)


def kept(policy: Policy, state: Held, scores: object = None) -> list[int]:
    """True positions of what stays."""
    values = np.zeros(len(state.positions)) if scores is None else np.asarray(scores, np.float64)
    return [int(position) for position in state.positions[policy.kept(state, lambda: values)]]


def test_a_share_of_the_tokens_seen_is_rounded_up_and_a_budget_replaces_it() -> None:
    assert [Schedule(keep=0.5).target(seen) for seen in (1, 2, 3, 1000)] == [1, 1, 2, 500]
    assert Schedule(keep=0.9).target(100) == 90  # 0.9 · 100 is more than 90 in binary
    assert Schedule(keep=0.01).target(1) == 1
    assert Schedule(keep=0.9, budget=7).target(100) == 7


def test_it_acts_at_multiples_of_its_step_after_the_warm_up() -> None:
    schedule = Schedule(keep=0.5, every=4, warmup=8)
    assert [schedule.excess(seen, seen) for seen in (4, 8, 9, 12)] == [0, 4, 0, 6]
    assert schedule.excess(3, 12) == 0


def test_recency_keeps_the_sink_and_the_newest() -> None:
    policy = Recency(schedule=Schedule(keep=0.5, every=1), sink=2)
    assert kept(policy, held(10)) == [0, 1, 7, 8, 9]
    again = Held(positions=np.array([0, 1, 7, 8, 9, 10, 11]), seen=12)
    assert kept(policy, again) == [0, 1, 8, 9, 10, 11]


def test_recency_never_takes_the_sink_even_where_little_else_is_left() -> None:
    assert kept(Recency(schedule=Schedule(keep=0.5, budget=3, every=1), sink=4), held(6)) == [0, 1, 2, 3]


def test_random_keeps_what_it_kept_before_among_what_is_still_held() -> None:
    policy = Random(schedule=Schedule(keep=0.5, every=1), seed=3)
    state = held(64)
    first = policy.kept(state, lambda: np.zeros(64))
    later = Held(positions=np.concatenate([first, np.arange(64, 96)]), seen=96)
    at_once = policy.kept(held(96), lambda: np.zeros(96))
    assert len(first) == 32
    assert set(at_once) <= {int(p) for p in later.positions}
    assert kept(policy, later) == [int(index) for index in at_once]


def test_random_draws_other_lots_for_another_seed_and_another_sequence() -> None:
    draws = {
        tuple(kept(Random(schedule=Schedule(keep=0.5, every=1), seed=seed), held(64, key=key)))
        for seed in (0, 1)
        for key in (0, 1)
    }
    assert len(draws) == 4


def test_triattention_evicts_what_can_expect_least_and_the_fork_what_can_expect_most() -> None:
    scores = [5.0, 1.0, 4.0, 0.0, 3.0, 2.0, 9.0, 9.0]
    schedule = Schedule(keep=0.75, every=1)
    paper = TriAttention(schedule=schedule, version=1, window=2, prefix=0)
    fork = TriAttention(schedule=schedule, version=1, window=2, prefix=0, order="fork")
    assert kept(paper, held(8), scores) == [0, 2, 4, 5, 6, 7]
    assert kept(fork, held(8), scores) == [1, 3, 4, 5, 6, 7]


def test_version_2_takes_the_same_share_of_every_stretch_and_the_rest_by_score() -> None:
    # 12 eligible tokens in 3 stretches of 4; 5 are to go: floor(5 · 4 / 12) = 1 a stretch, then the 2 lowest of all.
    scores = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0, 20.0, 21.0, 22.0, 23.0, 0.0, 0.0]
    policy = TriAttention(schedule=Schedule(keep=0.5, budget=9, every=1), version=2, window=2, segments=3)
    assert kept(policy, held(14), scores) == [3, 5, 6, 7, 9, 10, 11, 12, 13]
    first = TriAttention(schedule=policy.schedule, version=1, window=2)
    assert kept(first, held(14), scores) == [5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_version_3_also_keeps_the_first_tokens() -> None:
    policy = TriAttention(schedule=Schedule(keep=0.5, every=1), version=3, window=2, prefix=3, segments=1)
    assert kept(policy, held(8), np.arange(8.0)) == [0, 1, 2, 6, 7]  # 4 were to go, 3 were eligible


def test_equal_scores_are_told_apart_by_the_seed() -> None:
    schedule = Schedule(keep=0.5, every=1)
    draws = {tuple(kept(TriAttention(schedule=schedule, version=1, window=0, seed=seed), held(32))) for seed in (0, 1)}
    assert len(draws) == 2


def test_scores_are_not_made_when_nothing_is_to_go() -> None:
    policy = TriAttention(schedule=Schedule(keep=0.5, every=128, warmup=256))

    def never() -> np.ndarray:
        raise AssertionError("asked for scores")

    assert len(policy.kept(held(255), never)) == 255
    assert len(policy.kept(held(256), never)) == 256  # prefix and window are all there is


POLICIES = st.sampled_from(["recency", "random", "v1", "v2", "v3"])


def make(name: str, keep: float, every: int) -> Policy:
    schedule = Schedule(keep=keep, every=every)
    if name == "recency":
        return Recency(schedule=schedule, sink=2)
    if name == "random":
        return Random(schedule=schedule)
    return TriAttention(schedule=schedule, version=int(name[1]), window=3, prefix=2, segments=3)


@given(POLICIES, st.floats(0.05, 1.0), st.integers(1, 8), st.integers(1, 80), st.integers(0, 2**32 - 1))
def test_what_stays_is_ordered_and_never_less_than_the_target(
    name: str, keep: float, every: int, seen: int, seed: int
) -> None:
    policy, scores = make(name, keep, every), np.random.default_rng(seed).standard_normal(seen)
    found = kept(policy, held(seen), scores)
    assert found == sorted(set(found))
    assert set(found) <= set(range(seen))
    assert len(found) >= policy.schedule.target(seen)
    if keep == 1.0 or seen % every:
        assert len(found) == seen


@given(POLICIES, st.integers(2, 80), st.integers(0, 2**32 - 1))
def test_a_smaller_share_keeps_a_part_of_what_a_larger_one_keeps(name: str, seen: int, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal(seen)
    sizes = [len(kept(make(name, keep, 1), held(seen), scores)) for keep in (0.25, 0.5, 0.75, 1.0)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == seen
    if name in ("recency", "random", "v1"):
        sets = [set(kept(make(name, keep, 1), held(seen), scores)) for keep in (0.25, 0.5, 0.75)]
        assert sets[0] <= sets[1] <= sets[2]


def test_policies_are_what_the_configuration_says() -> None:
    assert eviction_policy(parse_kv("ctk=f16,ctv=f16")) is None
    recency = eviction_policy(parse_kv("ctk=f16,ctv=f16,evict=recency:sink=8:budget=100"))
    assert recency == Recency(schedule=Schedule(keep=0.9, budget=100), sink=8)
    chance = eviction_policy(parse_kv("ctk=f16,ctv=f16,evict=random:keep=0.25,seed=5"))
    assert chance == Random(schedule=Schedule(keep=0.25), seed=5)
    text = "evict=triattention:v=2:keep=0.5:window=64:prefix=0:segments=4:every=32:warmup=64:order=fork"
    assert eviction_policy(parse_kv(f"ctk=f16,ctv=f16,{text}")) == TriAttention(
        schedule=Schedule(keep=0.5, every=32, warmup=64), version=2, window=64, prefix=0, segments=4, order="fork"
    )


@pytest.mark.parametrize("name", ["recency", "random", "triattention"])
def test_defaults_keep_nine_tokens_of_ten(name: str) -> None:
    policy = eviction_policy(parse_kv(f"ctk=f16,ctv=f16,evict={name}"))
    assert policy is not None
    assert policy.schedule.target(1000) == 900
