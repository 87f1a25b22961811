"""Values to rows of the store's tables and back."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tuner.answer import ProgramChoice
from tuner.cache.contract import StoredProgram
from tuner.canonical import canonical_json, named_fields
from tuner.errors import PlanError, StoreError
from tuner.lookup.validate import groups_of, validated_choice
from tuner.measurement import GroupTime, Measurement, Policy, ProgramFinal, Winner
from tuner.plan import Groups, Plan
from tuner.search_spaces.validate import validate_plan
from tuner.target import Query

Row = sqlite3.Row
# named fields of a key: the store's `fields` table
Fields = Callable[[str], dict[str, Any]]


def now() -> str:
    """The time of a row, UTC, ISO 8601 to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def json_text(value: Any) -> str:
    """Canonical JSON of a value to be stored. Raises StoreError on what JSON cannot hold, NaN included."""
    try:
        return canonical_json(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"not a value that a store can keep: {error}") from error


def checked_plan(plan: Plan) -> Plan:
    """`plan`, if it would come back from the store as it is. Raises PlanError on what is undeclared or not in canonical form."""
    if validate_plan(plan.to_json()) != plan:
        raise PlanError(f"a plan that is not in canonical form: {plan.describe()}")
    return plan


def query_fields(query: Query) -> dict[str, tuple[str, str]]:
    """Key -> (kind, JSON of the named fields) for the three parts of a query."""
    return {
        query.target_key: ("target", json_text(named_fields(query.target))),
        query.toolchain_key: ("toolchain", json_text(named_fields(query.toolchain))),
        query.ambient_key: ("ambient", json_text(named_fields(query.ambient))),
    }


def query_columns(query: Query) -> dict[str, Any]:
    return {
        "query_kind": query.kind,
        "graph_key": query.workload_key,
        "exact_key": query.exact_key,
        "target_key": query.target_key,
        "toolchain_key": query.toolchain_key,
        "ambient_key": query.ambient_key,
    }


def query_of(row: Row, fields: Fields) -> Query:
    return _query(row, fields, row["query_kind"], row["graph_key"])


def _query(row: Row, fields: Fields, kind: str, workload_key: str) -> Query:
    return Query(
        kind=kind,
        workload_key=workload_key,
        target=fields(row["target_key"]),
        toolchain=fields(row["toolchain_key"]),
        ambient=fields(row["ambient_key"]),
    )


def measurement_columns(measurement: Measurement, generation: int) -> dict[str, Any]:
    """Raises PlanError, StoreError on what JSON cannot hold."""
    return {
        **query_columns(measurement.query),
        "program_key": measurement.program_key,
        "region_key": measurement.region_key,
        "policy_key": measurement.policy.key,
        "candidate_key": checked_plan(measurement.plan).key,
        "stage": measurement.stage,
        "status": measurement.status,
        "label": measurement.label,
        "plan": measurement.plan.text,
        "samples_ms": json_text(list(measurement.samples_ms)),
        "default_samples_ms": json_text(list(measurement.default_samples_ms)),
        "realised": _groups_text(measurement.realised),
        "code_key": measurement.code_key,
        "error": measurement.error,
        "peak_bytes": measurement.peak_bytes,
        "default_peak_bytes": measurement.default_peak_bytes,
        "message": measurement.message,
        "process": measurement.process,
        "generation": generation,
        "provenance": json_text(dict(measurement.provenance)),
        "created": now(),
    }


def measurement_of(row: Row, fields: Fields) -> Measurement:
    """Raises PlanError, ValueError, TypeError or KeyError on a row that no `measurement_columns` made."""
    return Measurement(
        query=query_of(row, fields),
        policy=Policy(**fields(row["policy_key"])),
        plan=validate_plan(json.loads(row["plan"])),
        stage=row["stage"],
        status=row["status"],
        label=row["label"],
        samples_ms=tuple(json.loads(row["samples_ms"])),
        default_samples_ms=tuple(json.loads(row["default_samples_ms"])),
        realised=_groups_of(row["realised"]),
        code_key=row["code_key"],
        error=row["error"],
        peak_bytes=row["peak_bytes"],
        default_peak_bytes=row["default_peak_bytes"],
        message=row["message"],
        process=row["process"],
        program_key=row["program_key"],
        region_key=row["region_key"],
        provenance=json.loads(row["provenance"]),
    )


def winner_columns(winner: Winner, generation: int) -> dict[str, Any]:
    """Raises PlanError, StoreError on what JSON cannot hold, ValueError where the kind does not fit the plan."""
    if (winner.kind == "default") != winner.plan.is_default:
        raise ValueError(f"a winner of kind {winner.kind!r} with the plan {winner.plan.describe()!r}")
    return {
        **query_columns(winner.query),
        "generation": generation,
        "program_key": winner.program_key,
        "region_key": winner.region_key,
        "policy_key": winner.policy.key,
        "candidate_key": checked_plan(winner.plan).key,
        "kind": winner.kind,
        "plan": winner.plan.text,
        "realised": _groups_text(winner.groups),
        "default_ms": winner.default_ms,
        "winner_ms": winner.winner_ms,
        "speedup": winner.speedup,
        "speedup_low": winner.speedup_low,
        "speedup_high": winner.speedup_high,
        "effort": winner.effort,
        "space_version": winner.space_version,
        "evidence": json_text(dict(winner.evidence)),
        "provenance": json_text(dict(winner.provenance)),
        "created": now(),
    }


