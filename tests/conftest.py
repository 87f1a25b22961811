"""What holds for every test: no test reads or writes a store or a socket of the user who runs it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_state() -> Iterator[None]:
    """Defaults of this test run: no TUNER_* variable, and a state and a runtime folder of its own."""
    # not pytest's tmp_path: its names are long, and the path of a Unix socket holds about 100 bytes
    folder = tempfile.mkdtemp(prefix="tuner-")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TUNER_")]:
            patch.delenv(name)
        for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
            patch.setenv(name, os.path.join(folder, name.lower()))
            os.mkdir(os.environ[name], mode=0o700)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def not_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the one warning of a process."""
    monkeypatch.setattr("tuner.lookup.client._warned", threading.Event())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needing_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing_gpu:
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))
