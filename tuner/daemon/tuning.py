"""The tuning process of one job: what a compile reported, rebuilt, searched and measured; winners go to the store.

    python -P -m tuner.daemon.tuning --store PATH --report PATH --effort quick --when-busy wait --parent PID

It says on standard output how it gets on, one JSON object a line: {"phase", "best"} of the graph that is being tuned, and in the
end {"ended", "reason"}. ended: "done", "refused" (it cannot be tuned here), "failed", "crash" (a measuring process failed, which
may be no fault of the job), "busy" (the machine was too loud, or another process measured), "store" (the store cannot be written
now). It dies with the daemon that started it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.canonical import differing_fields, named_fields
from tuner.errors import DeviceBusy, SpecError, StoreError, TunerError, UnsupportedGraph, WorkerError, one_line
from tuner.target import Query
from tuner.workers.guard import fork_guarded
from tuner.workload.miss_report import MissReport

if TYPE_CHECKING:
    from tuner.search.effort import Effort
    from tuner.search.sweep import Sweep

# Half way to the lowest priority: behind all that the user runs, but not at a standstill.
NICENESS = 10
Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--effort", required=True)
    parser.add_argument("--when-busy", choices=("wait", "measure"), required=True)
    parser.add_argument("--parent", type=int, required=True)
    told = parser.parse_args()
    # Nobody waits for what is compiled and measured here, but users do for what they run meanwhile: that goes first. All that is
    # started from here inherits it, and the guards pass it on to their sessions.
    os.nice(NICENESS)
    fork_guarded(told.parent)
    # What compilers print must not get between the lines that the daemon reads.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(value: dict[str, Any]) -> None:
        lines.write(json.dumps(value) + "\n")

    ended, reason = tune(told.store, told.report, told.effort, told.when_busy, tell)
    tell({"ended": ended, "reason": reason})


def tune(store: Path, report: Path, effort: str, when_busy: str, tell: Tell) -> tuple[str, str]:
    """Tunes the program in the file `report`; gives how that ended, and why."""
    from tuner.search.effort import EFFORTS

    chosen = EFFORTS[effort]
    if when_busy == "measure":
        chosen = replace(chosen, patience=0)
    try:
        miss = MissReport.from_json(json.loads(report.read_text()))
        settle_in(miss.program)
    except UnsupportedGraph as error:
        return "refused", str(error)
    except (SpecError, ValueError) as error:
        return "refused", f"the report cannot be used: {error}"
    except OSError as error:
        return "failed", one_line(error)
    try:
        return _sweep(miss, store, chosen, tell)
    except StoreError as error:
        return "store", str(error)
    except DeviceBusy as error:
        return "busy", str(error)
    except WorkerError as error:
        return "crash", one_line(error)
    except (TunerError, OSError) as error:
        return "failed", one_line(error)


def settle_in(program: Query) -> None:
    """Makes this process one that tunes for `program`. Raises UnsupportedGraph, naming the fields, where it cannot be that."""
    import torch

    from tuner.compilers.inductor.ambient import as_keyed, cpu_target, cpu_toolchain
    from tuner.compilers.inductor.hooks import missing_hooks

    if missing := missing_hooks():
        raise UnsupportedGraph("missing_hooks", f"this torch lacks {', '.join(missing)}: no plan could be applied")
    for name, here in (("target", cpu_target().fields()), ("toolchain", cpu_toolchain())):
        asked = named_fields(program.target if name == "target" else program.toolchain)
        if differences := differing_fields(asked, named_fields(here)):
            told = "; ".join(differences).replace("(stored ", "(here ")
            raise UnsupportedGraph(name, f"the program was compiled for another {name}: {told}")
    threads = int(program.ambient["threads"])
    if threads > (os.cpu_count() or 1):
        raise UnsupportedGraph("threads", f"the program was compiled for {threads} threads, here are {os.cpu_count()} cores")
    torch.set_num_threads(threads)
    with as_keyed(program.ambient):
        pass


def _sweep(miss: MissReport, store: Path, effort: Effort, tell: Tell) -> tuple[str, str]:
    from tuner.cache.sqlite import SqliteStore
    from tuner.measurement import Policy
    from tuner.search.backward_data import filled
    from tuner.search.rules import Rules
    from tuner.search.sweep import plan_sweep, run_sweep
    from tuner.search.workloads import Resolved, sizes_of

    spec = f"program {miss.program.workload_key[:12]}"
    queries = zip(miss.graphs, miss.queries, strict=True)
    workloads = [Resolved(spec, graph, query, miss.program, sizes_of(graph)) for graph, query in queries]
    sweep = plan_sweep(filled(workloads), effort, lambda: _tell_progress(sweep, tell))

    def wait(for_what: str) -> None:
        # The daemon looks again later, and can yield meanwhile; who waits here in silence is taken for hung.
        raise DeviceBusy(for_what)

    with SqliteStore(store) as opened:
        # What a user's sweep allowed is not undone behind his back.
        rules = Rules(keeps_numerics=True)
        run_sweep(sweep, opened, Policy.for_cpu(miss.threads), effort, again=False, rules=rules, wait=wait)
    return _ending(sweep)


def _tell_progress(sweep: Sweep, tell: Tell) -> None:
    """What the graph does that is furthest from its end."""
    ended = ("waiting", "done", "settled", "failed", "not tuned")
    going = [one.progress for one in sweep.outcomes if one.progress.phase not in ended]
    shown = going[-1] if going else sweep.outcomes[-1].progress
    tell({"phase": shown.phase, "best": shown.best})


def _ending(sweep: Sweep) -> tuple[str, str]:
    errors = [outcome.error for outcome in sweep.outcomes if outcome.error is not None]
    won = sum(outcome.winner is not None and outcome.winner.kind == "plan" for outcome in sweep.outcomes)
    for kind, ended in ((DeviceBusy, "busy"), (WorkerError, "crash")):
        if found := [error for error in errors if isinstance(error, kind)]:
            return ended, str(found[0])
    if len(errors) == len(sweep.outcomes):
        return "refused", str(errors[0])
    told = f"{won} of {len(sweep.outcomes)} graphs have a plan that beats the default"
    return "done", f"{told}; {len(errors)} cannot be tuned: {errors[0]}" if errors else told


if __name__ == "__main__":
    main()
