"""`tuner show`: what the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.kernels import Kernels
from tuner.cli.output import (
    SHORT_KEY,
    Varying,
    by_size,
    graphs_of,
    json_option,
    named,
    phase_option,
    print_block,
    print_json,
    print_table,
    settings_for,
    speedup,
    store_option,
    varying_of,
    varying_options,
    winner_json,
    workload_json,
)
from tuner.cli.show_kernels import print_kernels, summary_of
from tuner.cli.show_trials import (
    conditions_of,
    describe_conditions,
    list_quarantine,
    print_tracebacks,
    trial_json,
    verdict_of,
)
from tuner.errors import SpecError, TunerError, UsageError
from tuner.measurement import STATUSES, Measurement, ProgramFinal, Winner, what_was_wrong
from tuner.plan import describe_groups
from tuner.target import Query
from tuner.workload.graph import SpecPhase, is_stored_key

if TYPE_CHECKING:
    from tuner.cache.contract import Store
    from tuner.lookup.reader import StoreReader


# parts of a winner's evidence that have lines of their own
TOLD_APART = ("by_size", "kernels")


@click.command(short_help="List the winners of a store, or explain one.")
@click.argument("spec_or_key", required=False)
@click.option("--quarantined", is_flag=True, help="List the candidates that are not tried or served again, and why.")
@click.option(
    "--svg", type=click.Path(path_type=Path), help="Draw the kernels of one graph into this file, default beside winner."
)
@click.option("--verbose", "-v", is_flag=True, help="Also show the traceback of what failed.")
@varying_options
@phase_option
@store_option
@json_option
def show(
    spec_or_key: str | None,
    quarantined: bool,
    svg: Path | None,
    verbose: bool,
    dims: tuple[str, ...],
    dynamic: bool,
    phase: SpecPhase | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """List the winners of a store; with a SPEC or a workload key (6 hex digits or more), show how each was measured.

    What is shown of a winner includes its kernels, beside those of the default.
    """
    from tuner.cache.sqlite import SqliteStore
    from tuner.lookup.reader import StoreReader

    if svg is not None and (spec_or_key is None or quarantined):
        raise UsageError("--svg draws one graph: name it by SPEC or key, without --quarantined")
    path = settings_for(store).store
    with SqliteStore(path, read_only=True) as opened:
        keys = None if spec_or_key is None else workload_keys(opened, spec_or_key, varying_of(dims, dynamic), phase)
        if svg is not None and keys is not None:
            drawn = draw_kernels(opened, keys, svg)
            if not as_json:
                click.echo(drawn)
                return
        if quarantined:
            trials = [trial for trial in opened.quarantine() if keys is None or trial.query.workload_key in keys]
            list_quarantine(trials, partial(spec_of, opened), as_json, verbose)
        elif keys is None:
            list_winners(opened, as_json)
        else:
            explain_workloads(opened, StoreReader(path), keys, as_json, verbose)


def list_winners(store: Store, as_json: bool) -> None:
    """One line for each winner."""
    found = [(spec_of(store, winner), winner, generation) for winner, generation in store.winners()]
    if as_json:
        phases = {winner.query.workload_key: phase_of(store, winner.query) for _, winner, _ in found}
        print_json([summary(*one) | {"phase": phases[one[1].query.workload_key]} for one in found])
        return
    if not found:
        click.echo("no winners yet: `tuner sweep SPEC` looks for some")
        return
    rows = [
        (
            winner.query.workload_key[:SHORT_KEY],
            winner.query.target_name,
            spec or "-",
            phase_of(store, winner.query) or "-",
            winner.kind,
            speedup(winner.speedup, winner.speedup_low, winner.speedup_high) if winner.kind == "plan" else "1",
            winner.plan.describe() if winner.kind == "plan" else "-",
        )
        for spec, winner, _ in found
    ]
    print_table(("workload", "target", "spec", "phase", "winner", "speed-up", "plan"), rows)


def workload_keys(store: Store, spec_or_key: str, varying: Varying = ({}, False), phase: SpecPhase | None = None) -> list[str]:
    """The workloads that are meant. Raises SpecError, also on a key that names none or several."""
    if is_stored_key(spec_or_key):
        keys = set(store.find_graphs(spec_or_key))
        keys |= {winner.query.workload_key for winner, _ in store.winners() if winner.query.workload_key.startswith(spec_or_key)}
        made = {program.query.workload_key: program.graphs for program in store.find_programs(spec_or_key)}
        if len(made) == 1 and not keys:
            return [graph.workload_key for graphs in made.values() for graph in graphs]
        keys |= set(made)
        if not keys:
            raise SpecError(f"no workload in the store has a key that starts with {spec_or_key}")
        if len(keys) > 1:
            raise SpecError(f"{len(keys)} workloads have a key that starts with {spec_or_key}: give more digits")
        return sorted(keys)

    resolved = graphs_of(spec_or_key, None, store.graph, store.find_graphs, varying, phase)
    return list(dict.fromkeys(workload.query.workload_key for workload in resolved))


def explain_workloads(store: Store, reader: StoreReader, keys: Sequence[str], as_json: bool, verbose: bool) -> None:
    """All that is known of each workload, one block for each target, toolchain and setting."""
    found = []
    for key in keys:
        exact_keys = store.exact_keys(key)
        if not exact_keys and not as_json:
            click.echo(f"nothing measured for workload {key[:SHORT_KEY]}")
        for exact_key in exact_keys:
            latest, trials = store.winner(exact_key), store.measurements(exact_key)
            if latest is None and not trials:
                continue
            known = Known.of(store, reader, latest, trials)
            if as_json:
                found.append(details(store, known))
            else:
                print_details(store, known, verbose)
    if as_json:
        print_json(found)


def draw_kernels(store: Store, keys: Sequence[str], file: Path) -> str:
    """Draw the latest winner of one graph into a file, and say so in one line.

    Raises UsageError where several graphs are meant, TunerError where nothing can be drawn or written.
    """
    from tuner.cli.drawing import drawing, write_atomically

    if len(keys) != 1:
        raise UsageError(f"--svg draws one graph, of these {len(keys)}: {', '.join(key[:SHORT_KEY] for key in keys)}")
    latest = [found for exact_key in store.exact_keys(keys[0]) if (found := store.winner(exact_key)) is not None]
    if not latest:
        raise TunerError(f"nothing to draw: workload {keys[0][:SHORT_KEY]} has no winner yet")
    # of several targets or settings, the one that was settled last, if its kernels are known
    known = [(not Kernels.of(winner.evidence).missing, generation, winner) for winner, generation in latest]
    winner = max(known, key=lambda one: one[:2])[2]
    query = winner.query
    names = [spec_of(store, winner) or "workload", phase_of(store, query) or "", keys[0][:SHORT_KEY], query.target_name]
    text = drawing(
        Kernels.of(winner.evidence),
        "  ".join(filter(None, names)),
        speedup(winner.speedup, winner.speedup_low, winner.speedup_high) if winner.kind == "plan" else "",
    )
    write_atomically(file, text)
    return f"drew the kernels of {'  '.join(filter(None, names))} into {file}"


def summary(spec: str | None, winner: Winner, generation: int) -> dict[str, Any]:
    return {**workload_json(winner.query, spec, winner.program_key), **winner_json(winner, generation)}


@dataclass(frozen=True)
class Final:
    """What the final of a whole callable said, and whether it is about the plans that are in force."""

    told: ProgramFinal
    in_force: bool

    @staticmethod
    def of(store: Store, reader: StoreReader, program: str) -> Final | None:
        """That of a program by its exact-match key, if there is one."""
        plans = reader.plans_in_force(program)
        found = store.program_final(program, plans) or store.program_final(program)
        return None if found is None else Final(found[0], found[0].plans == plans)


@dataclass(frozen=True)
class Known:
    """What the store knows of one exact match.

    latest: its winner and generation. finals: one of each of its programs: the latest of the plans in force, else the latest of
    other plans. withheld: why the plan that won is not served, or empty.
    """

    query: Query
    latest: tuple[Winner, int] | None
    trials: Sequence[Measurement]
    quarantined: Sequence[Measurement]
    finals: Sequence[Final]
    withheld: str

    @staticmethod
    def of(store: Store, reader: StoreReader, latest: tuple[Winner, int] | None, trials: Sequence[Measurement]) -> Known:
        query = latest[0].query if latest else trials[0].query
        programs = [one.exact_key for one in store.programs_of(query.workload_key) if one.graph_exact_key == query.exact_key]
        finals = [final for program in dict.fromkeys(programs) if (final := Final.of(store, reader, program)) is not None]
        withheld = ""
        if latest and latest[0].kind == "plan":
            answers = [reader.answer(query), *(reader.program(final.told.query).answers.get(query.exact_key) for final in finals)]
            withheld = next((answer.reason for answer in answers if answer and answer.plan.is_default), "")
        return Known(query, latest, trials, list(store.quarantined(query).values()), finals, withheld)

    @property
    def last(self) -> Winner | Measurement:
        return self.latest[0] if self.latest else self.trials[0]

    @property
    def finalists(self) -> Sequence[Measurement]:
        """The trials of the final, or all where none was held."""
        return [trial for trial in self.trials if trial.stage == "final"] or self.trials


def details(store: Store, known: Known) -> dict[str, Any]:
    """The JSON of one exact match; `winner` is null where no sweep has come to an end."""
    query, trials, spec = known.query, known.trials, spec_of(store, known.last)
    if known.latest:
        winner = known.latest[0]
        head = summary(spec, *known.latest) | {
            "policy": winner.policy.fields(),
            "evidence": {name: value for name, value in winner.evidence.items() if name != "kernels"},
            "kernels": Kernels.of(winner.evidence).to_json(),
            "provenance": dict(winner.provenance),
        }
    else:
        head = {**workload_json(query, spec, known.last.program_key), "winner": None}
    return head | {
        "phase": phase_of(store, query),
        "withheld": known.withheld or None,
        "programs": [program_json(final) for final in known.finals],
        "toolchain": dict(query.toolchain),
        "ambient": dict(query.ambient),
        "conditions": conditions_of(known.finalists),
        "candidates_measured": len({trial.plan for trial in trials if trial.status == "ok"}),
        "candidates_failed": failed(trials),
        "quarantined": [trial_json(trial, spec) for trial in known.quarantined],
        "trials": dict(Counter(trial.status for trial in trials)),
    }


def program_json(final: Final) -> dict[str, Any]:
    told = final.told
    return {
        "program_key": told.query.workload_key,
        "in_force": final.in_force,
        "verdict": told.verdict,
        "default_ms": told.default_ms,
        "planned_ms": told.planned_ms,
        "speedup": told.speedup,
        "speedup_low": told.speedup_low,
        "speedup_high": told.speedup_high,
        "policy": told.policy.fields(),
        "evidence": dict(told.evidence),
        "provenance": dict(told.provenance),
    }


def print_details(store: Store, known: Known, verbose: bool) -> None:
    query, last = known.query, known.last
    lines = [
        ("phase", phase_of(store, query) or ""),
        ("target", query.target_name),
        ("toolchain", named(query.toolchain)),
        ("ambient", named(query.ambient)),
        ("program", (last.program_key or "")[:SHORT_KEY]),
        *(winner_lines(*known.latest, known) if known.latest else [("winner", "none yet: no sweep of it has come to an end")]),
        ("not served", known.withheld),
        *(("whole", whole(final)) for final in known.finals),
        ("conditions", describe_conditions(known.finalists)),
    ]
    counts = Counter(trial.status for trial in known.trials)
    lines.append(("trials", ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status]) or "none"))
    lines += [("quarantined", f"{trial.plan.describe()}: {verdict_of(trial)}") for trial in known.quarantined]
    print_block(f"{spec_of(store, last) or 'workload'}  {query.workload_key[:SHORT_KEY]}", lines)
    if known.latest:
        print_kernels(Kernels.of(known.latest[0].evidence))
    if verbose:
        print_tracebacks(known.trials)


def winner_lines(winner: Winner, generation: int, known: Known) -> list[tuple[str, str]]:
    plan = winner.kind == "plan"
    return [
        ("winner", f"plan: {winner.plan.describe()}" if plan else "default, settled"),
        ("groups", describe_groups(winner.groups) if winner.groups else ""),
        ("speed-up", speedup(winner.speedup, winner.speedup_low, winner.speedup_high) if plan else ""),
        ("time", f"{winner.winner_ms:.4g} ms, default {winner.default_ms:.4g} ms" if plan else f"{winner.default_ms:.4g} ms"),
        ("measured", winner.policy.describe()),
        ("samples", final_samples(winner, known.trials)),
        ("effort", f"{winner.effort}, space {winner.space_version}, generation {generation}"),
        ("by size", by_size(winner.evidence)),
        ("evidence", named({name: value for name, value in winner.evidence.items() if name not in TOLD_APART})),
        ("kernels", summary_of(Kernels.of(winner.evidence))),
        ("provenance", named(winner.provenance)),
    ]


def whole(final: Final) -> str:
    """The whole callable of a program, in one line."""
    told = final.told
    why = what_was_wrong(told.evidence) or speedup(told.speedup, told.speedup_low, told.speedup_high)
    line = f"{told.verdict} for program {told.query.workload_key[:SHORT_KEY]}: {why}"
    return line if final.in_force else f"latest final, of other plans: {line}"


def final_samples(winner: Winner, trials: Sequence[Measurement]) -> str:
    """How many samples of the winner the final took, in how many processes; every final trial has samples of the default."""
    default = winner.kind == "default"
    # Those at single sizes, of which a program's choice is made, are others.
    final = [trial for trial in trials if (trial.stage, trial.status, trial.policy) == ("final", "ok", winner.policy)]
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


def phase_of(store: Store, query: Query) -> str | None:
    """Of a graph that is stored: "inference", "forward" or "backward"."""
    form = store.graph(query.workload_key)
    return None if form is None else form.get("phase")


def spec_of(store: Store, value: Winner | Measurement) -> str | None:
    """How a user last named the program that the workload came from."""
    programs = store.programs_of(value.query.workload_key)
    own = [program for program in programs if program.program_key == value.program_key]
    return (own or programs)[-1].spec if programs else None
