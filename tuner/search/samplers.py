"""Which knobs to turn together next: Optuna's tree-structured Parzen estimator over a finite grid, nothing proposed twice.

The study lives in memory and is rebuilt from what was measured: no store of Optuna's. It proposes what it has tried again and
again (a third of the time, on a space of 3,000 points): repeats are answered from the table, and after a few in a row something
unseen is taken instead, of a small space the next in order. Whoever goes on asking gets all of it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuner.plan import ConfigValue
from tuner.search_spaces.parameters import Parameter, Value, grid

# Knobs with their values, sorted by name, as in a plan; a knob at its default is left out.
Config = tuple[tuple[str, ConfigValue], ...]

# In a space of so many points, what is unseen is taken in order.
SMALL = 200
# Until so much is known, few knobs are turned at random: so many at a time, on average.
STARTUP = 10
TURNED = 2.0
# How often in a row the estimator may propose what is known.
REPEATS = 4
# Draws at random before the next in order is taken.
DRAWS = 100
# The value of what failed; only the order of values counts. Worse than anything that can be measured.
FAILED = -100.0


class KnobSampler:
    """Proposes configs of `parameters`, and learns from what they gave.

    The default's value is known: 0. Equal calls give equal proposals. parameters: by name, in order of promise.
    """

    def __init__(self, parameters: Mapping[str, Parameter], seed: int):
        self._values = {name: grid(parameter) for name, parameter in parameters.items()}
        self._defaults = {name: parameter.default for name, parameter in parameters.items()}
        self._draw = random.Random(seed)
        self._told: dict[Config, float] = {}
        self._asked: dict[Config, Any] = {}
        self._left = self._in_order()
        self._study = _study(seed)
        self._distributions = _distributions(self._values)
        self.tell((), 0.0)

    @property
    def size(self) -> int:
        """How many configs there are, the default among them."""
        return math.prod(len(values) for values in self._values.values())

    def ask(self) -> Config | None:
        """A config that was neither asked nor told before, None where none is left; several may be asked before one is told."""
        found = self._estimated() if len(self._told) >= STARTUP else None
        if found is None and self.size > SMALL:
            found = self._at_random()
        # Few knobs turned come before many.
        found = found or next((config for config in self._left if self._is_new(config)), None)
        if found is not None:
            self._asked.setdefault(found, None)
        return found

    def tell(self, config: Iterable[tuple[str, ConfigValue]], value: float | None) -> None:
        """What a config gave, asked for or not: the logarithm of its speed-up, of a duplicate its twin's; None where it failed.

        What is not within the space tells nothing.
        """
        key = tuple(sorted(config))
        chosen = {**self._defaults, **dict(key)}
        if chosen.keys() != self._values.keys() or not all(_among(chosen[name], values) for name, values in self._values.items()):
            return
        trial = self._asked.pop(key, None)
        told = FAILED if value is None else value
        self._told[key] = told
        if trial is None:
            self._add(chosen, told)
        else:
            self._study.tell(trial, told)

    def _is_new(self, config: Config) -> bool:
        return config not in self._told and config not in self._asked

    def _estimated(self) -> Config | None:
        """What the estimator proposes, unless it insists on what is known."""
        for _ in range(REPEATS):
            trial = self._study.ask(self._distributions)
            config = self._config({name: self._values[name][place] for name, place in trial.params.items()})
            if self._is_new(config):
                self._asked[config] = trial
                return config
            if config in self._told:
                self._study.tell(trial, self._told[config])
            else:
                self._study.tell(trial, state=_failed())
        return None

    def _at_random(self) -> Config | None:
        rate = min(0.5, TURNED / len(self._values))
        for _ in range(DRAWS):
            turned = {name: self._draw.choice(values) for name, values in self._values.items() if self._draw.random() < rate}
            config = self._config({**self._defaults, **turned})
            if self._is_new(config):
                return config
        return None

    def _in_order(self) -> Iterator[Config]:
        """All configs, by the number of knobs turned."""
        others = {name: [one for one in values if one != self._defaults[name]] for name, values in self._values.items()}
        for count in range(len(others) + 1):
            for names in itertools.combinations(others, count):
                for values in itertools.product(*(others[name] for name in names)):
                    yield self._config({**self._defaults, **dict(zip(names, values, strict=True))})

    def _config(self, chosen: Mapping[str, Value | None]) -> Config:
        turned = ((name, value) for name, value in chosen.items() if value is not None and value != self._defaults[name])
        return tuple(sorted(turned))

    def _add(self, chosen: Mapping[str, Value | None], value: float) -> None:
        from optuna.trial import create_trial

        places = {name: self._values[name].index(one) for name, one in chosen.items()}
        self._study.add_trial(create_trial(params=places, distributions=self._distributions, value=value))


def _among(value: object, values: Iterable[object]) -> bool:
    return any(value == one and type(value) is type(one) for one in values)


def _study(seed: int) -> Any:
    """A study without a store. Optuna would tell of each trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=1)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


def _distributions(values: Mapping[str, tuple[Value | None, ...]]) -> dict[str, Any]:
    """Places on the grid. As categories, also of numbers: that found more, on made-up separable objectives."""
    from optuna.distributions import CategoricalDistribution

    return {name: CategoricalDistribution(range(len(grid))) for name, grid in values.items()}
