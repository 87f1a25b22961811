"""`model.pt2` as a SPEC: what torch.export.save wrote is tuned as the user's own compile of it is."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tuner.cli.main import main
from tuner.compilers.inductor.capture import capture
from tuner.errors import SpecError
from tuner.workload.spec import load_spec
from tuner.workload.step import phase_of


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.linear(x))
        return x if scale is None else x * scale


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Exports and saves the model for example inputs of 4 rows; gives the file."""

    def save(**options: Any) -> Path:
        program = torch.export.export(Model().eval(), (torch.randn(4, 8),), **options)
        torch.export.save(program, tmp_path / "model.pt2")
        return tmp_path / "model.pt2"

    return save


def keys(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[str, str]:
    (program,) = capture(function, inputs)
    (graph,) = program.graphs
    return program.key, graph.key


def test_a_program_has_the_keys_of_the_users_own_compile_of_it(saved):
    path = saved()
    function, inputs = load_spec(str(path))
    program = torch.export.load(path)
    assert [value.shape for value in inputs] == [(4, 8)]
    assert keys(function, inputs) == keys(program.module(), program.example_inputs[0])


def test_dynamic_sizes_and_keyword_inputs_are_those_of_the_example(saved):
    rows = torch.export.Dim("rows", min=2, max=64)
    path = saved(kwargs={"scale": torch.full((8,), 2.0)}, dynamic_shapes={"x": {0: rows}, "scale": None})
    function, inputs = load_spec(str(path))
    assert [value.shape for value in inputs] == [(4, 8), (8,)]
    program = torch.export.load(path)
    assert torch.equal(function(*inputs), program.module()(inputs[0], scale=inputs[1]))

    def as_called(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return Model.forward(model, x, scale=scale)

    model = Model()
    assert keys(function, inputs)[1] == keys(as_called, inputs)[1]


def test_a_program_is_tuned_for_inference(saved):
    assert phase_of(*load_spec(str(saved()))) == "inference"


def test_a_program_without_example_inputs_is_refused_in_one_line(saved, tmp_path):
    program = torch.export.load(saved())
    program._example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    with pytest.raises(SpecError, match=r"bare\.pt2 holds no example inputs") as caught:
        load_spec(str(tmp_path / "bare.pt2"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["package/data/aotinductor/model/made.wrapper.so"], "is a compiled package and holds no graph"),
        (["package/readme"], "is no archive of torch.export.save's"),
        (None, "is no archive of torch.export.save's"),
        (["package/models/model.json"], "cannot be loaded by torch"),
    ],
)
def test_what_is_no_exported_program_is_refused_with_exit_code_3(tmp_path, files, told):
    path = tmp_path / "model.pt2"
    if files is None:
        path.write_text("no archive")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name in files:
                archive.writestr(name, "")
    result = CliRunner().invoke(main, ["lookup", str(path), "--store", str(tmp_path / "store.db")])
    assert result.exit_code == 3
    assert told in result.stderr


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match=r"nowhere\.pt2 is not a file"):
        load_spec("nowhere.pt2")
