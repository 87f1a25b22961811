"""The check of answers that come from outside: a store file or a daemon."""

from __future__ import annotations

import math
import re
from typing import Any

from tuner.answer import Answer, ProgramChoice
from tuner.errors import PlanError
from tuner.plan import Groups, groups_from_json
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.validate import check_plan

KEY = re.compile(r"[0-9a-f]{64}")
SYMBOL = re.compile(r"s\d{1,3}")
BUCKETS_LIMIT = 64


def groups_of(data: Any) -> Groups | None:
    """Groups that JSON holds, where it holds some. Raises PlanError."""
    return None if data is None else groups_from_json(data)


def validated(answer: Answer) -> Answer:
    """`answer` itself, if every part of it may be used. Raises PlanError on its plan or groups, ValueError on its numbers."""
    check_plan(answer.plan)
    groups_of(answer.groups)
    if answer.tier == "default" and not answer.plan.is_default:
        raise ValueError("an answer of tier default with a plan")
    if not all(math.isfinite(number) and number > 0 for number in (answer.speedup, answer.speedup_low, answer.speedup_high)):
        raise ValueError("an answer whose speed-ups are no positive numbers")
    return answer


def validated_choice(choice: ProgramChoice) -> ProgramChoice:
    """`choice` itself, if every part of it may be used. Raises PlanError, ValueError on buckets that are not in order."""
    for op in choice.native_table:
        if op not in NATIVE_OPS:
            raise PlanError(f"{op} is not declared as an op that may stay native")
    if len(set(choice.native_table)) != len(choice.native_table):
        raise PlanError("a program's choice names an op twice")
    buckets = choice.dispatch
    if len(buckets) > BUCKETS_LIMIT or len({bucket.symbol for bucket in buckets}) > 1:
        raise ValueError("a program's buckets are too many, or of several symbols")
    limits = [math.inf if bucket.up_to is None else bucket.up_to for bucket in buckets]
    if limits != sorted(set(limits)) or (limits and (limits[0] < 0 or limits[-1] != math.inf)):
        raise ValueError("a program's buckets are not in ascending order up to any size")
    for bucket in buckets:
        if not SYMBOL.fullmatch(bucket.symbol) or not all(KEY.fullmatch(key) for key, _, _ in bucket.plans):
            raise ValueError("a bucket whose symbol or graphs are not named as they should be")
        for _, plan, groups in bucket.plans:
            check_plan(plan)
            groups_of(groups)
    return choice
