"""The one gate for plans from outside (a file, a socket, a user): what is not declared here never reaches a compiler."""

from __future__ import annotations

from typing import Any

from tuner.errors import PlanError
from tuner.plan import CUT_ID, MAX_NAMES, Plan, kind_of
from tuner.search_spaces.inductor_knobs import KNOBS
from tuner.search_spaces.native import NATIVE_OPS

COMPILERS = ("inductor", "eager")


def check_plan(plan: Plan) -> Plan:
    """`plan` itself, if every name and number in it is declared by the search space. Raises PlanError.

    Whether this machine can run with it is asked where it is applied.
    """
    if plan.compiler not in COMPILERS:
        raise PlanError(f"unknown compiler {plan.compiler!r}")
    for name, value in plan.config:
        if name not in KNOBS:
            raise PlanError(f"{name} is not a declared knob")
        if not KNOBS[name].contains(value):
            raise PlanError(f"{name}={value!r} is outside its declared range")
    whole = frozenset(plan.native)
    for name in plan.native:
        if (kind := kind_of(name)) not in NATIVE_OPS:
            raise PlanError(f"{name} is not declared as an op that may stay native")
        if kind != name and kind in whole:
            raise PlanError(f"a plan's native names {name} beside all occurrences of {kind}")
    if plan.groups == ():
        # It has the default's key, since empty fields are not in keys, but would keep everything from being fused.
        raise PlanError("a plan's groups hold no leaf")
    if len(plan.cuts) > MAX_NAMES:
        raise PlanError(f"a plan's cuts hold more than {MAX_NAMES} names")
    for cut in plan.cuts:
        if not CUT_ID.fullmatch(cut):
            raise PlanError(f"not a cut: {cut[:80]!r}")
    if plan.cuts and plan.compiler == "eager":
        raise PlanError("a plan that leaves a graph to eager has nothing to cut")
    if plan.kernels:
        raise PlanError("kernels are not supported by this version")
    return plan


def validate_plan(data: Any) -> Plan:
    """The plan that JSON `data` holds, checked for structure, names, types and ranges. Raises PlanError."""
    return check_plan(Plan.from_json(data))
