"""`tuner show`: what the store holds, for people and as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from stored import KNOB, NATIVE, POLICY, SPLIT, failed, measurement, program, program_final, query, settled, winner

from tuner.cache.sqlite import SqliteStore
from tuner.cli.main import main
from tuner.plan import Plan

A, B = query("a").workload_key, query("b").workload_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        for asked in (query("a"), query("b")):
            store.add_graph(asked.workload_key, {"phase": "forward"})
        store.add_program(program(), [query("a"), query("b")], "m.py:f")
        key = program().workload_key
        store.add_measurement(measurement(plan=Plan(), program_key=key))
        store.add_measurement(measurement(plan=KNOB, status="timeout", samples_ms=(), default_samples_ms=()))
        store.add_measurement(measurement(plan=SPLIT, status="wrong", samples_ms=(), default_samples_ms=()))
        for process in ("1", "2", "3"):
            store.add_measurement(measurement(plan=NATIVE, stage="final", process=process))
        store.record_winner(
            winner(query("a"), program_key=key, evidence={"samples": 6}, provenance={"host": "h1", "date": "2026-01-01"})
        )
        store.record_winner(settled(query("b")))
    return path


def show(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["show", "--store", str(path), *arguments])


def test_all_winners_are_listed_one_a_line(path):
    result = show(path)
    assert result.exit_code == 0
    header, first, second = result.output.splitlines()
    assert header.split() == ["workload", "target", "spec", "phase", "winner", "speed-up", "plan"]
    assert " ".join(first.split()) == f"{A[:12]} cpu/x86_64-avx2/2 m.py:f forward plan 2.000x (1.900 to 2.100) native aten.gelu"
    assert " ".join(second.split()) == f"{B[:12]} cpu/x86_64-avx2/2 m.py:f forward default 1 -"


def test_the_list_as_json_uses_the_words_of_the_interface(path):
    first, second = json.loads(show(path, "--json").output)
    assert first == {
        "spec": "m.py:f",
        "phase": "forward",
        "program_key": program().workload_key,
        "workload_key": A,
        "target": "cpu/x86_64-avx2/2",
        "winner": "plan",
        "plan": NATIVE.to_json(),
        "groups": [["1:4:Pointwise:0", "2:4:Pointwise:0"], ["3:4x8:Reduction:0"]],
        "default_ms": 2.0,
        "winner_ms": 1.0,
        "speedup": 2.0,
        "speedup_low": 1.9,
        "speedup_high": 2.1,
        "effort": "quick",
        "space_version": 1,
        "generation": 1,
    }
    assert (second["winner"], second["plan"], second["winner_ms"], second["default_ms"]) == ("default", None, 2.0, 2.0)
    assert (second["speedup"], second["speedup_low"], second["speedup_high"]) == (1.0, 1.0, 1.0)


def test_a_winner_is_explained_by_the_start_of_its_key(path):
    result = show(path, A[:6])
    assert result.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in result.output.splitlines()}
    assert result.output.startswith(f"m.py:f  {A[:12]}\n")
    assert lines["target"] == "cpu/x86_64-avx2/2"
    assert lines["toolchain"] == "cxx g++ 12, torch 2.13.0"
    assert lines["ambient"] == "threads 1"
    assert lines["winner"] == "plan: native aten.gelu"
    assert lines["groups"] == "groups {0 1}{2}"
    assert lines["speed-up"] == "2.000x (1.900 to 2.100)"
    assert lines["time"] == "1 ms, default 2 ms"
    assert lines["measured"] == POLICY.describe()
    assert lines["samples"] == "6 in 3 processes"
    assert lines["provenance"] == "date 2026-01-01, host h1"
    assert lines["trials"] == "4 ok, 1 wrong, 1 timeout"


def test_the_explanation_as_json_counts_candidates(path):
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert one["candidates_measured"] == 2
    assert one["candidates_failed"] == {"timeout": 1, "wrong": 1}
    assert one["trials"] == {"ok": 4, "timeout": 1, "wrong": 1}
    assert one["policy"] == POLICY.fields()
    assert (one["toolchain"]["torch"], one["ambient"]) == ("2.13.0", {"threads": 1})
    assert one["provenance"] == {"host": "h1", "date": "2026-01-01"}


def test_a_settled_default_is_explained_without_a_speed_up(path):
    two = {"plan": NATIVE, "stage": "final", "default_samples_ms": (2.0, 2.0, 2.0)}
    with SqliteStore(path) as store:
        for trial in (two, {**two, "plan": KNOB}, {**two, "process": "2"}):
            store.add_measurement(measurement(query("b"), **trial))
    output = show(path, B[:8]).output
    assert "default, settled" in output
    assert "speed-up" not in output
    assert "6 in 2 processes" in output


def test_a_sweep_that_did_not_end_is_shown_too(tmp_path):
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        store.add_graph(A, {})
        store.add_measurement(measurement())
    assert "none yet" in show(path, A[:6]).output
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert (one["winner"], one["candidates_measured"], one["spec"]) == (None, 1, None)


def test_every_target_and_setting_of_a_workload_is_shown(path):
    two = query("a", ambient={"threads": 2})
    with SqliteStore(path) as store:
        store.record_winner(winner(two, KNOB))
    assert [one["ambient"]["threads"] for one in json.loads(show(path, A[:6], "--json").output)] == [1, 2]
    assert show(path, A[:6]).output.count("ambient") == 2


def test_a_graph_that_was_never_measured_says_so(tmp_path):
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        store.add_graph(A, {})
    assert show(path, A[:6]).output == f"nothing measured for workload {A[:12]}\n"
    assert json.loads(show(path, A[:6], "--json").output) == []


def test_a_key_that_names_nothing_or_too_much_is_exit_code_3(path):
    result = show(path, "ffffff")
    assert (result.exit_code, result.stderr) == (3, "Error: no workload in the store has a key that starts with ffffff\n")
    with SqliteStore(path) as store:
        store.add_graph(A[:20] + "0" * 44, {})
    result = show(path, A[:6])
    assert (result.exit_code, result.stderr) == (3, f"Error: 2 workloads have a key that starts with {A[:6]}: give more digits\n")


def test_candidates_in_quarantine_are_shown_with_their_verdict_and_on_request_with_the_traceback(path):
    told = "RuntimeError: no\n  second line"
    with SqliteStore(path) as store:
        verdict = failed("crash", Plan(config=(("realize_reads_threshold", 3),)), message=told)
        store.add_measurement(replace(verdict, provenance={"traceback": "Traceback:\n  at home", "date": "2026-01-02"}))
    lines = [" ".join(line.split()) for line in show(path, A[:6]).output.splitlines()]
    assert [line for line in lines if line.startswith("quarantined")] == [
        "quarantined realize_reads_threshold=2: timeout",
        f"quarantined {SPLIT.describe()}: wrong",
        "quarantined realize_reads_threshold=3: crash (RuntimeError: no)",
    ]
    assert "at home" not in "\n".join(lines)
    assert show(path, A[:6], "--verbose").output.endswith("\nrealize_reads_threshold=3: crash\n  Traceback:\n    at home\n")
    (one,) = json.loads(show(path, A[:6], "--json").output)
    last = one["quarantined"][-1]
    assert (last["status"], last["reason"], last["message"]) == ("crash", "crash (RuntimeError: no)", told)
    assert (last["traceback"], last["date"]) == ("Traceback:\n  at home", "2026-01-02")
    assert (last["spec"], last["workload_key"], last["plan"]["config"]) == ("m.py:f", A, {"realize_reads_threshold": 3})


def test_the_quarantine_of_the_whole_store_is_listed(path):
    with SqliteStore(path) as store:
        store.add_measurement(replace(failed("crash", asked=query("b")), provenance={"traceback": "here"}))
        store.add_measurement(measurement(plan=KNOB))
    output = show(path, "--quarantined").output
    assert [line.split() for line in output.splitlines()] == [
        ["workload", "target", "spec", "verdict", "plan"],
        [A[:12], "cpu/x86_64-avx2/2", "m.py:f", "wrong", *SPLIT.describe().split()],
        [B[:12], "cpu/x86_64-avx2/2", "m.py:f", "crash", "native", "aten.gelu"],
    ]
    assert [one["workload_key"] for one in json.loads(show(path, "--quarantined", "--json").output)] == [A, B]
    assert [one["workload_key"] for one in json.loads(show(path, B[:6], "--quarantined", "--json").output)] == [B]
    assert show(path, "--quarantined", "--verbose").output == output + "\nnative aten.gelu: crash\n  here\n"


def test_an_empty_quarantine_says_so(tmp_path):
    path = tmp_path / "store.db"
    SqliteStore(path).close()
    assert show(path, "--quarantined").output == "no candidate is in quarantine\n"
    assert json.loads(show(path, "--quarantined", "--json").output) == []


def test_a_winner_that_is_not_served_says_why(path):
    with SqliteStore(path) as store:
        store.add_measurement(failed("wrong", error=3.0))
    assert "not served   quarantined: wrong (3 times the tolerance)\n" in show(path, A[:6]).output
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert (one["winner"], one["withheld"]) == ("plan", "quarantined: wrong (3 times the tolerance)")


def test_the_final_of_the_whole_program_is_shown_and_the_veto_while_it_holds(path):
    with SqliteStore(path) as store:
        store.record_program_final(program_final(winner(query("a"))))
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in show(path, A[:6]).output.splitlines()}
    assert lines["whole"] == f"vetoed for program {program().workload_key[:12]}: 0.930x (0.910 to 0.950)"
    assert lines["not"] == "served vetoed for this program: the whole callable measured 0.93x (0.91 to 0.95)"
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert (one["programs"][0]["verdict"], one["programs"][0]["speedup_high"]) == ("vetoed", 0.95)
    assert (one["programs"][0]["program_key"], one["programs"][0]["in_force"]) == (program().workload_key, True)


def test_a_final_of_plans_that_are_in_force_no_more_is_told_apart(path):
    other = winner(query("a"), Plan(config=(("realize_reads_threshold", 3),)))
    with SqliteStore(path) as store:
        store.record_program_final(program_final(winner(query("a"))))
        store.record_winner(other)
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert (one["withheld"], one["programs"][0]["verdict"], one["programs"][0]["in_force"]) == (None, "vetoed", False)
    assert f"latest final, of other plans: vetoed for program {program().workload_key[:12]}: 0.930x" in show(path, A[:6]).output
    with SqliteStore(path) as store:
        store.record_program_final(program_final(other, verdict="confirmed", speedup=1.5, speedup_low=1.25, speedup_high=1.75))
        store.record_program_final(program_final(winner(query("a"))))
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in show(path, A[:6]).output.splitlines()}
    assert lines["whole"] == f"confirmed for program {program().workload_key[:12]}: 1.500x (1.250 to 1.750)"


def test_a_veto_because_the_outputs_differ_says_so(path):
    nothing = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "default_ms", "planned_ms"), 0.0)
    error = "its outputs differ from the default's, by 12 tolerances"
    with SqliteStore(path) as store:
        store.record_program_final(program_final(winner(query("a")), **nothing, evidence={"error": error}))
    why = f"with its plans {error}"
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in show(path, A[:6]).output.splitlines()}
    assert lines["whole"] == f"vetoed for program {program().workload_key[:12]}: {why}"
    assert lines["not"] == f"served vetoed for this program: {why}"
    (one,) = json.loads(show(path, A[:6], "--json").output)
    assert one["programs"][0]["evidence"] == {"error": error}


def test_the_conditions_of_the_final_are_summed_up(path):
    gpu = {"sm_mhz": 1980.0, "other_processes": 0, "memory_mhz": 2600.0}
    read = {"other_cores": 0.125, "stolen_cores": 0.0, "mhz": [2100.0, 2899.6], "load_1m": None, "gpu": [gpu, gpu], "attempts": 1}
    noisy = {**read, "other_cores": 9.0}
    with SqliteStore(path) as store:
        store.add_measurement(measurement(query("b"), provenance={"conditions": noisy}))
        for other_cores in (0.125, 0.5):
            conditions = {**read, "other_cores": other_cores}
            store.add_measurement(measurement(query("b"), stage="final", provenance={"conditions": conditions}))
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in show(path, B[:6]).output.splitlines()}
    assert lines["conditions"] == (
        "0.125 to 0.5 cores' worth used by others, 0 kept back by the hypervisor, 2100 to 2900 MHz, GPU 1980 MHz, "
        "0 other processes on the GPU"
    )
    (one,) = json.loads(show(path, B[:6], "--json").output)
    assert (one["conditions"]["other_cores"], one["conditions"]["gpu_mhz"]) == ([0.125, 0.5], [1980.0, 1980.0])


def test_conditions_that_nobody_read_or_wrote_otherwise_are_left_out(path):
    assert "conditions" not in show(path, A[:6]).output
    with SqliteStore(path) as store:
        for odd in ("quiet", {"mhz": "fast", "gpu": None, "other_cores": [1]}):
            store.add_measurement(measurement(query("b"), provenance={"conditions": odd}))
    assert "conditions" not in show(path, B[:6]).output


def test_an_empty_store_says_how_to_fill_it(tmp_path):
    path = tmp_path / "store.db"
    SqliteStore(path).close()
    assert show(path).output == "no winners yet: `tuner sweep SPEC` looks for some\n"
    assert json.loads(show(path, "--json").output) == []


def test_a_store_that_is_not_there_is_exit_code_4_and_is_not_made(tmp_path):
    result = show(tmp_path / "store.db")
    assert (result.exit_code, result.stderr) == (4, f"Error: no store at {tmp_path / 'store.db'}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_spec_shows_the_graphs_it_stands_for(path, monkeypatch):
    def resolve(spec, *, find, **_):
        return [SimpleNamespace(query=query(name)) for name in ("b", "a", "b")]

    monkeypatch.setitem(sys.modules, "tuner.search.workloads", SimpleNamespace(resolve=resolve))
    assert [one["workload_key"] for one in json.loads(show(path, "m.py:f", "--json").output)] == [B, A]


def test_a_store_in_use_can_be_shown(path):
    with SqliteStore(path):
        assert show(path).exit_code == 0


def test_a_winner_of_a_graph_whose_sizes_vary_tells_its_gain_at_each(path):
    at = [{"size": [size], "speedup": gain, "speedup_low": gain, "speedup_high": gain} for size, gain in ((8, 1.5), (64, 1.1))]
    policy = replace(POLICY, sizes=((8,), (64,)))
    with SqliteStore(path) as store:
        store.record_winner(replace(winner(query("z")), policy=policy, evidence={"by_size": at, "processes": 3}))
    key = query("z").workload_key
    lines = {line.split()[0]: line for line in show(path, key).output.splitlines() if line.startswith("  ")}
    assert "s0=8: 1.500x (1.500 to 1.500); s0=64: 1.100x (1.100 to 1.100)" in lines["by"]
    assert "by_size" not in lines["evidence"]
    assert lines["measured"].endswith("at s0=8; s0=64")
    (told,) = json.loads(show(path, key, "--json").output)
    assert told["policy"]["sizes"] == [[8], [64]]
    assert told["evidence"]["by_size"] == at
