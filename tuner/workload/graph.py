"""A graph as data: canonical form, key and JSON. No torch here; `workload/fx.py` converts from and to FX.

Nodes stand in canonical order: inputs first, then operations, each numbered when a depth-first walk from the outputs first needs
it. So neither variable names nor the order of independent statements shows, and equal graphs are equal texts in every process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tuner.canonical import canonical_json, digest
from tuner.errors import SpecError

GRAPH_SCHEMA = 1
# What a SPEC is run as: a call without gradients, or a training step.
SpecPhase = Literal["inference", "training"]
SPEC_PHASES: tuple[SpecPhase, ...] = ("inference", "training")
# Namespaces whose ops are there in every process; others exist only where their library was imported.
REBUILDABLE_NAMESPACES = ("aten", "prims")
STORED_KEY = re.compile(r"[0-9a-f]{6,64}")
# Names of inputs become names in Python code.
NAME = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)


def is_stored_key(spec: str) -> bool:
    """Whether `spec` is the key of a stored workload, or at least its first 6 digits."""
    return STORED_KEY.fullmatch(spec) is not None


@dataclass(frozen=True)
class TensorMeta:
    """dtype ("float32"), shape and stride in elements, device type ("cpu")."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    def to_json(self) -> list[Any]:
        return [self.dtype, list(self.shape), list(self.stride), self.device]

    @staticmethod
    def from_json(data: Any) -> TensorMeta:
        dtype, shape, stride, device = data
        return TensorMeta(str(dtype), tuple(map(int, shape)), tuple(map(int, stride)), str(device))


@dataclass(frozen=True)
class Node:
    """op: "input", "constant" or "call". target: "aten.add.Tensor"; a constant's is its content class.

    args, kwargs: JSON; a node is {"node": i}, other things than numbers, strings, booleans, None and lists are one-entry objects,
    {"dtype": "float32"}. value: metadata of what it yields, a list of such for several outputs, None for no tensor.
    """

    op: str
    target: str
    args: list[Any] = field(hash=False)
    kwargs: dict[str, Any] = field(hash=False)
    value: Any = field(hash=False)

    def to_json(self) -> list[Any]:
        return [self.op, self.target, self.args, self.kwargs, self.value]


@dataclass(frozen=True)
class InputData:
    """What was seen in an input, enough to make data like it: bounds, mean and standard deviation of its finite values.

    runs: the whole content as (value, length) in row-major order, kept where it is made of few runs, as masks and constants are;
    trained weights are not. Times depend on values: a random mask took 2.5 times as long in a softmax as the causal one seen.
    shares: where it lay in the memory of an input before it, the position of the first such and the bytes from that one's first
    element to its own.
    """

    low: float | int
    high: float | int
    mean: float = 0.5
    std: float = 0.3
    runs: tuple[tuple[Any, int], ...] | None = field(default=None, hash=False)
    shares: tuple[int, int] | None = None

    def to_json(self) -> list[Any]:
        runs = None if self.runs is None else [list(run) for run in self.runs]
        return [self.low, self.high, self.mean, self.std, runs, *([] if self.shares is None else [list(self.shares)])]

    @staticmethod
    def from_json(data: Any) -> InputData:
        low, high, mean, std, runs, *rest = data
        shares = None
        if rest:
            ((first, offset),) = rest
            shares = (int(first), int(offset))
        return InputData(
            low, high, mean, std, None if runs is None else tuple((value, int(length)) for value, length in runs), shares
        )


@dataclass(frozen=True)
class Graph:
    """phase: "inference", "forward" or "backward". outputs: JSON argument of the output node. user_visible: positions of the
    outputs whose strides the user sees, where those are not all; the others are what a forward graph keeps for its backward.

    Only these and the nodes make the key. The rest is what a rebuilt graph needs beside them. order: the nodes as the compiler
    was given them, by canonical number; inputs stand there as a call passes them, and the next three follow that order.
    data: what was seen in each input. static_inputs: positions of inputs that keep their address (parameters). mutated: positions
    of inputs that the graph writes. native_form: the same graph with all declared op kinds undecomposed, None if it holds none.
    names, yields: of a training graph, the compiler's own names for its inputs and outputs ("" for an output that is no node):
    a backward's inputs are named as the outputs of its forward that they are.
    """

    phase: str
    nodes: tuple[Node, ...]
    outputs: list[Any] = field(hash=False)
    order: tuple[int, ...]
    data: tuple[InputData, ...]
    static_inputs: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    native_form: Graph | None = None
    user_visible: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    yields: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Graph key: 64 hex digits."""
        rows = canonical_json([[node.to_json() for node in self.nodes], self.outputs])
        fields: dict[str, Any] = {"phase": self.phase, "rows": hashlib.sha256(rows.encode()).hexdigest()}
        if self.user_visible is not None:
            fields["user_visible"] = {"at": list(self.user_visible)}
        return digest("graph", fields)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes in the order in which a call passes them."""
        return tuple(self.nodes[i] for i in self.order if self.nodes[i].op == "input")

    @property
    def calls(self) -> tuple[str, ...]:
        """Targets of all operations, in order."""
        return tuple(node.target for node in self.nodes if node.op == "call")

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": GRAPH_SCHEMA,
            "phase": self.phase,
            "nodes": [node.to_json() for node in self.nodes],
            "outputs": self.outputs,
            "order": list(self.order),
            "data": [seen.to_json() for seen in self.data],
            "static_inputs": list(self.static_inputs),
            "mutated": list(self.mutated),
            "native_form": None if self.native_form is None else self.native_form.to_json(),
            **({} if self.user_visible is None else {"user_visible": list(self.user_visible)}),
            **{name: list(value) for name, value in (("names", self.names), ("yields", self.yields)) if value},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Graph:
        """The graph that `to_json` wrote. Raises SpecError on any other structure."""
        try:
            if data["schema"] != GRAPH_SCHEMA:
                raise SpecError(f"stored graph has schema {data['schema']!r}, this version reads {GRAPH_SCHEMA}")
            native = data["native_form"]
            seen = tuple(InputData.from_json(row) for row in data["data"])
            if any(
                one.shares and not (0 <= one.shares[0] < i and seen[one.shares[0]].shares is None) for i, one in enumerate(seen)
            ):
                raise SpecError("in a stored graph an input shares memory with one that is not before it")
            names, yields, visible = tuple(data.get("names", ())), tuple(data.get("yields", ())), data.get("user_visible")
            if not all(isinstance(name, str) and NAME.fullmatch(name) for name in (*names, *filter(None, yields))):
                raise SpecError("a stored graph has an input that is not named as one")
            return Graph(
                phase=data["phase"],
                nodes=tuple(Node(*row) for row in data["nodes"]),
                outputs=data["outputs"],
                order=tuple(data["order"]),
                data=seen,
                static_inputs=tuple(data["static_inputs"]),
                mutated=tuple(data["mutated"]),
                native_form=None if native is None else Graph.from_json(native),
                user_visible=None if visible is None else tuple(map(int, visible)),
                names=names,
                yields=yields,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"a stored graph is malformed: {error!r}") from error
