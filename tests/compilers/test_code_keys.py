"""Equal code is known as equal, and is another where its compiler is told otherwise, or where a copy of its own is asked for."""

from __future__ import annotations

import pytest
import torch
from serving import Bench, gelu_of_norm, realise
from torch._inductor import config
from torch._inductor.codecache import CppPythonBindingsCodeCache

from tuner.compilers.inductor.capture import capture
from tuner.errors import DuplicateCode
from tuner.plan import Plan
from tuner.workload.fx import make_inputs
from tuner.workload.graph import Graph

pytestmark = pytest.mark.slow


@pytest.fixture
def graph(bench: Bench) -> Graph:
    return capture(*gelu_of_norm())[0].graphs[0]


def binaries() -> set[str]:
    return set(CppPythonBindingsCodeCache.cache)


def test_the_same_text_with_other_flags_is_other_code_and_another_binary(graph):
    _, _, plain = realise(graph, Plan())
    before = binaries()
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        compiled, _, contracted = realise(graph, Plan())
        assert contracted != plain
        assert binaries() - before, "Inductor would hand out the module that it has for this text"
        with pytest.raises(DuplicateCode):
            realise(graph, Plan(), seen_codes=[contracted])
    assert realise(graph, Plan())[2] == plain
    compiled(make_inputs(graph, 0))


def test_a_copy_of_its_own_computes_the_same_in_another_binary(graph):
    original, groups, plain = realise(graph, Plan())
    before = binaries()
    copy, same_groups, own = realise(graph, Plan(), own_copy="second", seen_codes=[plain])
    assert own != plain
    assert same_groups == groups
    assert binaries() - before
    with torch.no_grad():
        outcomes = [compiled(make_inputs(graph, 0)) for compiled in (original, copy)]
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))
    again = binaries()
    assert realise(graph, Plan(), own_copy="second")[2] == own
    assert binaries() == again
