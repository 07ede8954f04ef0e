"""Stopping on request: Ctrl-C and SIGTERM end a run at its next record rather than anywhere.

Python's own handlers wait until compiled code returns, which may be many seconds. So a thread, woken by the signal
itself, answers at once, and ends the process on a second one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130
STOPPING = "stopping at the next record; Ctrl-C again ends the run at once"
ENDED = "ended at once; what was recorded is safe, and the run continues from its last checkpoint with `resume`"


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a stop was asked for; a second Ctrl-C ends the process at once.

    At once is like a kill: the run continues from its last checkpoint. An exception would come out anywhere, also in a
    callback of JAX, where it ends the process by a segmentation fault. In an interactive session, whose process is not
    ours to end, there is no other way. Outside the main thread, where signals cannot be caught, a stop is never asked
    for.
    """
    asked = False
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and interactive:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        with nullcontext() if interactive else _answer_at_once():
            yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _answer_at_once() -> Iterator[None]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(reader,), name="pseudolangevin-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # which ends the thread
        thread.join()
        os.close(reader)


def _listen(reader: int) -> None:
    """Read the numbers of signals, a byte each, as they arrive."""
    seen = 0
    while number := os.read(reader, 1):
        if number[0] not in SIGNALS:
            continue
        seen += 1
        if seen == 1:
            print(STOPPING, file=sys.stderr, flush=True)
        else:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{ENDED}\n".encode())
            os._exit(EXIT_CODE)