def winner_of(row: Row, fields: Fields) -> Winner:
    """Raises PlanError, ValueError, TypeError or KeyError on a row that no `winner_columns` made."""
    return Winner(
        query=query_of(row, fields),
        kind=row["kind"],
        plan=validate_plan(json.loads(row["plan"])),
        groups=_groups_of(row["realised"]),
        default_ms=row["default_ms"],
        winner_ms=row["winner_ms"],
        speedup=row["speedup"],
        speedup_low=row["speedup_low"],
        speedup_high=row["speedup_high"],
        policy=Policy(**fields(row["policy_key"])),
        effort=row["effort"],
        space_version=row["space_version"],
        program_key=row["program_key"],
        region_key=row["region_key"],
        evidence=json.loads(row["evidence"]),
        provenance=json.loads(row["provenance"]),
    )


def program_columns(query: Query) -> dict[str, Any]:
    """The columns of a query of kind "program" in the tables that are about programs. Raises ValueError on another kind."""
    if query.kind != "program":
        raise ValueError(f"a query of kind {query.kind!r} where one of kind program is asked for")
    columns = query_columns(query)
    del columns["query_kind"]
    return {"program_key": columns.pop("graph_key"), **columns}


def stored_program_of(rows: Sequence[Row], fields: Fields) -> StoredProgram:
    """The program of its rows, one for each graph. Raises KeyError, TypeError, ValueError on rows that are no program."""
    query = _query(rows[0], fields, "program", rows[0]["program_key"])
    graphs = tuple(_query(row, fields, "graph", row["graph_key"]) for row in sorted(rows, key=lambda row: row["position"]))
    if query.exact_key != rows[0]["exact_key"]:
        raise ValueError("a program has another key than its fields")
    if any(graph.fields() != query.fields() for graph in graphs):
        raise ValueError("a graph of a program is under other settings than it")
    return StoredProgram(query, graphs, rows[0]["spec"])


def program_final_columns(final: ProgramFinal, generation: int) -> dict[str, Any]:
    """Raises StoreError on what JSON cannot hold, ValueError on a query of another kind than "program"."""
    return {
        **program_columns(final.query),
        "policy_key": final.policy.key,
        "generation": generation,
        "plans": final.plans,
        "verdict": final.verdict,
        "speedup": final.speedup,
        "speedup_low": final.speedup_low,
        "speedup_high": final.speedup_high,
        "default_ms": final.default_ms,
        "planned_ms": final.planned_ms,
        "evidence": json_text(dict(final.evidence)),
        "provenance": json_text(dict(final.provenance)),
        "created": now(),
    }


def program_final_of(row: Row, fields: Fields) -> ProgramFinal:
    """Raises ValueError, TypeError or KeyError on a row that no `program_final_columns` made."""
    return ProgramFinal(
        query=_query(row, fields, "program", row["program_key"]),
        plans=row["plans"],
        verdict=row["verdict"],
        speedup=row["speedup"],
        speedup_low=row["speedup_low"],
        speedup_high=row["speedup_high"],
        default_ms=row["default_ms"],
        planned_ms=row["planned_ms"],
        policy=Policy(**fields(row["policy_key"])),
        evidence=json.loads(row["evidence"]),
        provenance=json.loads(row["provenance"]),
    )


def program_choice_columns(
    query: Query, choice: ProgramChoice, generation: int, evidence: Mapping[str, Any], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises PlanError, ValueError on a choice that readers would refuse, StoreError on what JSON cannot hold."""
    told = validated_choice(choice).to_json()
    if ProgramChoice.from_json(told) != choice:
        raise PlanError("a program's choice that is not in canonical form")
    return {
        **program_columns(query),
        "generation": generation,
        "native_table": json_text(told["native_table"]),
        "dispatch": json_text(told["dispatch"]),
        "evidence": json_text(dict(evidence)),
        "provenance": json_text(dict(provenance)),
        "created": now(),
    }


def program_choice_of(row: Row) -> ProgramChoice:
    """Raises PlanError, ValueError, TypeError or KeyError on a row that no `program_choice_columns` made."""
    told = {"native_table": json.loads(row["native_table"]), "dispatch": json.loads(row["dispatch"])}
    return validated_choice(ProgramChoice.from_json(told))


def group_time_columns(query: Query, policy: Policy, time: GroupTime) -> dict[str, Any]:
    """Raises ValueError on a time that readers would refuse."""
    _check_group_time(time)
    columns = query_columns(query)
    del columns["query_kind"], columns["exact_key"]
    return {
        **columns,
        "group_key": time.key,
        "policy_key": policy.key,
        "ms": time.ms,
        "process": time.process,
        "created": now(),
    }


def group_time_of(row: Row) -> GroupTime:
    """Raises ValueError, TypeError on a row that no `group_time_columns` made."""
    time = GroupTime(row["group_key"], row["ms"], row["process"])
    _check_group_time(time)
    return time


def _check_group_time(time: GroupTime) -> None:
    if not time.key:
        raise ValueError("a group's time without its key")
    if not (math.isfinite(time.ms) and time.ms >= 0):
        raise ValueError(f"a group's time of {time.ms} ms")


def _groups_text(groups: Groups | None) -> str | None:
    return None if groups is None else json_text([list(group) for group in groups])


def _groups_of(text: str | None) -> Groups | None:
    return None if text is None else groups_of(json.loads(text))
