"""`tuner sweep` without its search: what the options ask for, what is told at the end, and the exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stored import program, program_final, query, settled, winner

from tuner.cli.main import main
from tuner.errors import DeviceBusy, UnsupportedGraph, WorkerDied
from tuner.measurement import Policy
from tuner.search.effort import EFFORTS
from tuner.search.rules import Rules
from tuner.search.sweep import Outcome, Sweep
from tuner.search.workloads import Resolved
from tuner.workload.graph import Graph, Node

GRAPH = Graph("inference", (), [], (), ())
Ending = Callable[[list[Outcome]], None]


def won(outcomes: list[Outcome]) -> None:
    """The first graph has a plan that won, the second keeps the default; together they are confirmed."""
    outcomes[0].winner, outcomes[1].winner = winner(query("a")), settled(query("b"))
    final = program_final(outcomes[0].winner, verdict="confirmed", speedup=1.8, speedup_low=1.7, speedup_high=1.9, planned_ms=1.1)
    for generation, outcome in enumerate(outcomes, 1):
        outcome.generation, outcome.whole = generation, final
        outcome.progress.measured = 3
        outcome.progress.seconds_spent.update(compiling=2.0, measuring=1.0)
        outcome.progress.enter("done")


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """The command over two graphs of one SPEC; the search ends as `ending` says. Gives what it was asked for too."""

    def run(*arguments: str, ending: Ending = won) -> tuple[Result, dict[str, Any]]:
        asked: dict[str, Any] = {}

        def searching(plan: Sweep, store: Any, policy: Any, effort: Any, again: bool, rules: Any, wait: Any) -> None:
            asked.update(policy=policy, effort=effort, again=again, rules=rules, wait=wait)
            plan.started -= 10.0
            plan.whole_seconds = 2.0
            ending(plan.outcomes)

        def graphs_of(spec: str, threads: int | None, *_: Any) -> list[Resolved]:
            import torch

            asked["threads"] = threads
            ambient = {"threads": threads or torch.get_num_threads()}
            return [Resolved(spec, GRAPH, query(name, ambient=ambient), program(ambient=ambient)) for name in ("a", "b")]

        monkeypatch.setattr("tuner.search.sweep.run_sweep", searching)
        monkeypatch.setattr("tuner.cli.sweep.graphs_of", graphs_of)
        result = CliRunner().invoke(main, ["sweep", "made.py:f", "--store", str(tmp_path / "store.db"), *arguments])
        return result, asked

    return run


def test_what_is_asked_for_where_nothing_is_said(sweep) -> None:
    import torch

    result, asked = sweep()
    assert result.exit_code == 0, result.output
    threads = torch.get_num_threads()
    assert (asked["effort"], asked["again"], asked["rules"]) == (EFFORTS["normal"], False, Rules())
    assert asked["policy"] == Policy.for_cpu(threads)
    assert asked["threads"] is None
    assert asked["effort"].patience > 0, "a busy machine is waited for, then refused"


def test_what_the_options_ask_for(sweep) -> None:
    given = ("--when-busy", "measure", "--cache", "cold", "--jobs", "1", "--retry-quarantined", "--again", "--threads", "1")
    given = (*given, "--allow-numerics")
    result, asked = sweep(*given, "--effort", "quick")
    assert result.exit_code == 0, result.output
    assert asked["policy"] == Policy.for_cpu(1, "cold")
    assert (asked["rules"].jobs, asked["rules"].retry, asked["rules"].numerics, asked["again"]) == (1, True, True, True)
    assert (asked["effort"].patience, asked["effort"].name) == (0, "quick")


def test_the_daemon_that_is_asked_to_yield_is_the_one_that_is_named(
    sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("tuner.lookup.yielding.ask_to_yield", lambda socket: asked.append(socket) is not None)
    result, _ = sweep("--socket", str(tmp_path / "named.sock"))
    assert result.exit_code == 0, result.output
    assert asked == [tmp_path / "named.sock"]


def test_a_budget_of_ones_own_settles_nothing(sweep) -> None:
    _, asked = sweep("--trials", "7", "--seconds", "2.5", "--memory-limit", "1.5")
    effort = asked["effort"]
    assert (effort.name, effort.trials, effort.seconds, effort.memory_limit) == ("custom", 7, 2.5, 1.5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--jobs", "0"), "--jobs must be more than 0"),
        (("--trials", "0"), "--trials must be more than 0"),
        (("--seconds", "-1"), "--seconds must be more than 0"),
        (("--threads", "0"), "--threads must be more than 0"),
        (("--threads", "100000"), "number of cores"),
        (("--when-busy", "cry"), "'measure'"),
        (("--cache", "hot"), "'cold'"),
        (("--effort", "huge"), "'quick'"),
    ],
)
def test_what_makes_no_sense_is_exit_code_2_before_anything_is_done(sweep, arguments: tuple[str, str], text: str) -> None:
    result, asked = sweep(*arguments)
    assert (result.exit_code, asked) == (2, {})
    assert text in result.stderr


def test_the_answer_tells_the_whole_and_where_the_seconds_went(sweep) -> None:
    result, _ = sweep("--json")
    told = json.loads(result.stdout)
    assert set(told) == {"results", "seconds", *(f"seconds_{name}" for name in ("compiling", "measuring", "idle", "finals"))}
    assert (told["seconds_compiling"], told["seconds_measuring"]) == (4.0, 4.0)
    assert told["seconds_idle"] == pytest.approx(told["seconds"] - 8.0, abs=0.1)
    first, second = told["results"]
    assert (
        first["whole"]
        == second["whole"]
        == {
            "verdict": "confirmed",
            "speedup": 1.8,
            "speedup_low": 1.7,
            "speedup_high": 1.9,
            "default_ms": 2.0,
            "planned_ms": 1.1,
        }
    )
    assert (first["winner"], first["speedup"], second["winner"], second["speedup"]) == ("plan", 2.0, "default", 1.0)
    assert "error" not in first


def test_without_a_final_of_the_whole_there_is_null(sweep) -> None:
    def ending(outcomes: list[Outcome]) -> None:
        won(outcomes)
        outcomes[0].whole = None

    result, _ = sweep("--json", ending=ending)
    assert json.loads(result.stdout)["results"][0]["whole"] is None


def test_the_text_ends_with_the_results_and_where_the_seconds_went(sweep) -> None:
    result, _ = sweep()
    lines = result.stdout.splitlines()
    assert "default 2.000 ms, winner 1.000 ms, 2.00x (1.90 to 2.10), native aten.gelu" in lines[-5]
    assert lines[-4].strip() == ("the whole callable: 2.000 ms, with its plans 1.100 ms, 1.800x (1.700 to 1.900): confirmed")
    assert re.fullmatch(r"\d+ s: 4 s compiling, 4 s measuring, \d+ s idle", lines[-1])


def test_the_text_tells_of_a_veto_and_of_what_needs_too_much_memory(sweep) -> None:
    def ending(outcomes: list[Outcome]) -> None:
        won(outcomes)
        outcomes[0].whole = program_final(winner(query("a")))
        outcomes[0].progress.over_memory = (2.5, 1.3, "native aten.silu")

    result, _ = sweep(ending=ending)
    assert "with its plans 2.150 ms, 0.930x (0.910 to 0.950): vetoed" in result.stdout
    assert "left out for its peak memory, 1.30 times the default's: native aten.silu, about 2.50x as screened" in result.stdout


def test_the_text_tells_why_a_whole_was_vetoed_that_was_not_timed(sweep) -> None:
    def ending(outcomes: list[Outcome]) -> None:
        won(outcomes)
        nothing = {"speedup": 0.0, "speedup_low": 0.0, "speedup_high": 0.0, "default_ms": 0.0, "planned_ms": 0.0}
        outcomes[0].whole = program_final(winner(query("a")), evidence={"error": "it ended (SIGSEGV)"}, **nothing)

    result, _ = sweep(ending=ending)
    (line,) = [line for line in result.stdout.splitlines() if "SIGSEGV" in line]
    assert line.strip() == "the whole callable: vetoed, it ended (SIGSEGV)"


@pytest.mark.parametrize(("opaque", "code"), [(("b",), 0), (("a", "b"), 3)])
def test_what_cannot_be_rebuilt_is_told_and_fails_only_a_sweep_that_has_nothing_else(
    sweep, opaque: Sequence[str], code: int
) -> None:
    barrier = replace(GRAPH, nodes=(Node("opaque", "custom.op", [], {}, None),), order=(0,))

    def ending(outcomes: list[Outcome]) -> None:
        won(outcomes)
        for outcome in outcomes[-len(opaque) :]:
            outcome.winner = outcome.generation = outcome.whole = None
            outcome.resolved = replace(outcome.resolved, graph=barrier)

    text, _ = sweep(ending=ending)
    told, _ = sweep("--json", ending=ending)
    assert [text.exit_code, told.exit_code] == [code, code]
    assert text.stdout.count(": not tuned: custom.op cannot be rebuilt elsewhere") == len(opaque)
    results = json.loads(told.stdout)["results"]
    assert [one.get("not_tuned", "") for one in results][-len(opaque) :] == ["custom.op cannot be rebuilt elsewhere"] * len(
        opaque
    )
    assert all("error" not in one for one in results)


FAILURES = [
    (DeviceBusy("load 7.0: 4 processes wait"), 8),
    (WorkerDied("the measuring process ended (SIGSEGV)"), 7),
    (UnsupportedGraph("unchecked", "the default differs from eager"), 3),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_could_not_be_tuned_is_told_and_decides_the_exit_code(sweep, error: Any, code: int, form: str) -> None:
    why = str(error)

    def ending(outcomes: list[Outcome]) -> None:
        won(outcomes)
        outcomes[1].winner = outcomes[1].generation = outcomes[1].whole = None
        outcomes[1].fail(type(error)(*(("unchecked",) if code == 3 else ()), why))

    result, _ = sweep(*(["--json"] if form == "json" else []), ending=ending)
    assert result.exit_code == code
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert line == f"Error: made.py:f: {why}"
    if form == "json":
        good, bad = json.loads(result.stdout)["results"]
        assert (good["winner"], bad["winner"], bad["error"]) == ("plan", None, why)
    else:
        assert f": {why}" in result.stdout
        assert "2.00x" in result.stdout, "what did win is told all the same"


def test_one_that_waits_for_the_device_says_so_on_standard_error(sweep) -> None:
    result, told = sweep("--json")
    runner = CliRunner()
    with runner.isolation() as (_, errors, _):
        told["wait"]("device cpu is held by 17")
        assert errors.getvalue() == b"Waiting: device cpu is held by 17\n"
    assert json.loads(result.stdout)["results"]


def test_ctrl_c_shows_what_there_is_and_is_exit_code_130(sweep) -> None:
    def ending(outcomes: list[Outcome]) -> None:
        outcomes[0].progress.measured = 4
        raise KeyboardInterrupt

    result, _ = sweep("--json", ending=ending)
    assert result.exit_code == 130
    assert "Interrupted; 4 measurements are in the store" in result.stderr
    assert [one["winner"] for one in json.loads(result.stdout)["results"]] == [None, None]
