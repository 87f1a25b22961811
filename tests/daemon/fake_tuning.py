"""Stands in for the tuning process: it does what the file `<store>.script` says, and dies with its daemon as the real one does.

done | refused | failed | crash | busy | store
                                         end so, with a reason
hang                                     start a child, write its and the own process id to `<store>.pids`, and never end
die                                      end by SIGKILL
exit                                     end with code 3 after a line on standard error
nonsense                                 say what no tuning process says
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tuner.workers.guard import fork_guarded


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--store", "--report", "--effort", "--when-busy", "--parent"):
        parser.add_argument(name, required=True)
    told = parser.parse_args()
    fork_guarded(int(told.parent))
    assert json.loads(Path(told.report).read_text())["graphs"]
    print(json.dumps({"phase": "screening", "best": 1.25}), flush=True)
    script = Path(told.store + ".script").read_text()
    with Path(told.store + ".started").open("a") as file:
        file.write(f"{script} {told.effort} {told.when_busy}\n")
    match script:
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            part = Path(told.store + ".part")
            part.write_text(f"{os.getpid()} {child.pid}")
            part.rename(told.store + ".pids")
            time.sleep(600)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            print("Traceback\nOut of luck", file=sys.stderr)
            sys.exit(3)
        case "nonsense":
            print("hello", flush=True)
            time.sleep(600)
        case ended:
            print(json.dumps({"ended": ended, "reason": f"it was {ended}"}), flush=True)


if __name__ == "__main__":
    main()
