"""The sampler of knobs: nothing twice, all of a small space, more than chance of a large one, the same every time."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from tuner.plan import Plan
from tuner.search.samplers import FAILED, SMALL, Config, KnobSampler
from tuner.search_spaces.inductor_knobs import KNOBS, knobs_for
from tuner.search_spaces.parameters import Choice, Flag, Integer, Parameter, grid
from tuner.search_spaces.validate import check_plan

FEW: dict[str, Parameter] = {
    "reads": Integer("reads", 1, 64, 4, (1, 2, 16)),
    "flag": Flag("flag", True),
    "width": Choice("width", (128, 256), None),
    "math": Choice("math", ("off", "on", "fast"), "off"),
}
MANY: dict[str, Parameter] = {name: Integer(name, 1, 64, 4, (1, 2, 16)) for name in ("a", "b", "c", "d", "e")}


def configs(parameters: Mapping[str, Parameter]) -> list[Config]:
    """The whole space."""
    return [
        tuple(sorted((name, v) for name, v in zip(parameters, values, strict=True) if v not in (None, parameters[name].default)))
        for values in itertools.product(*(grid(parameter) for parameter in parameters.values()))
    ]


def separable(parameters: Mapping[str, Parameter], seed: int) -> Callable[[Config], float]:
    """A made-up objective: each value of each knob adds something of its own; the default gives 0."""
    draw = random.Random(seed)
    gains = {name: {value: draw.gauss(0, 1) for value in grid(one)} for name, one in parameters.items()}
    return lambda config: sum(gains[name][value] - gains[name][parameters[name].default] for name, value in config)


def expected_best(values: Sequence[float], count: int) -> float:
    """The best of `count` draws at random without replacement, on average: order i of n is it in C(i, count-1) of C(n, count)."""
    ordered = sorted(values)
    ways = math.comb(len(ordered), count)
    return sum(ordered[i] * (math.comb(i, count - 1) / ways) for i in range(count - 1, len(ordered)))


def reached(sampler: KnobSampler, objective: Callable[[Config], float], count: int) -> list[Config]:
    """The configs that it proposes, each told at once."""
    asked: list[Config] = []
    for _ in range(count):
        config = sampler.ask()
        assert config is not None
        asked.append(config)
        sampler.tell(config, objective(config))
    return asked


def test_the_grid_of_a_knob_holds_its_trials_its_default_and_what_is_between() -> None:
    assert grid(FEW["reads"]) == (1, 2, 4, 8, 16)
    assert grid(FEW["flag"]) == (False, True)
    assert grid(FEW["width"]) == (128, 256, None), "where the compiler decides, nothing is said"
    assert grid(FEW["math"]) == ("on", "fast", "off")
    for knob in KNOBS.values():
        values = grid(knob)
        assert {*knob.trials, knob.default} <= set(values)
        assert len(set(values)) == len(values)
        assert all(value is None or knob.contains(value) for value in values)


def test_a_small_space_is_enumerated_few_knobs_at_a_time() -> None:
    sampler, space = KnobSampler(FEW, seed=0), configs(FEW)
    assert sampler.size == len(space) == 5 * 2 * 3 * 3 <= SMALL
    asked = [sampler.ask() for _ in range(len(space) - 1)]
    assert set(asked) == set(space) - {()}, "the default needs no trial"
    assert [len(config or ()) for config in asked] == sorted(len(config or ()) for config in asked)
    assert sampler.ask() is None


def test_what_was_measured_before_is_not_asked_again() -> None:
    sampler = KnobSampler(FEW, seed=0)
    known = configs(FEW)[::2]
    for config in known:
        sampler.tell(config, 0.1)
    asked = set(iter(sampler.ask, None))
    assert asked == set(configs(FEW)) - set(known) - {()}


def test_a_large_space_is_searched_better_than_at_random() -> None:
    count, ours, chance = 60, 0.0, 0.0
    for seed in range(4):
        objective = separable(MANY, seed)
        values = [objective(config) for config in configs(MANY)]
        asked = reached(KnobSampler(MANY, seed), objective, count)
        assert len(set(asked)) == count, "nothing twice"
        ours += max(map(objective, asked)) / max(values)
        chance += expected_best(values, count) / max(values)
    assert ours > chance
    assert ours / 4 > 0.9


def test_equal_calls_give_equal_proposals_and_another_seed_others() -> None:
    objective = separable(MANY, 0)
    runs = [reached(KnobSampler(MANY, seed), objective, 30) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_batch_may_be_asked_before_any_of_it_is_told() -> None:
    sampler, objective = KnobSampler(MANY, seed=0), separable(MANY, 0)
    for _ in range(4):
        batch = [sampler.ask() for _ in range(8)]
        assert None not in batch
        assert len(set(batch)) == 8
        for config in batch:
            sampler.tell(config or (), objective(config or ()))


def test_failures_lead_away() -> None:
    """One value of one knob always fails."""
    sampler = KnobSampler(MANY, seed=0)
    failed = 0
    for _ in range(60):
        config = sampler.ask() or ()
        bad = ("a", 1) in config
        failed += bad
        sampler.tell(config, None if bad else separable(MANY, 0)(config))
    assert failed < 60 / 5, "fewer than chance"
    assert FAILED < -10


def test_what_is_not_within_the_space_tells_nothing() -> None:
    sampler = KnobSampler(FEW, seed=0)
    for config in ((("reads", 5),), (("other", 1),), (("flag", 0),), (("reads", 2), ("other", 1))):
        sampler.tell(config, 1.0)
    assert len(set(iter(sampler.ask, None))) == len(configs(FEW)) - 1


@pytest.mark.parametrize("threads", [1, 2])
def test_every_proposal_is_a_config_that_a_plan_may_carry(threads: int) -> None:
    sampler = KnobSampler(knobs_for("cpu", threads), seed=0)
    asked = reached(sampler, lambda config: -float(len(config)), 40)
    for config in asked:
        assert check_plan(Plan(config=config)).config == tuple(sorted(config))
    assert sum(map(len, asked)) / len(asked) < 8, "few knobs at a time"


def test_there_is_nothing_to_propose_where_there_are_no_knobs() -> None:
    assert KnobSampler({}, seed=0).ask() is None
