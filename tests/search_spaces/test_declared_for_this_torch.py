"""What the search space declares is what the installed Inductor has."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings

from tuner.search_spaces.inductor_knobs import KNOBS
from tuner.search_spaces.native import NATIVE_OPS


@pytest.mark.parametrize("name", sorted(NATIVE_OPS))
def test_a_native_op_is_one_that_inductor_would_decompose(name):
    packet, overload = name.removeprefix("aten.").split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    assert str(op) == name
    assert op in select_decomp_table(), "else keeping it changes nothing"
    assert op not in lowerings or op in fallbacks, "else it is not kept native but lowered"
    assert not op._schema.is_mutable
    assert not any(value.alias_info for value in op._schema.returns), "it allocates its outputs"
    assert torch.Tag.nondeterministic_seeded not in op.tags


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_a_knob_is_a_setting_of_inductor_with_the_default_that_is_declared(name):
    knob = KNOBS[name]
    assert knob.name == name
    entry = inductor_config._config[name]
    assert entry.default == knob.default
    assert knob.default not in knob.trials, "the default is tried anyway"
    assert all(knob.contains(value) for value in knob.trials)
    assert len(set(knob.trials)) == len(knob.trials)
    assert knob.default is None or knob.contains(knob.default)
