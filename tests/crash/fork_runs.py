"""Runs in forked children, stopped by signals at random moments.

    python -m tests.crash.fork_runs CONFIG FOLDER SIGNAL SIGNAL...

makes FOLDER/whole in one child, then FOLDER/stopped in one more child than there are signals. The children are forked
from a process that has imported everything and started nothing, so each of them costs a fraction of a fresh
interpreter. Prints one JSON line per child.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path


def child(file: str, out: Path) -> int:
    import numpy as np
    import xarray as xr

    from pseudolangevin.runs import config, session

    gc.disable()  # nearly all of a child is tracing, which leaves no garbage worth looking for
    if not (out / "config.toml").exists():
        return 130 if session.start(config.read(Path(file)), out, progress=False).interrupted else 0
    if (out / "committed.json").exists():
        # Whatever the last signal interrupted, everything opens, and what is committed is complete.
        committed = json.loads((out / "committed.json").read_text())
        for consolidated in (True, False):
            with xr.open_zarr(out / "trace.zarr", chunks=None, consolidated=consolidated) as trace:
                assert np.isfinite(trace["loss"].values[:, :, : committed["records"]]).all()
            with xr.open_zarr(out / "weights.zarr", chunks=None, consolidated=consolidated) as kept:
                assert np.isfinite(kept["layer1.kernel"].values[:, :, : committed["kept"]]).all()
    return 130 if session.resume(out, progress=False).interrupted else 0


def committed_records(out: Path) -> int:
    try:
        return json.loads((out / "committed.json").read_text())["records"]
    except FileNotFoundError:
        return 0


def wait_for_moment(rng: random.Random, number: int, pid: int, out: Path) -> None:
    """Wait for some records and a little more; or, for one kill in four, for a moment of the start itself."""
    early = number == signal.SIGKILL and rng.random() < 0.25
    deadline = time.monotonic() + (rng.uniform(0, 1.2) if early else 600)
    target = committed_records(out) + rng.randint(1, 3)
    while time.monotonic() < deadline and committed_records(out) < target:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    if not early:
        time.sleep(rng.uniform(0, 0.08))


def main() -> None:
    import pseudolangevin.runs.session  # noqa: F401

    warnings.simplefilter("ignore")  # JAX warns of forking; nothing of it runs in this process
    file, folder, signals = sys.argv[1], Path(sys.argv[2]), [int(number) for number in sys.argv[3:]]
    rng = random.Random(0)
    for name, number in [("whole", 0), *(("stopped", number) for number in [*signals, 0])]:
        out = folder / name
        pid = os.fork()
        if pid == 0:
            os._exit(child(file, out))
        if number:
            wait_for_moment(rng, number, pid, out)
            os.kill(pid, number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sent = signal.Signals(number).name if number else "none"
        print(json.dumps({"run": name, "signal": sent, "code": code, "records": committed_records(out)}), flush=True)


if __name__ == "__main__":
    main()
