"""Regions of real graphs, as Inductor lowers them."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tuner.anatomy import Anatomy
from tuner.compilers.inductor.capture import capture
from tuner.plan import Plan
from tuner.search_spaces.cut_sites import cut_sites
from tuner.search_spaces.fusion import regions, regrouped
from tuner.search_spaces.links import realised_links
from tuner.workers.builder import Builder, fake_inputs


class Layers(torch.nn.Module):
    """Attention without its projections, and a feed-forward, in layers that read one mask."""

    def __init__(self, count: int):
        super().__init__()
        self.up = torch.nn.ModuleList(torch.nn.Linear(16, 32) for _ in range(count))
        self.down = torch.nn.ModuleList(torch.nn.Linear(32, 16) for _ in range(count))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(16) for _ in range(count))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = (1.0 - mask.float()) * -1e4
        for up, down, norm in zip(self.up, self.down, self.norms, strict=True):
            normed = norm(x)
            scores = torch.bmm(normed, normed.transpose(1, 2)) * 0.25 + hidden
            x = x + torch.bmm(torch.softmax(scores, -1), normed)
            x = x + down(torch.nn.functional.gelu(up(x)))
        return x


@cache
def builders(count: int, phase: str = "inference") -> list[Builder]:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 8, 16), torch.ones(2, 8, 8))
    graphs = [graph for program in capture(Layers(count), inputs, phase=phase) for graph in program.graphs]
    return [Builder(graph, fake_inputs(graph)) for graph in graphs]


def read(builder: Builder, plan: Plan | None = None) -> Anatomy:
    found = builder.anatomy(plan or Plan())
    assert isinstance(found, Anatomy), found
    return found


@pytest.mark.parametrize("phase", ["inference", pytest.param("training", marks=pytest.mark.slow)])
def test_a_deep_graph_has_the_regions_and_the_cuts_of_a_less_deep_one(phase):
    shallow, deep = ([read(builder) for builder in builders(count, phase)] for count in (3, 4))
    assert len(shallow) == len(deep) == (1 if phase == "inference" else 2)
    for less, more in zip(shallow, deep, strict=True):
        assert {region.key for region in regions(less)} == {region.key for region in regions(more)}
        assert len(cut_sites(less)) == len(cut_sites(more))
        extra = {region.key: len(region.occurrences) for region in regions(more)}
        for region in regions(less):
            assert extra[region.key] - len(region.occurrences) in (0, 1, 2), "once a layer, twice, or not at all"
        assert sum(extra.values()) > sum(len(region.occurrences) for region in regions(less))


def test_what_the_compiler_groups_itself_lies_within_a_region():
    anatomy = read(builders(3)[0])
    assert any(len(group) > 1 for group in anatomy.grouped)
    islands = [set(occurrence) for region in regions(anatomy) for occurrence in region.occurrences]
    assert all(any(group <= island for island in islands) for group in anatomy.grouped if len(group) > 1)


def test_pairs_that_are_found_realised_together_are_realised_alone():
    (builder,) = builders(3)
    anatomy = read(builder)
    found = regions(anatomy)
    links = realised_links(anatomy, found, lambda groups: read(builder, Plan(groups=groups)).groups)
    assert links
    leaves = {leaf for region in found for leaf in region.occurrences[0]}
    for pair in sorted(links, key=sorted)[:3]:
        wanted = regrouped(anatomy, [pair, *(frozenset((leaf,)) for leaf in sorted(leaves - pair))])
        assert read(builder, Plan(groups=wanted)).groups == wanted
