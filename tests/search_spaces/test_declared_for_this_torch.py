"""What the search space declares is what the installed Inductor has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings

from tuner.search_spaces.inductor_knobs import KNOBS
from tuner.search_spaces.native import NATIVE_OPS
from tuner.search_spaces.parameters import BACKENDS


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
    assert knob.variable not in os.environ, "the default would be somebody's own"
    assert (entry.default, type(entry.default)) == (knob.default, type(knob.default))
    assert knob.default not in knob.trials, "the default is tried anyway"
    assert knob.trials
    assert all(knob.contains(value) for value in knob.trials)
    assert len(set(knob.trials)) == len(knob.trials)
    assert knob.default is None or knob.contains(knob.default)
    assert knob.backends
    assert knob.backends <= BACKENDS


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_a_knob_is_in_the_key_of_the_compile_caches(name):
    before = inductor_config.save_config_portable()
    for value in KNOBS[name].trials:
        with inductor_config.patch({name: value}):
            inside = inductor_config.save_config_portable()
        assert {key for key in before if inside[key] != before[key]} == {name}
        assert inside[name] == value


@pytest.mark.parametrize("name", sorted(name for name, knob in KNOBS.items() if knob.variable))
def test_the_variable_of_a_knob_is_one_that_inductor_reads(name):
    assert f'"{KNOBS[name].variable}"' in Path(inductor_config.__file__).read_text()
