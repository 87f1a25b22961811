"""Boxes in layers, edges downwards in lanes of their own: where to draw them so that nothing lies over anything.

The classical way (Sugiyama): the longest path gives the layers, an edge that passes layers gets a lane in each, sweeps by the
mean place of the neighbours give the order within layers, and exact least squares under that order give the places.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

LANE_WIDTH = 6.0
ORDER_SWEEPS, PLACE_SWEEPS = 8, 10
# edges that pass more layers are drawn straight: their lanes would be most of the picture
LONGEST_LANE = 60

Point = tuple[float, float]


@dataclass(frozen=True)
class Node:
    """A box to be placed. at: an end of the picture where it is to stand. hint: of those at the top, their order by this."""

    width: float
    height: float
    at: Literal["top", "bottom", ""] = ""
    hint: float | None = None


@dataclass(frozen=True)
class Edge:
    """From a node's bottom to another's top; leaves, enters: how far right of their centres."""

    source: int
    target: int
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True)
class Layout:
    """x: centres of the nodes; y: their tops. routes: for each edge the points through which it goes, downwards, both ends in.

    Between the points of a route it may bend only where x differs: there nothing else stands.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layered(nodes: Sequence[Node], edges: Sequence[Edge], gap_x: float, gap_y: float) -> Layout:
    """Place nodes and route edges; every edge's source has the smaller number. Raises ValueError where one has not."""
    if any(edge.source >= edge.target for edge in edges):
        raise ValueError("an edge that leads back")
    rank = _ranks(nodes, edges)
    lanes = _Lanes(rank, edges)
    widths = [node.width for node in nodes] + [LANE_WIDTH] * len(lanes.rank)
    ranks = rank + lanes.rank
    layers = _ordered(nodes, ranks, lanes.links)
    x = _places(layers, widths, lanes.links, gap_x)
    tops, bottoms, below = [], [], 0.0
    for layer in layers:
        tops.append(below)
        bottoms.append(below + max((nodes[one].height for one in layer if one < len(nodes)), default=0.0))
        below = bottoms[-1] + gap_y
    routes = []
    for edge, lane in zip(edges, lanes.of_edge, strict=True):
        start, end = x[edge.source] + edge.leaves, x[edge.target] + edge.enters
        first = rank[edge.source]
        route = [(start, tops[first] + nodes[edge.source].height), (start, bottoms[first])]
        route += [(x[one], y) for one in lane for y in (tops[ranks[one]], bottoms[ranks[one]])]
        routes.append((*route, (end, tops[rank[edge.target]])))
    count = len(nodes)
    width = max((x[one] + widths[one] / 2 for one in range(len(x))), default=0.0)
    y = tuple(tops[one] for one in rank)
    return Layout(tuple(x[:count]), y, tuple(routes), width, bottoms[-1] if bottoms else 0.0)


@dataclass(frozen=True)
class _Link:
    """Two neighbours in adjacent layers, and where it leaves and enters them."""

    above: int
    below: int
    leaves: float
    enters: float


class _Lanes:
    """Lanes as further nodes. Edges of one source and place share them. rank: their layers; links: all pairs of neighbours."""

    def __init__(self, rank: Sequence[int], edges: Sequence[Edge]):
        self.rank: list[int] = []
        self.links: list[_Link] = []
        self.of_edge: list[tuple[int, ...]] = []
        known: dict[tuple[int, float, int], int] = {}
        for edge in edges:
            passed = range(rank[edge.source] + 1, rank[edge.target])
            lane: list[int] = []
            for layer in passed if len(passed) <= LONGEST_LANE else ():
                key = (edge.source, edge.leaves, layer)
                if key not in known:
                    known[key] = len(rank) + len(self.rank)
                    self.rank.append(layer)
                    above, leaves = (lane[-1], 0.0) if lane else (edge.source, edge.leaves)
                    self.links.append(_Link(above, known[key], leaves, 0.0))
                lane.append(known[key])
            self.of_edge.append(tuple(lane))
            if len(passed) <= LONGEST_LANE:
                above, leaves = (lane[-1], 0.0) if lane else (edge.source, edge.leaves)
                self.links.append(_Link(above, edge.target, leaves, edge.enters))


