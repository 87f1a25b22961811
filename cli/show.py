"""`tuner show`: what the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.output import (
    SHORT_KEY,
    graphs_of,
    json_option,
    named,
    print_block,
    print_json,
    print_table,
    settings_for,
    speedup,
    store_option,
    winner_json,
    workload_json,
)
from tuner.errors import SpecError
from tuner.measurement import STATUSES, Measurement, Winner
from tuner.plan import describe_groups
from tuner.workload.graph import is_stored_key

if TYPE_CHECKING:
    from tuner.cache.contract import Store


@click.command(short_help="List the winners of a store, or explain one.")
@click.argument("spec_or_key", required=False)
@store_option
@json_option
def show(spec_or_key: str | None, store: Path | None, as_json: bool) -> None:
    """List the winners of a store; with a SPEC or a workload key (6 hex digits or more), show how each was measured."""
    from tuner.cache.sqlite import SqliteStore

    with SqliteStore(settings_for(store).store, read_only=True) as opened:
        if spec_or_key is None:
            list_winners(opened, as_json)
        else:
            explain_workloads(opened, workload_keys(opened, spec_or_key), as_json)


def list_winners(store: Store, as_json: bool) -> None:
    """One line for each winner."""
    found = [(spec_of(store, winner), winner, generation) for winner, generation in store.winners()]
    if as_json:
        print_json([summary(spec, winner, generation) for spec, winner, generation in found])
        return
    if not found:
        click.echo("no winners yet: `tuner sweep SPEC` looks for some")
        return
    rows = [
        (
            winner.query.workload_key[:SHORT_KEY],
            winner.query.target_name,
            spec or "-",
            winner.kind,
            speedup(winner.speedup, winner.speedup_low, winner.speedup_high) if winner.kind == "plan" else "1",
            winner.plan.describe() if winner.kind == "plan" else "-",
        )
        for spec, winner, _ in found
    ]
    print_table(("workload", "target", "spec", "winner", "speed-up", "plan"), rows)


def workload_keys(store: Store, spec_or_key: str) -> list[str]:
    """The workloads that are meant. Raises SpecError, also on a key that names none or several."""
    if is_stored_key(spec_or_key):
        keys = set(store.find_graphs(spec_or_key))
        keys |= {winner.query.workload_key for winner, _ in store.winners() if winner.query.workload_key.startswith(spec_or_key)}
        if not keys:
            raise SpecError(f"no workload in the store has a key that starts with {spec_or_key}")
        if len(keys) > 1:
            raise SpecError(f"{len(keys)} workloads have a key that starts with {spec_or_key}: give more digits")
        return sorted(keys)

    resolved = graphs_of(spec_or_key, None, store.graph, store.find_graphs)
    return list(dict.fromkeys(workload.query.workload_key for workload in resolved))


def explain_workloads(store: Store, keys: Sequence[str], as_json: bool) -> None:
    """All that is known of each workload, one block for each target, toolchain and setting."""
    found = []
    for key in keys:
        exact_keys = store.exact_keys(key)
        if not exact_keys and not as_json:
            click.echo(f"nothing measured for workload {key[:SHORT_KEY]}")
        for exact_key in exact_keys:
            latest, trials = store.winner(exact_key), store.measurements(exact_key)
            if as_json:
                found.append(details(store, latest, trials))
            else:
                print_details(store, latest, trials)
    if as_json:
        print_json([one for one in found if one])


def summary(spec: str | None, winner: Winner, generation: int) -> dict[str, Any]:
    return {**workload_json(winner.query, spec, winner.program_key), **winner_json(winner, generation)}


def details(store: Store, latest: tuple[Winner, int] | None, trials: Sequence[Measurement]) -> dict[str, Any]:
    """The JSON of one exact match; `winner` is null where no sweep has come to an end."""
    query = latest[0].query if latest else trials[0].query if trials else None
    if query is None:
        return {}
    if latest:
        winner = latest[0]
        head = summary(spec_of(store, winner), *latest) | {
            "policy": winner.policy.fields(),
            "evidence": dict(winner.evidence),
            "provenance": dict(winner.provenance),
        }
    else:
        head = {**workload_json(query, spec_of(store, trials[0]), trials[0].program_key), "winner": None}
    return head | {
        "toolchain": dict(query.toolchain),
        "ambient": dict(query.ambient),
        "candidates_measured": len({trial.plan for trial in trials if trial.status == "ok"}),
        "candidates_failed": failed(trials),
        "trials": dict(Counter(trial.status for trial in trials)),
    }


def print_details(store: Store, latest: tuple[Winner, int] | None, trials: Sequence[Measurement]) -> None:
    one = details(store, latest, trials)
    if not one:
        return
    lines = [
        ("target", one["target"]),
        ("toolchain", named(one["toolchain"])),
        ("ambient", named(one["ambient"])),
        ("program", (one["program_key"] or "")[:SHORT_KEY]),
    ]
    if latest:
        winner, generation = latest
        plan = winner.kind == "plan"
        lines += [
            ("winner", f"plan: {winner.plan.describe()}" if plan else "default, settled"),
            ("groups", describe_groups(winner.groups) if winner.groups else ""),
            ("speed-up", speedup(winner.speedup, winner.speedup_low, winner.speedup_high) if plan else ""),
            ("time", f"{winner.winner_ms:.4g} ms, default {winner.default_ms:.4g} ms" if plan else f"{winner.default_ms:.4g} ms"),
            ("measured", winner.policy.describe()),
            ("samples", final_samples(winner, trials)),
            ("effort", f"{winner.effort}, space {winner.space_version}, generation {generation}"),
            ("evidence", named(winner.evidence)),
            ("provenance", named(winner.provenance)),
        ]
    else:
        lines.append(("winner", "none yet: no sweep of it has come to an end"))
    counts = Counter(trial.status for trial in trials)
    lines.append(("trials", ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]) or "none"))
    print_block(f"{one['spec'] or 'workload'}  {one['workload_key'][:SHORT_KEY]}", lines)


def final_samples(winner: Winner, trials: Sequence[Measurement]) -> str:
    """How many samples of the winner the final took, in how many processes; every final trial has samples of the default."""
    default = winner.kind == "default"
    final = [trial for trial in trials if trial.stage == "final" and trial.status == "ok"]
    counts = {
        trial.process: len(trial.default_samples_ms if default else trial.samples_ms)
        for trial in final
        if default or trial.plan == winner.plan
    }
    return f"{sum(counts.values())} in {len(counts)} process{'es' if len(counts) != 1 else ''}" if counts else ""


def failed(trials: Sequence[Measurement]) -> dict[str, int]:
    """Candidates that were never measured, by the status of their last trial."""
    measured = {trial.plan for trial in trials if trial.status == "ok"}
    last = {trial.plan: trial.status for trial in trials if trial.plan not in measured}
    return dict(Counter(last.values()))


def spec_of(store: Store, value: Winner | Measurement) -> str | None:
    """How a user last named the program that the workload came from."""
    programs = store.programs_of(value.query.workload_key)
    own = [program for program in programs if program.program_key == value.program_key]
    return (own or programs)[-1].spec if programs else None
