"""`tuner sweep --dim`: what cannot be is one line and exit code 2 or 3, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tuner.cli.main import main

SPEC = """
import torch
def pairs():
    return lambda x: x.view(2, -1).softmax(-1), (torch.ones(8),), {"length": [(0, 0)]}
"""


@pytest.fixture
def sweep(tmp_path: Path):
    (tmp_path / "specs.py").write_text(SPEC)

    def run(*arguments: str) -> Result:
        given = ["sweep", f"{tmp_path / 'specs.py'}:pairs", "--store", str(tmp_path / "store.db"), "--threads", "1"]
        return CliRunner().invoke(main, [*given, *arguments])

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--dim", "length"], 2, "--dim length: it is NAME=SIZE,SIZE,… with sizes of at least 1"),
        (["--dim", "batch=4,8"], 2, "--dim batch: no such name (declared are length), and it is not ARGUMENT.AXIS, like x.0"),
        (["--dim", "x.3=4,8"], 2, "--dim x.3: there is no axis 3 of input 0, which has 1 dimensions"),
        (["--dim", "length=4,7"], 3, "it fails with length=7: RuntimeError"),
        (["--dispatch"], 2, "--dispatch picks by the size of one --dim, given with at least two sizes"),
        (["--dispatch", "--dim", "length=4"], 2, "--dispatch picks by the size of one --dim, given with at least two sizes"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(sweep, arguments: list[str], code: int, told: str) -> None:
    result = sweep(*arguments)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.strip().splitlines()
    assert told in line


def test_a_stored_graph_is_asked_for_its_sizes_by_the_names_of_its_symbols(sweep, tmp_path: Path, monkeypatch) -> None:
    asked = []

    def run_sweep(plan, store, *_: object) -> None:
        for outcome in plan.outcomes:
            asked.append(outcome.resolved.sizes)
            store.add_graph(outcome.resolved.graph.key, outcome.resolved.graph.to_json())

    monkeypatch.setattr("tuner.search.sweep.run_sweep", run_sweep)
    assert sweep("--dim", "length=4,8").exit_code == 0
    from tuner.cache.sqlite import SqliteStore

    with SqliteStore(tmp_path / "store.db") as store:
        (key,) = store.find_graphs("")
    again = ["sweep", key, "--store", str(tmp_path / "store.db"), "--threads", "1"]
    assert CliRunner().invoke(main, [*again, "--dim", "s0=6,10,20"]).exit_code == 0
    assert CliRunner().invoke(main, again).exit_code == 0
    assert asked == [((4,), (8,)), ((6,), (10,), (20,)), ((2,), (4,), (8,))]
    wrong = CliRunner().invoke(main, [*again, "--dim", "length=4"])
    assert (wrong.exit_code, "the stored graph has the sizes s0" in wrong.stderr) == (2, True)
    small = CliRunner().invoke(main, [*again, "--dim", "s0=1"])
    assert (small.exit_code, "s0=1: in this graph it is from 2 to" in small.stderr) == (2, True)