def _ranks(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[int]:
    """The layer of each node: below all that it follows; what follows nothing just above what follows it."""
    lowest = 1 if any(node.at == "top" for node in nodes) else 0
    rank = [0 if node.at == "top" else lowest for node in nodes]
    for edge in sorted(edges, key=lambda edge: edge.target):
        rank[edge.target] = max(rank[edge.target], rank[edge.source] + 1)
    followers: defaultdict[int, list[int]] = defaultdict(list)
    followed = {edge.target for edge in edges}
    for edge in edges:
        followers[edge.source].append(edge.target)
    for one in reversed(range(len(nodes))):
        if one not in followed and followers[one] and not nodes[one].at:
            rank[one] = max(rank[one], min(rank[other] for other in followers[one]) - 1)
    bottom = max((layer for node, layer in zip(nodes, rank, strict=True) if node.at != "bottom"), default=-1) + 1
    return [bottom if node.at == "bottom" else layer for node, layer in zip(nodes, rank, strict=True)]


def _ordered(nodes: Sequence[Node], rank: Sequence[int], links: Sequence[_Link]) -> list[list[int]]:
    """The layers, each from left to right, with as few crossings as the sweeps find."""
    above, below = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for link in links:
        above[link.below].append(link.above)
        below[link.above].append(link.below)
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for one in _depth_first(rank, below):
        layers[rank[one]].append(one)
    fixed = {one for one, node in enumerate(nodes) if node.hint is not None}
    if layers and layers[0] and fixed.issuperset(layers[0]):
        layers[0].sort(key=lambda one: (nodes[one].hint, one))
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(ORDER_SWEEPS):
        down = sweep % 2 == 0
        for number in range(1, len(layers)) if down else reversed(range(len(layers) - 1)):
            beside = {one: place for place, one in enumerate(layers[number - 1 if down else number + 1])}
            neighbours = above if down else below
            if not (fixed and fixed.issuperset(layers[number])):
                layers[number] = _by_neighbours(layers[number], neighbours, beside)
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    return best


def _depth_first(rank: Sequence[int], below: dict[int, list[int]]) -> list[int]:
    """All nodes, each after one above it: what hangs together comes together."""
    order, seen = [], set()
    for start in sorted(range(len(rank)), key=lambda one: (rank[one], one)):
        stack = [start]
        while stack:
            one = stack.pop()
            if one not in seen:
                seen.add(one)
                order.append(one)
                stack += reversed(below.get(one, []))
    return order


def _by_neighbours(layer: Sequence[int], neighbours: dict[int, list[int]], beside: dict[int, int]) -> list[int]:
    """The layer by the mean place of each one's neighbours; those without any keep theirs."""
    place = {}
    for number, one in enumerate(layer):
        near = [beside[other] for other in neighbours.get(one, ()) if other in beside]
        place[one] = sum(near) / len(near) if near else number * max(len(beside), 1) / len(layer)
    return sorted(layer, key=lambda one: place[one])


def _crossings(layers: Sequence[Sequence[int]], below: dict[int, list[int]]) -> int:
    crossings = 0
    for upper, lower in pairwise(layers):
        place = {one: number for number, one in enumerate(lower)}
        seen: list[int] = []
        for one in upper:
            ends = sorted(place[other] for other in below.get(one, ()) if other in place)
            crossings += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings


def _places(layers: Sequence[Sequence[int]], widths: Sequence[float], links: Sequence[_Link], gap: float) -> list[float]:
    """The centre of each: as near above and below its neighbours as the order and the widths allow, the left end at 0."""
    x = [0.0] * len(widths)
    near: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for link in links:
        # where the centre would stand for a straight line
        near[link.below].append((link.above, link.leaves - link.enters))
        near[link.above].append((link.below, link.enters - link.leaves))
    for layer in layers:
        _spread(layer, widths, gap, [0.0] * len(layer), x)
    for sweep in range(PLACE_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for one in layer:
                told = [x[other] + offset for other, offset in near[one]]
                wanted.append(sum(told) / len(told) if told else x[one])
            _spread(layer, widths, gap, wanted, x)
    left = min((x[one] - widths[one] / 2 for layer in layers for one in layer), default=0.0)
    return [max(one - left, width / 2) for one, width in zip(x, widths, strict=True)]


def _spread(layer: Sequence[int], widths: Sequence[float], gap: float, wanted: Sequence[float], x: list[float]) -> None:
    """Least squares of distances from where each is wanted, in order and `gap` apart: means over what is in each other's way."""
    offset, offsets = 0.0, []
    for number, one in enumerate(layer):
        if number:
            offset += (widths[layer[number - 1]] + widths[one]) / 2 + gap
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for target, shift in zip(wanted, offsets, strict=True):
        total, count = target - shift, 1
        while pools and pools[-1][0] * count >= total * pools[-1][1]:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    number = 0
    for total, count in pools:
        for _ in range(count):
            x[layer[number]] = total / count + offsets[number]
            number += 1
