"""A worker that is killed while its C++ compiler writes leaves nothing in the compile cache that a later compile trips over."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from pathlib import Path

import pytest
from left_behind import measuring, until
from sessions import softmax_graph

from tuner.errors import WorkerDied
from tuner.measurement import Policy
from tuner.workers.guard import kill
from tuner.workers.process import Worker

LIMIT_S = 300.0
# g++, but while the file `armed` is there: of a kernel of generated code it leaves the beginning where it was told to write, says
# so, and waits to be killed.
COMPILER = """#!{python} -S
import os, subprocess, sys, time
folder, told = {folder!r}, sys.argv[1:]
kernel = any(name.endswith(".main.cpp") for name in told) and "-E" not in told
if not (kernel and os.path.exists(folder + "/armed")):
    os.execv({compiler!r}, [{compiler!r}, *told])
output = told[told.index("-o") + 1]
with open(output, "wb") as library:
    library.write(b"\\x7fELF")
with open(folder + "/writing", "w") as written:
    written.write(output)
os.rename(folder + "/writing", folder + "/written")
time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_killed_worker_had_begun_to_write_is_not_loaded_by_the_next(tmp_path, monkeypatch):
    # Named g++ as ever, for then the precompiled header is that of all tests.
    compiler, written = tmp_path / "g++", tmp_path / "written"
    real = shutil.which("g++")
    assert real is not None
    compiler.write_text(COMPILER.format(python=sys.executable, folder=str(tmp_path), compiler=real))
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    graph = softmax_graph().to_json()
    request = {"graph": graph, "ambient": {"threads": 1}, "seed": 0, "policy": Policy.for_cpu(1).fields()}
    (tmp_path / "armed").touch()
    with Worker(threads=1) as killed:
        killer = threading.Thread(target=lambda: until(written.exists, LIMIT_S) and kill(measuring(killed)), daemon=True)
        killer.start()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            killed.ask(LIMIT_S, do="open", **request)
        killer.join()
    begun = Path(written.read_text())
    assert begun.exists(), "it was killed before it could clean up"
    (tmp_path / "armed").unlink()
    with Worker(threads=1) as next_one:
        assert next_one.ask(LIMIT_S, do="open", **request)["status"] == "ok"
    assert not begun.exists(), "who makes the file removes what was left of it"


def test_what_writes_whole_files_can_be_sent_to_a_process_of_inductors_pool():
    from tuner.compilers.inductor.whole_files import compile_whole

    assert pickle.loads(pickle.dumps(compile_whole)) is compile_whole
