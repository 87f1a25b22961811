"""The check of answers that come from outside: a store file or a daemon."""

from __future__ import annotations

import math
from typing import Any

from tuner.answer import Answer
from tuner.plan import PLAN_SCHEMA, Groups, Plan
from tuner.search_spaces.validate import check_plan


def groups_of(data: Any) -> Groups | None:
    """Groups that JSON holds. Raises PlanError; a plan's own check of groups is the check of all groups."""
    return Plan.from_json({"schema": PLAN_SCHEMA, "groups": data}).groups


def validated(answer: Answer) -> Answer:
    """`answer` itself, if every part of it may be used. Raises PlanError on its plan or groups, ValueError on its numbers."""
    check_plan(answer.plan)
    groups_of(answer.groups)
    if answer.tier == "default" and not answer.plan.is_default:
        raise ValueError("an answer of tier default with a plan")
    if not all(math.isfinite(number) and number > 0 for number in (answer.speedup, answer.speedup_low, answer.speedup_high)):
        raise ValueError("an answer whose speed-ups are no positive numbers")
    return answer
