"""Op kinds left undecomposed in a training step: measured as they are then served from a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tuner.cache.sqlite import SqliteStore
from tuner.compilers import dynamo
from tuner.compilers.inductor.ambient import ambient, cpu_target, cpu_toolchain
from tuner.compilers.inductor.events import reset_report
from tuner.compilers.inductor.hooks import dynamo_config, functorch_config, inductor_config
from tuner.measure.device import open_device
from tuner.measurement import Policy
from tuner.target import Query
from tuner.workers.tables import Tables
from tuner.workload.graph import Graph

pytestmark = pytest.mark.slow
NORM = "aten.native_layer_norm.default"
SPEC = """
import torch

def step():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.LayerNorm(48), torch.nn.Sigmoid())
    return net, (torch.randn(16, 48),)
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "spec.py").write_text(SPEC)
    for name, value in {
        "TUNER_STORE": str(tmp_path / "default.db"),
        "TUNER_SOCKET": str(tmp_path / "none.sock"),
        "TUNER_DEADLINE_MS": "60000",
    }.items():
        monkeypatch.setenv(name, value)
    SqliteStore(tmp_path / "default.db").close()
    torch._dynamo.reset()
    dynamo.reset()
    reset_report()
    # As in the environment of such a process: where a compile cache answers, nobody sees what is served.
    with (
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        dynamo_config.patch(recompile_limit=dynamo_config.recompile_limit),
    ):
        yield f"{tmp_path}/spec.py:step"


@torch.no_grad()
def test_the_choice_that_is_served_is_the_table_that_was_tried(spec: str, tmp_path: Path) -> None:
    policy, device = Policy.for_cpu(torch.get_num_threads()), open_device("cpu")
    tried = Tables(spec, policy, device)
    told = tried.describe_default()
    assert NORM in told["kinds"]
    assert told["compile_s"] > 0, "limits follow from it"
    verdict = tried.try_table(NORM)
    assert verdict["status"] == "ok"
    assert verdict["error"] < 1
    assert set(tried.time_plans(["planned", NORM], 2, 0, 0)["times"]) == {"default", "planned", NORM}
    ((key, forms),) = tried.graphs_under(NORM)
    graphs = [Graph.from_json(json.loads(json.dumps(form))) for form in forms]
    assert [graph.phase for graph in graphs] == ["forward", "backward"]
    assert NORM in graphs[0].calls, "it stands in the forward as a call of the library"

    where = (cpu_target().fields(), cpu_toolchain(), ambient())
    program = Query("program", key, *where)
    with SqliteStore(tmp_path / "chosen.db") as store:
        store.add_program(program, [Query("graph", graph.key, *where) for graph in graphs], spec)
        store.record_program_choice(program, (NORM,))
    served = Tables(spec, policy, device, chosen=str(tmp_path / "chosen.db")).describe_default()["chosen"]
    assert (served["status"], served["error"] < 1) == ("ok", True)
    assert [key for key, _ in served["outcomes"]] == [graph.key for graph in graphs]
