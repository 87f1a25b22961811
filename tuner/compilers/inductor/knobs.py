"""Which knobs this machine and its torch can run with: asked before anything is compiled with them."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.compilers.inductor.hooks import inductor_config
from tuner.errors import PlanRefused
from tuner.plan import ConfigValue
from tuner.search_spaces.inductor_knobs import KNOBS

# What a candidate is refused for that another machine or torch could run.
CANNOT_RUN = "not on this machine"


def unrunnable(config: Iterable[tuple[str, ConfigValue]], backend: str = "cpu") -> str:
    """Why a graph cannot be compiled with these knobs here, in words; "" where it can be.

    Of what would go wrong silently, or with an error that tells nothing. config: declared knobs with values within their ranges,
    see `check_plan`.
    """
    for name, _ in config:
        if name not in inductor_config._config:
            return f"this torch has no setting torch._inductor.config.{name}"
        if backend not in KNOBS[name].backends:
            return f"{name} means nothing on {backend}"
    return ""


def check_runnable(config: Iterable[tuple[str, ConfigValue]]) -> None:
    """Raises PlanRefused for knobs with which this machine, or its torch, cannot run."""
    if reason := unrunnable(config):
        raise PlanRefused(reason, CANNOT_RUN)
