"""A graph as data: canonical form, key and JSON. No torch here; `workload/fx.py` converts from and to FX.

Nodes stand in canonical order: inputs first, then operations, each numbered when a depth-first walk from the outputs first needs
it. So neither variable names nor the order of independent statements shows, and equal graphs are equal texts in every process.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tuner.canonical import canonical_json, digest
from tuner.errors import SpecError
from tuner.workload.expressions import value_of

GRAPH_SCHEMA = 1
# What a SPEC is run as: a call without gradients, or a training step.
SpecPhase = Literal["inference", "training"]
SPEC_PHASES: tuple[SpecPhase, ...] = ("inference", "training")
# Namespaces whose ops are there in every process; others exist only where their library was imported.
REBUILDABLE_NAMESPACES = ("aten", "prims")
PHASES = ("inference", "forward", "backward")
STORED_KEY = re.compile(r"[0-9a-f]{6,64}")
# Names of inputs become names in Python code.
NAME = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)


def is_stored_key(spec: str) -> bool:
    """Whether `spec` is the key of a stored workload, or at least its first 6 digits."""
    return STORED_KEY.fullmatch(spec) is not None


@dataclass(frozen=True)
class Symbol:
    """A size that varies: its bounds, both included (high None: none), and the value it had when the graph was made."""

    low: int
    high: int | None
    hint: int

    def to_json(self) -> list[int | None]:
        return [self.low, self.high, self.hint]

    @staticmethod
    def from_json(data: Any) -> Symbol:
        low, high, hint = data
        return Symbol(int(low), None if high is None else int(high), int(hint))


@dataclass(frozen=True)
class TensorMeta:
    """dtype ("float32"), shape and stride in elements, device type ("cpu").

    A size is a number, or an expression over the graph's symbols, "2*s0" (see `tuner.workload.expressions`). layout: "" for
    memory with strides, else what it is instead, "sparse_coo", and then there are no strides.
    """

    dtype: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    device: str
    layout: str = ""

    def to_json(self) -> list[Any]:
        return [self.dtype, list(self.shape), list(self.stride), self.device, *([self.layout] if self.layout else [])]

    @staticmethod
    def from_json(data: Any) -> TensorMeta:
        dtype, shape, stride, device, *layout = data
        (layout,) = layout or ("",)
        return TensorMeta(str(dtype), tuple(map(_size, shape)), tuple(map(_size, stride)), str(device), str(layout))

    def at(self, sizes: Sequence[int]) -> TensorMeta:
        """The same with numbers, where the symbols have these sizes. Raises ValueError where there are none."""
        shape, stride = (tuple(value_of(size, sizes) for size in part) for part in (self.shape, self.stride))
        return TensorMeta(self.dtype, shape, stride, self.device, self.layout)


def _size(size: Any) -> int | str:
    return size if isinstance(size, str) else int(size)


@dataclass(frozen=True)
class Node:
    """op: "input", "constant", "call" or "opaque". target: "aten.add.Tensor"; a constant's is its content class.

    Opaque is what cannot be rebuilt elsewhere: it has a key, and a plan can be served around it. Its target names what it is,
    target and arguments say what is in it: nested graphs by a hash of their content, user kernels of their source.
    args, kwargs: JSON; a node is {"node": i}, other things than numbers, strings, booleans, None and lists are one-entry objects,
    {"dtype": "float32"}, {"sym": "2*s0"} for a number that is an expression over symbols. value: metadata of what it yields, a
    list of such for several outputs, None for no tensor.
    """

    op: str
    target: str
    args: list[Any] = field(hash=False)
    kwargs: dict[str, Any] = field(hash=False)
    value: Any = field(hash=False)

    def to_json(self) -> list[Any]:
        return [self.op, self.target, self.args, self.kwargs, self.value]


def is_rebuildable(node: Node) -> bool:
    """Whether such a node can be made in any process."""
    if node.op == "call":
        return node.target == "operator.getitem" or node.target.partition(".")[0] in REBUILDABLE_NAMESPACES
    return node.op != "opaque" and (node.op not in ("input", "constant") or not TensorMeta.from_json(node.value).layout)


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
    """phase: "inference", "forward" or "backward". outputs: JSON argument of the output node; a backward's without Nones.
    symbols: the sizes that vary, s0, s1, … numbered by first use; what computes with them is no node but an expression. A rebuilt
    graph is called with a value of each before its inputs. user_visible: positions of the outputs whose strides the user sees,
    where those are not all; the others are what a forward graph keeps for its backward.

    These, without the symbols' hints, and the nodes make the key. The rest is what a rebuilt graph needs beside them. order: the
    nodes as the compiler was given them, by canonical number; inputs stand there as a call passes them, and the next three follow
    that order. data: what was seen in each input. static_inputs: positions of inputs that keep their address (parameters).
    mutated: positions of inputs that the graph writes. native_form: the same graph with all declared op kinds undecomposed, None
    if it holds none. names, yields: of a training graph, the compiler's own names for its inputs and outputs ("" for an output
    that is no node): a backward's inputs are named as the outputs of its forward that they are.
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
    symbols: tuple[Symbol, ...] = ()

    @cached_property
    def key(self) -> str:
        """Graph key: 64 hex digits. Fields at their defaults are not in it."""
        rows = canonical_json([[node.to_json() for node in self.nodes], self._keyed_outputs])
        fields: dict[str, Any] = {"phase": self.phase, "rows": hashlib.sha256(rows.encode()).hexdigest()}
        fields["symbols"] = [[symbol.low, symbol.high] for symbol in self.symbols]
        return digest("graph", fields)

    @property
    def _keyed_outputs(self) -> Any:
        """The outputs, of a training step those that the user sees by themselves: the others have no order.

        What a forward keeps for its backward, and the gradients that a backward gives, come in the order in which the program's
        statements happen to need things. Of a backward all are "others", and "visible" only says whether the user sees them all.
        """
        if self.phase == "inference":
            return self.outputs
        visible = range(len(self.outputs)) if self.user_visible is None else self.user_visible
        rest = [output for i, output in enumerate(self.outputs) if i not in visible or self.phase == "backward"]
        ordered = [] if self.phase == "backward" else [self.outputs[i] for i in visible]
        return {
            "visible": ordered if self.phase == "forward" else self.user_visible is None,
            "others": sorted({canonical_json(output) for output in rest}),
        }

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes in the order in which a call passes them."""
        return tuple(self.nodes[i] for i in self.order if self.nodes[i].op == "input")

    @property
    def call_positions(self) -> tuple[int, ...]:
        """Positions of the static inputs in a call of the rebuilt graph, which passes the symbols first."""
        return tuple(len(self.symbols) + i for i in self.static_inputs)

    @property
    def hints(self) -> tuple[int, ...]:
        """The size that each symbol had when the graph was made."""
        return tuple(symbol.hint for symbol in self.symbols)

    @cached_property
    def opaque(self) -> tuple[str, ...]:
        """What in it cannot be rebuilt elsewhere, so that it is served plans but never tuned; each once, in order."""
        names = [node.target for node in self.nodes if node.op == "opaque" or not is_rebuildable(node)]
        return tuple(dict.fromkeys(names))

    @property
    def calls(self) -> tuple[str, ...]:
        """Targets of all operations, in order."""
        return tuple(node.target for node in self.nodes if node.op == "call")

    def to_json(self) -> dict[str, Any]:
        """Fields that came later stand in it only where they are not at their defaults."""
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
            **({"symbols": [symbol.to_json() for symbol in self.symbols]} if self.symbols else {}),
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
                symbols=tuple(Symbol.from_json(row) for row in data.get("symbols", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise SpecError(f"a stored graph is malformed: {error!r}") from error
