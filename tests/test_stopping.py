"""Ctrl-C is answered at once, also while the main thread is in compiled code, and a second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from pseudolangevin.stopping import ENDED, EXIT_CODE, STOPPING

BUSY = """
import sys, time
import numpy as np
from pseudolangevin.stopping import stop_on_signals

with stop_on_signals() as asked:
    print("begun", flush=True)
    if sys.argv[1] == "deaf":  # matrix products that Python cannot interrupt
        matrix = np.ones((6000, 6000))
        while True:
            matrix @ matrix
            matrix @ matrix
    while not asked():
        time.sleep(0.01)
print("ended", flush=True)
"""


def begun(how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_one_signal_is_answered_and_asks_for_a_stop() -> None:
    process = begun("listening")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", STOPPING + "\n")


def test_two_signals_end_a_process_that_is_in_compiled_code() -> None:
    process = begun("deaf")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == STOPPING + "\n"  # while the product goes on
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == EXIT_CODE
    assert ENDED in err
