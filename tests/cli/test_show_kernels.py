"""`tuner show KEY`: the kernels of default and winner, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from made_kernels import anatomy, side, softmax, softmax_ops
from stored import query, settled, winner

from tuner.cache.sqlite import SqliteStore
from tuner.cli.kernels import Kernels, blocks, short
from tuner.cli.main import main
from tuner.cli.show_kernels import in_bytes, milliseconds
from tuner.measurement import Winner

A = query("a").workload_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def show(path: Path, won: Winner, *arguments: str) -> Result:
    with SqliteStore(path) as store:
        store.add_graph(A, {"phase": "inference"})
        store.record_winner(won)
    result = CliRunner().invoke(main, ["show", A[:6], "--store", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return result


def told(path: Path, kernels: Any, won: Winner | None = None) -> tuple[str, list[list[str]]]:
    """The line that sums the kernels up, and the table's cells."""
    evidence = {"samples": 6, "kernels": kernels}
    output = show(path, won or winner(evidence=evidence)).output
    lines = output.splitlines()
    (summary,) = (" ".join(line.split()[1:]) for line in lines if line.startswith("  kernels "))
    start = next((i for i, line in enumerate(lines) if line.startswith(("default ", "kernel "))), len(lines))
    return summary, [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[start:]]


def test_kernels_of_default_and_winner_stand_side_by_side_with_time_and_bytes(path):
    summary, table = told(path, softmax())
    assert summary == "2 kernels, 0.1800 ms, 4.0 kB moved; default: 2 kernels, 0.3300 ms, 4.0 kB moved; 0 B saved"
    assert table == [
        ["default", "ms", "moved", "winner", "ms", "moved", "ms saved", "saved"],
        ["mul, add, where, amax, sub, exp", "0.3000", "2.0 kB", "mul, add, where", "0.0900", "2.0 kB", "0.1500", "0 B"],
        ["sum, div", "0.0200", "2.0 kB", "amax, sub, exp, sum, div", "0.0800", "2.0 kB"],
        ["all kernels", "0.3200", "4.0 kB", "all kernels", "0.1700", "4.0 kB", "0.1500", "0 B"],
        ["library calls", "0.0000", "library calls", "0.0000"],
        ["between kernels", "0.0100", "between kernels", "0.0100"],
    ]


def test_bytes_that_a_fusion_saves_are_told(path):
    ops = softmax_ops()
    leaves = [[0, 1, 2], [3, 4, 5, 6, 7]]
    sides = {
        "default": side(anatomy(ops, leaves, [[0], [1]]), [0.2, 0.1]),
        "winner": side(anatomy(ops, leaves, [[0, 1]]), [0.25]),
    }
    summary, table = told(path, sides)
    assert summary.endswith("; 2.0 kB saved")
    assert table[1][-2:] == ["0.0500", "2.0 kB"]
    assert table[2] == ["amax, sub, exp, sum, div", "0.1000", "2.0 kB"]


def test_equal_kernels_of_a_deep_graph_are_one_row_and_library_calls_are_named(path):
    summary, table = told(path, softmax(layers=12))
    assert summary.startswith("24 kernels and 11 library calls")
    # the first layer reads the graph's input, which has the same shape
    assert [row[0] for row in table[1:]] == [
        "12 x mul, add, where, amax, sub, exp",
        "12 x sum, div",
        "11 x mm (library)",
        "all kernels",
        "library calls",
        "between kernels",
    ]
    assert table[1][1:] == ["3.60", "24.0 kB", "12 x mul, add, where", "1.08", "24.0 kB", "1.80", "0 B"]
    assert table[3] == ["11 x mm (library)", "-", "22.0 kB", "11 x mm (library)", "-", "22.0 kB"]
    assert table[5] == ["library calls", "5.50", "library calls", "5.50"]


def test_where_the_default_won_its_kernels_are_told_alone(path):
    won = settled(query("a"))
    kernels = {"default": softmax()["default"]}
    object.__setattr__(won, "evidence", {"kernels": kernels})
    summary, table = told(path, kernels, won)
    assert summary == "2 kernels, 0.3300 ms, 4.0 kB moved"
    assert table[0] == ["kernel", "ms", "moved"]
    assert table[1] == ["mul, add, where, amax, sub, exp", "0.3000", "2.0 kB"]


