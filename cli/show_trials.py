"""What `tuner show` says of trials: under which conditions they were measured, and which candidates are in quarantine and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from tuner.cli.output import SHORT_KEY, print_json, print_table, workload_json
from tuner.lookup.quarantine import describe_verdict
from tuner.measurement import Measurement

Spec = Callable[[Measurement], str | None]
# what is read about quietness (tuner.measure.quietness.observed), and how it is called here
RATES = (("other_cores", "cores' worth used by others"), ("stolen_cores", "kept back by the hypervisor"), ("load_1m", "load"))
NO_QUARANTINE = "no candidate is in quarantine"


def conditions_of(trials: Iterable[Measurement]) -> dict[str, list[float]]:
    """Least and greatest value of what was read about quietness while the trials were measured; what nobody read is absent."""
    seen: dict[str, list[float]] = {}
    for trial in trials:
        conditions = trial.provenance.get("conditions")
        if isinstance(conditions, Mapping):
            for name, value in _readings(conditions):
                seen.setdefault(name, []).append(value)
    return {name: [min(values), max(values)] for name, values in seen.items()}


def _readings(conditions: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The readings that sum up to a range; a GPU's count as `gpu_mhz` and `gpu_other_processes`."""
    named = [(name, conditions.get(name)) for name in ("other_cores", "stolen_cores", "load_1m")]
    named += [("mhz", value) for value in _list(conditions.get("mhz"))]
    for gpu in _list(conditions.get("gpu")):
        if isinstance(gpu, Mapping):
            named += [("gpu_mhz", gpu.get("sm_mhz")), ("gpu_other_processes", gpu.get("other_processes"))]
    yield from ((name, value) for name, value in named if isinstance(value, int | float))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def describe_conditions(trials: Iterable[Measurement]) -> str:
    """`conditions_of` in one line for people; empty where nothing was read."""
    seen = conditions_of(trials)
    parts = [f"{_range(seen[name])} {text}" for name, text in RATES if name in seen]
    parts += [f"{text}{_range(seen[name], '.0f')} MHz" for name, text in (("mhz", ""), ("gpu_mhz", "GPU ")) if name in seen]
    if "gpu_other_processes" in seen:
        parts.append(f"{_range(seen['gpu_other_processes'], '.0f')} other processes on the GPU")
    return ", ".join(parts)


def _range(bounds: Sequence[float], form: str = ".3g") -> str:
    low, high = (format(bound, form) for bound in bounds)
    return low if low == high else f"{low} to {high}"


def verdict_of(trial: Measurement) -> str:
    return describe_verdict(trial.status, trial.message, trial.error)


def trial_json(trial: Measurement, spec: str | None) -> dict[str, Any]:
    """A trial that failed."""
    return {
        **workload_json(trial.query, spec, trial.program_key),
        "plan": trial.plan.to_json(),
        "status": trial.status,
        "stage": trial.stage,
        "reason": verdict_of(trial),
        "message": trial.message,
        "traceback": trial.provenance.get("traceback"),
        "date": trial.provenance.get("date"),
        "toolchain": dict(trial.query.toolchain),
        "ambient": dict(trial.query.ambient),
    }


def list_quarantine(trials: Sequence[Measurement], spec_of: Spec, as_json: bool, verbose: bool) -> None:
    """One line for each candidate in quarantine."""
    if as_json:
        print_json([trial_json(trial, spec_of(trial)) for trial in trials])
        return
    if not trials:
        click.echo(NO_QUARANTINE)
        return
    rows = [
        (
            trial.query.workload_key[:SHORT_KEY],
            trial.query.target_name,
            spec_of(trial) or "-",
            verdict_of(trial),
            trial.plan.describe(),
        )
        for trial in trials
    ]
    print_table(("workload", "target", "spec", "verdict", "plan"), rows)
    if verbose:
        print_tracebacks(trials)


def print_tracebacks(trials: Iterable[Measurement]) -> None:
    """The traceback that each trial left, if any."""
    for trial in trials:
        if text := trial.provenance.get("traceback"):
            click.echo(f"\n{trial.plan.describe()}: {trial.status}")
            click.echo("\n".join(f"  {line}" for line in str(text).splitlines()))
