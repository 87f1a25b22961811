"""`tuner jobs`: what the daemon tunes, has tuned and will tune."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tuner.cli.output import SHORT_KEY, json_option, print_json, print_table, settings_for, socket_option, store_option
from tuner.cli.status import ask_if_there

NO_DAEMON = "no daemon serves this store: `tuner serve` starts one"
NOT_TUNING = "the daemon that serves this store was told not to tune (--no-tune)"


@click.command(short_help="Show the programs that the daemon tunes in the background.")
@store_option
@socket_option
@json_option
def jobs(store: Path | None, socket: Path | None, as_json: bool) -> None:
    """Show the programs that compiles reported as unknown, and what became of them, the latest last.

    queued: its turn comes; waiting: not now, the reason says why; running: its phase and the best speed-up so far; done: its
    winners are in the store; refused: it cannot be tuned here; failed: it was tried and given up. Without a daemon the jobs are
    read beside the store.
    """
    from tuner.daemon.jobs import Jobs, jobs_folder

    settings = settings_for(store, socket)
    answer = ask_if_there(settings.socket, "jobs")
    if answer is None:
        kept = Jobs(jobs_folder(settings.store))
        answer = {"jobs": [job.to_json() for job in kept.all()], "ignored": kept.ignored}
        in_the_way = NO_DAEMON
    else:
        in_the_way = NOT_TUNING if answer["tuning"] is None else answer["tuning"]["reason"]
    now = time.time()
    shown = [_shown(job, in_the_way, now) for job in answer["jobs"]]
    if as_json:
        print_json({"jobs": shown, "ignored": answer["ignored"]})
        return
    if not shown:
        click.echo("no jobs")
    else:
        header = ("program", "graphs", "target", "state", "age", "attempts", "reason")
        print_table(header, [_row(job) for job in shown])
    if answer["ignored"]:
        click.echo(f"{answer['ignored']} files beside the store are no jobs and are ignored", err=True)


def _shown(job: dict[str, Any], in_the_way: str, now: float) -> dict[str, Any]:
    """A job as it is told: a queued one whose time has not come, or that something is in the way of, is waiting."""
    state, reason = job["state"], job["reason"]
    left_s = job["not_before"] - now
    if state == "queued" and left_s > 0:
        state, reason = "waiting", f"{reason}; again in {left_s:.0f} s"
    elif state == "queued" and in_the_way:
        state, reason = "waiting", in_the_way
    return {
        **{name: job[name] for name in ("program_key", "workload_keys", "target")},
        "state": state,
        "reason": reason,
        "phase": job["phase"],
        "best": job["best"],
        "attempts": job["attempts"],
        "age_s": round(now - job["created"], 1),
    }


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    reason = f"{job['phase']}, best {job['best']:.2f}x" if job["state"] == "running" else job["reason"]
    keys, program = job["workload_keys"], job["program_key"][:SHORT_KEY]
    return (program, str(len(keys)), job["target"], job["state"], _age(job["age_s"]), str(job["attempts"]), reason)


def _age(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
