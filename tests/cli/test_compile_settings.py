"""--mode and --option of `tuner lookup` and `tuner sweep`: what they ask for is asked under these settings of Inductor's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from stored import program, winner

from tuner.cache.sqlite import SqliteStore
from tuner.cli.main import main
from tuner.compilers.inductor.ambient import ambient
from tuner.errors import UsageError
from tuner.search.workloads import Resolved
from tuner.target import Query
from tuner.workload.graph import Graph


def asked() -> Query:
    return Query("graph", "ab" * 32, {"backend": "cpu"}, {"torch": "1"}, ambient())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`tuner lookup` of a SPEC of one graph that is asked for as things are set then; its winner is one for no settings."""

    def resolve(spec: str, **_: Any) -> list[Any]:
        return [Resolved(spec, Graph("inference", (), [], (), ()), asked(), program())]

    with SqliteStore(tmp_path / "store.db") as store:
        store.record_winner(winner(asked()))
    monkeypatch.setitem(sys.modules, "tuner.search.workloads", SimpleNamespace(resolve=resolve))

    def lookup(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["lookup", "m.py:f", "--store", str(tmp_path / "store.db"), "--json", *arguments])

    return lookup


@pytest.mark.parametrize("given", [["--option", "max_autotune=true"], ["--mode", "max-autotune"], ["--option", "cpp.threads=1"]])
def test_other_settings_are_another_question(run: Any, given: list[str]) -> None:
    (plain,) = json.loads(run().stdout)
    assert plain["winner"] == "plan"
    (other,) = json.loads(run(*given).stdout)
    assert other["winner"] == "default"
    assert "ambient" in other["reason"] or "inductor" in other["reason"]


def test_a_setting_to_its_default_is_the_same_question(run: Any) -> None:
    (same,) = json.loads(run("--option", "max_autotune=false", "--option", "epilogue-fusion=true").stdout)
    assert same["winner"] == "plan"


@pytest.mark.parametrize("given", [["--mode", "fastest"], ["--option", "nothing=1"], ["--mode", "default", "--option", "x=1"]])
def test_what_torch_compile_would_refuse_is_a_usage_error(run: Any, given: list[str]) -> None:
    result = run(*given)
    assert isinstance(result.exception, UsageError) or result.exit_code == 2