def test_kernels_that_were_not_timed_are_told_without_times(path):
    sides = {name: {"anatomy": one["anatomy"]} for name, one in softmax().items()}
    summary, table = told(path, sides)
    assert summary == "2 kernels, 4.0 kB moved; default: 2 kernels, 4.0 kB moved; 0 B saved"
    assert table[1] == ["mul, add, where, amax, sub, exp", "-", "2.0 kB", "mul, add, where", "-", "2.0 kB", "0 B"]
    assert table[-1] == ["all", "-", "4.0 kB", "all", "-", "4.0 kB", "0 B"]


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        (None, "its sweep recorded none"),
        ({}, "its sweep could not record them"),
        ({"default": {"anatomy": {"leaves": [[1]]}}}, "what its sweep recorded cannot be read (TypeError)"),
        ({"default": {}}, "what its sweep recorded cannot be read (KeyError)"),
        ({"default": {"anatomy": {"leaves": [], "buffers": [], "ops": [], "groups": [["x"]]}}}, "cannot be read (KeyError)"),
    ],
)
def test_a_winner_whose_kernels_are_not_known_is_shown_with_a_line_that_says_so(path, kernels, why):
    summary, table = told(path, kernels)
    assert summary.startswith("not known: ")
    assert why in summary
    assert table == []


def test_a_winner_from_before_kernels_were_recorded_says_so(path):
    output = show(path, winner(evidence={"samples": 6})).output
    assert "kernels     not known: its sweep recorded none" in output
    (one,) = json.loads(show(path, winner(evidence={"samples": 6}), "--json").output)
    assert one["kernels"] is None


def test_the_evidence_line_leaves_the_kernels_to_their_table(path):
    output = show(path, winner(evidence={"samples": 6, "kernels": softmax()})).output
    assert [line.split() for line in output.splitlines() if "evidence" in line] == [["evidence", "samples", "6"]]


def test_json_holds_the_kernels_of_both_sides(path):
    (one,) = json.loads(show(path, winner(evidence={"samples": 6, "kernels": softmax(2)}), "--json").output)
    assert one["evidence"] == {"samples": 6}
    default, won = one["kernels"]["default"], one["kernels"]["winner"]
    assert [kernel["ops"] for kernel in default["kernels"][1:3]] == [["sum", "div"], ["mm"]]
    assert [kernel["library"] for kernel in default["kernels"]] == [False, False, True, False, False]
    assert [kernel["ms"] for kernel in won["kernels"]] == [0.09, 0.08, None, 0.09, 0.08]
    assert won["kernels"][0]["group_key"] == won["kernels"][3]["group_key"] != won["kernels"][1]["group_key"]
    assert won["kernels"][0]["leaves"] == ["2:250:Pointwise:0"]
    assert (default["bytes"], default["kernels_ms"], default["library_ms"]) == (10000, pytest.approx(0.64), 0.5)


def test_kernels_are_told_in_an_order_in_which_they_can_run(path):
    ops = [("aten.exp.default", (1,)), ("aten.sum.default", ()), ("aten.add.default", (0,))]
    found = Kernels.of({"kernels": {"default": side(anatomy(ops, [[0], [1], [2]], [[0], [1], [2]]), [1, 2, 3])}})
    assert [kernel.names for kernel in found.default.kernels] == [("sum",), ("exp",), ("add",)]
    assert [kernel.ms for kernel in found.default.kernels] == [2, 1, 3]


def test_kernels_of_another_lowering_stand_beside_those_whose_operations_they_have():
    """The winner keeps the layer norm whole, so that its operations have other numbers."""
    default = [("aten.relu.default", ()), ("aten.mean.default", (0,)), ("aten.rsqrt.default", (1,)), ("aten.gelu.default", (2,))]
    won = [("aten.relu.default", ()), ("aten.native_layer_norm.default", (0,)), ("aten.gelu.default", (1,))]
    found = Kernels.of(
        {
            "kernels": {
                "default": side(anatomy(default, [[0], [1, 2], [3]], [[0], [1], [2]])),
                "winner": side(anatomy(won, [[0], [1], [2]], [[0], [1], [2]], library=[1])),
            }
        }
    )
    together = {(one.default, one.winner) for one in blocks(found.default, found.winner)}
    assert together == {((0,), (0,)), ((1,), ()), ((), (1,)), ((2,), (2,))}


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aten.where.self", "where"),
        ("prims.convert_element_type.default", "convert_element_type"),
        ("mine.op", "op"),
        ("getitem", "getitem"),
    ],
)
def test_operations_are_named_without_library_and_overload(target, name):
    assert short(target) == name


def test_views_are_named_only_where_there_is_nothing_else():
    ops = [("aten.view.default", ()), ("aten.exp.default", (0,)), ("aten.permute.default", (1,))]
    found = Kernels.of({"kernels": {"default": side(anatomy(ops, [[0, 1], [2]], [[0], [1]]))}})
    assert [kernel.title for kernel in found.default.kernels] == ["exp", "permute"]


SIZES = {0: "0 B", 999: "999 B", 1000: "1.0 kB", -2_500_000: "-2.5 MB", 120_000_000_000_000: "120000 GB"}
TIMES = {0.00012: "0.0001", 0.5: "0.5000", 2.345: "2.35", 1234.5: "1234", -0.002: "-0.0020"}


def test_bytes_have_a_unit_and_times_no_exponent():
    assert {count: in_bytes(count) for count in SIZES} == SIZES
    assert {ms: milliseconds(ms) for ms in TIMES} == TIMES
