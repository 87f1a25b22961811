"""What a daemon takes from a compile that missed, and what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from missed import META, graph, report
from stored import NATIVE, program, query, settled

from tuner.cache.sqlite import SqliteStore
from tuner.daemon.app import create_app
from tuner.daemon.background import Background, TuningSettings
from tuner.daemon.jobs import QUEUE_LIMIT, Jobs, jobs_folder
from tuner.workload.miss_report import NODES_LIMIT, REPORT_LIMIT_BYTES, MissReport


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def jobs(path: Path) -> Jobs:
    return Jobs(jobs_folder(path))


@pytest.fixture
def app(path: Path, jobs: Jobs) -> Any:
    """A daemon that takes jobs, and starts none."""
    return create_app(path, Background(TuningSettings(path), jobs))


def wanted(call: Any, app: Any, name: str = "p") -> bool:
    status, answer = call(app, "POST", "/v2/program", program(name).to_json())
    assert status == 200
    return answer["wanted"]


def test_a_report_becomes_a_job_and_is_wanted_no_more(app, call, jobs):
    assert wanted(call, app)
    assert call(app, "POST", "/v2/miss", report().to_json()) == (200, {"accepted": True, "reason": ""})
    (job,) = jobs.all()
    assert (job.program_key, job.state, job.workload_keys) == (program().workload_key, "queued", (graph().key,))
    assert MissReport.from_json(json.loads(jobs.report(job).read_text())) == report()
    assert not wanted(call, app)
    assert wanted(call, app, "another")
    status, answer = call(app, "POST", "/v2/miss", report().to_json())
    assert (status, answer["accepted"], len(jobs.all())) == (200, False, 1)


def test_the_jobs_and_their_number_are_told(path, app, call):
    call(app, "POST", "/v2/miss", report().to_json())
    told = call(app, "GET", "/v2/jobs")[1]
    assert [job["program_key"] for job in told["jobs"]] == [program().workload_key]
    assert told["tuning"]["state"] == "idle"
    stats = call(app, "GET", "/v2/stats")[1]
    assert (stats["store"], stats["jobs"]) == (str(path), {"queued": 1})
    assert stats["stored"]["generation"] == 0


def test_a_program_whose_graphs_are_all_settled_is_not_wanted(path, app, call):
    with SqliteStore(path) as store:
        store.add_program(program(), [query("a"), query("b")], "m:f")
        store.record_winner(settled(query("a")))
        assert wanted(call, app)
        store.record_winner(settled(query("b")))
    assert not wanted(call, app)
    assert call(app, "POST", "/v2/miss", report().to_json())[1]["accepted"] is False


def test_a_daemon_that_does_not_tune_wants_nothing(path, call):
    app = create_app(path)
    assert not wanted(call, app)
    assert call(app, "POST", "/v2/miss", report().to_json()) == (409, {"error": "this daemon does not tune"})
    assert call(app, "POST", "/v2/yield", {"pid": 1}) == (409, {"error": "this daemon does not tune"})
    assert not jobs_folder(path).exists()


def test_the_queue_is_bounded(app, call, jobs):
    for number in range(QUEUE_LIMIT):
        jobs.add(report(f"p{number}"))
    assert not wanted(call, app)
    assert call(app, "POST", "/v2/miss", report().to_json())[1]["accepted"] is False
    assert len(jobs.all()) == QUEUE_LIMIT


def edited(where: str, value: Any) -> dict[str, Any]:
    """A report with one thing in it replaced, or added; `where` is a path of names and numbers."""
    data = copy.deepcopy(report().to_json())
    *parents, last = [int(part) if part.isdigit() else part for part in where.split(".")]
    at: Any = data
    for part in parents:
        at = at[part]
    at[last] = value
    return data


FORM = "graphs.0.form"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("program", None),
        ("program.kind", "graph"),
        ("program.workload_key", "../../etc"),
        ("program.target", "cpu"),
        ("program.ambient", {}),
        ("program.ambient", {"threads": 0}),
        ("program.ambient", {"threads": 1, "inductor": {"cpp.cxx": ["/tmp/evil"]}}),
        ("program.ambient", {"threads": 1, "inductor": ["cpp.cxx"]}),
        ("program.ambient", {"threads": 1, "deep": float("nan")}),
        ("program.plan", NATIVE.to_json()),
        ("plan", NATIVE.to_json()),
        ("graphs", []),
        ("graphs", {}),
        ("graphs", report().to_json()["graphs"] * 17),
        ("graphs.0.plan", NATIVE.to_json()),
        ("graphs.0.key", "0" * 64),
        ("graphs.0.key", None),
        (f"{FORM}.plan", NATIVE.to_json()),
        (f"{FORM}.schema", 99),
        (f"{FORM}.phase", "backward"),
        (f"{FORM}.nodes", []),
        (f"{FORM}.nodes", [["input", "", [], {}, META]] * (NODES_LIMIT + 1)),
        (f"{FORM}.nodes.0", ["output", "", [], {}, META]),
        (f"{FORM}.nodes.0.4", ["float32", [4], [1], "cuda"]),
        (f"{FORM}.nodes.0.4", ["float32", [-4], [1], "cpu"]),
        (f"{FORM}.nodes.0.4", "float32"),
        (f"{FORM}.nodes.1.1", "os.system"),
        (f"{FORM}.nodes.1.1", "mylib.evil.default"),
        (f"{FORM}.nodes.1.1", "aten.__class__.__subclasses__"),
        (f"{FORM}.nodes.1.1", "aten.from_file.default"),
        (f"{FORM}.nodes.1.1", ["aten.sin.default"]),
        (f"{FORM}.nodes.1.2", [{"node": 9}]),
        (f"{FORM}.nodes.1.2", [{"torch": "hub.load"}]),
        (f"{FORM}.nodes.1.2", [{"call": "exit"}]),
        (f"{FORM}.nodes.1.2", [{"node": 0, "dtype": "float32"}]),
        (f"{FORM}.nodes.1.3", []),
        (f"{FORM}.outputs", [{"node": -1}]),
        (f"{FORM}.order", [0, 0]),
        (f"{FORM}.order", ["0", 1]),
        (f"{FORM}.data", []),
        (f"{FORM}.data.0", [0, 1, float("nan"), 0.1, None]),
        (f"{FORM}.data.0", [0, 1, 0.5, 0.1, None, [0, 0]]),
        (f"{FORM}.data.0", [0, 1, 0.5, 0.1, None, [3, 0]]),
        (f"{FORM}.static_inputs", [5]),
        (f"{FORM}.mutated", ["0"]),
        (f"{FORM}.native_form.nodes.1.1", "os.system"),
        (f"{FORM}.native_form.nodes.0.4", ["float32", [4, 9], [9, 1], "cpu"]),
        (f"{FORM}.native_form.native_form", graph().to_json()),
    ],
)
def test_a_poisoned_report_is_refused_and_nothing_is_kept(path, app, call, where, value):
    status, answer = call(app, "POST", "/v2/miss", edited(where, value))
    assert status == 400
    assert answer["error"].startswith("not a report: ")
    assert "\n" not in answer["error"]
    assert not jobs_folder(path).exists()
    assert wanted(call, app)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"program":' * 50_000])
def test_what_is_no_report_at_all_is_refused(path, app, call, body):
    status, answer = call(app, "POST", "/v2/miss", body)
    assert (status, answer["error"].startswith("not a report: ")) == (400, True)
    assert not jobs_folder(path).exists()


def test_a_report_that_is_too_large_is_refused(path, app, call):
    status, answer = call(app, "POST", "/v2/miss", [b" " * 65536] * (REPORT_LIMIT_BYTES // 65536 + 1))
    assert (status, answer) == (413, {"error": f"a request of more than {REPORT_LIMIT_BYTES} bytes"})
    assert not jobs_folder(path).exists()


def test_where_jobs_cannot_be_kept_the_report_is_refused(path, app, call, jobs):
    jobs_folder(path).write_text("a file in the folder's place")
    status, answer = call(app, "POST", "/v2/miss", report().to_json())
    assert (status, str(jobs_folder(path)) in answer["error"]) == (503, True)
    assert jobs.all() == []


@pytest.mark.parametrize("body", [{}, {"pid": "1"}, {"pid": True}, {"pid": -1}, []])
def test_who_asks_to_go_first_names_a_process(app, call, body):
    assert call(app, "POST", "/v2/yield", body)[0] == 400
