"""What a sweep says of a workload when it has ended, line by line."""

from __future__ import annotations

import pytest
from stored import query, winner

from tuner.cli.sweep_table import result_lines
from tuner.errors import TunerError
from tuner.search.progress import Progress
from tuner.search.sweep import Outcome
from tuner.search.workloads import Resolved
from tuner.workload.graph import Graph

NOTES = ["groups are sought in 20 of 31 regions", "no cuts are tried: RuntimeError: no\n  at some place\n  at another"]
TOLD = ["    groups are sought in 20 of 31 regions", "    no cuts are tried: RuntimeError: no"]


def outcome() -> Outcome:
    progress = Progress("made.py:up", query().workload_key, 10, 10.0, notes=NOTES)
    return Outcome(Resolved("made.py:up", Graph("inference", (), [], (), ()), query(), None), progress)


def test_what_was_left_out_of_the_search_is_told_a_line_each() -> None:
    done = outcome()
    done.winner, done.generation = winner(), 1
    result, *notes = result_lines(done)
    assert "2.00x" in result
    assert notes == TOLD


@pytest.mark.parametrize("error", [None, TunerError("it went wrong")])
def test_it_is_told_too_where_there_is_no_winner(error: TunerError | None) -> None:
    failed = outcome()
    failed.error = error
    result, *notes = result_lines(failed)
    assert result.endswith(str(error or "not finished"))
    assert notes == TOLD
