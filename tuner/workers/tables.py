"""A training step in the measuring process with op kinds left undecomposed throughout, beside the default and the store's plans.

Runs in the child only, see tuner/workers/whole.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from tuner.compilers import dynamo
from tuner.compilers.inductor.capture import capture
from tuner.compilers.inductor.events import report, reset_report
from tuner.compilers.inductor.hooks import dynamo_config
from tuner.compilers.inductor.native_tables import backend_without, native_kinds
from tuner.measure.device import Device
from tuner.measurement import Policy
from tuner.workers.verdicts import failure, starved
from tuner.workers.whole import Whole
from tuner.workload.graph import SpecPhase
from tuner.workload.shapes import STATIC, Shapes

# More ways to compile one callable than Dynamo takes for a mistake.
RECOMPILE_LIMIT = 256
CHOSEN = "chosen"


class Tables(Whole):
    """chosen: a store whose choice for the callable's programs is compiled as well, timed as "chosen".

    Raises as Whole does.
    """

    def __init__(
        self,
        spec: str,
        policy: Policy,
        device: Device,
        phase: SpecPhase = "training",
        shapes: Shapes = STATIC,
        chosen: str | None = None,
    ):
        dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, RECOMPILE_LIMIT)
        super().__init__(spec, policy, device, phase, shapes)
        self.peaks = {name: self._peak_bytes(name) for name in ("default", "planned")}
        self.chosen: dict[str, Any] = {}
        if chosen is not None:
            with _reading(chosen):
                # Not the back end by its name: what Dynamo has compiled with that it would take again.
                self.chosen = self._try(CHOSEN, functools.partial(dynamo.tuner_backend))
                served = report()["served"]
            self.chosen["outcomes"] = [[graph.workload_key, graph.outcome] for graph in served]

    def describe_default(self) -> dict[str, Any]:
        """Beside what Whole says: kinds, the op kinds that may be left out; peak_bytes of "default" and "planned"; chosen, the
        verdict on the other store's choice, as `try_table` gives them, with the outcomes of its graphs."""
        return {**super().describe_default(), "kinds": self._kinds(), "peak_bytes": self.peaks, "chosen": self.chosen}

    def _kinds(self) -> list[str]:
        found: set[str] = set()

        def backend(gm: fx.GraphModule, example_inputs: Any) -> Any:
            found.update(native_kinds(gm, example_inputs))
            return gm.forward

        for run in self.runs:
            run.call(torch.compile(self.function, backend=backend, dynamic=run.dynamic))()
            run.put_back()
        return sorted(found)

    def try_table(self, kind: str) -> dict[str, Any]:
        """Compiles and checks a step without `kind` in the table; timed under that name from then on.

        status: "ok", "wrong", "compile_error", "out_of_resources". error: how far it is from the default, in units of the
        tolerance. peak_bytes: of one step.
        """
        return self._try(kind, backend_without((kind,)))

    def graphs_under(self, kind: str) -> list[list[Any]]:
        """(program key, its graphs' forms) of each program without `kind` in the table. Nothing can be timed after it.

        Of a program whose sizes vary once, as it is at the first of them.
        """
        found: dict[str, list[Any]] = {}
        for run in self.runs:
            for program in capture(self.function, run.inputs, run.dynamic, "training", without=(kind,)):
                found.setdefault(program.key, [graph.to_json() for graph in program.graphs])
        return [[key, forms] for key, forms in found.items()]

    def _try(self, name: str, backend: Any) -> dict[str, Any]:
        try:
            error = self.add(name, backend)
            return {"status": "ok", "error": error if error != float("inf") else None, "peak_bytes": self._peak_bytes(name)}
        # A border of the worker loop: whatever compiling or running a candidate raises is a verdict on it.
        except BaseException as raised:
            for run in self.runs:
                run.put_back()
            return {"status": "out_of_resources" if starved(raised) else "compile_error", **failure(raised)}

    def _peak_bytes(self, name: str) -> int:
        """Where sizes vary, that of the one which needs most."""
        return max(run.peak_bytes(name) for run in self.runs)


@contextmanager
def _reading(store: str) -> Iterator[None]:
    """Meanwhile programs are looked up in this store; what is compiled keeps its answers."""
    before = os.environ["TUNER_STORE"]
    os.environ["TUNER_STORE"] = store
    dynamo.reset()
    reset_report()
    try:
        yield
    finally:
        os.environ["TUNER_STORE"] = before
        dynamo.reset()
