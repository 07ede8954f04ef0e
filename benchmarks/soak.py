"""A long run of many records: memory, files and descriptors while it goes on, and the cost of reading it afterwards.

    python -m benchmarks.soak --seconds 1800 --records 100000 --out benchmarks/results/soak-cpu.json

The run records at every step, so that years of recording pass in minutes. It is interrupted and resumed
after every third of the time. Then the first records are read; if there are too few, they are written again before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pseudolangevin.runs import config
from pseudolangevin.runs.store import RecordFile
from tests.runs.small_runs import small_settings

OVERRIDES = ("record_every=1", "recording.keep_weights_every=10", "recording.checkpoint_seconds=5.0")
READ = """
import json, resource, sys, time
began = time.perf_counter()
import pseudolangevin as pl
from pseudolangevin.runs.report import write_report
seconds, path = {"import": time.perf_counter() - began}, sys.argv[1]
def timed(name, function):
    began = time.perf_counter()
    value = function()
    seconds[name] = time.perf_counter() - began
    return value
result = timed("load", lambda: pl.load(path, num_records=int(sys.argv[2])))
certificate = timed("check", lambda: pl.certificate(result))
page = timed("report", lambda: write_report(path, certificate=certificate, result=result))
found = {"seconds": seconds, "records": result.trace.sizes["draw"], "report_bytes": page.stat().st_size}
print(json.dumps(found | {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def watch(path: Path, process: subprocess.Popen[bytes], seen: list[dict], deadline: float) -> None:
    """Note memory, files and descriptors of a process until it ends; ask it to end at the deadline."""
    asked = False
    while process.poll() is None:
        if time.monotonic() > deadline and not asked:
            process.terminate()
            asked = True
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            memory = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
        except (OSError, StopIteration):
            continue
        files = sum(1 for file in path.rglob("*") if file.is_file()) if path.exists() else 0
        size = (path / "trace.records").stat().st_size if (path / "trace.records").exists() else 0
        seen.append({"trace": size, "bytes": memory, "descriptors": descriptors, "files": files})
        time.sleep(1.0)


def repeat_records(path: Path, count: int) -> None:
    """Write the records of a run again until there are `count`, with steps that go on."""
    with RecordFile(path / "trace.records", writable=True) as file:
        values, found = file.read()
        for number in range(found, count):
            record = {name: array[number % found] for name, array in values.items()}
            file.append(record | {"step": number + 1})
        file.sync()


def main() -> None:
    """Run the soak, print its figures, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="time limit of the sampling")
    parser.add_argument("--records", type=int, default=100_000, help="number of records to read")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    began, seen = time.monotonic(), list[dict]()
    with tempfile.TemporaryDirectory() as folder:
        file, path = Path(folder, "run.toml"), Path(folder, "run")
        file.write_text(config.to_toml(small_settings(f"num_steps={9 * options.records}", *OVERRIDES)))
        command = [sys.executable, "-m", "pseudolangevin"]
        for session in range(3):
            run = ["resume", path] if session else ["sample", file, "--out", path]
            process = subprocess.Popen([*command, *map(str, run)], stdout=subprocess.DEVNULL)
            watch(path, process, seen, began + (session + 1) * options.seconds / 3)
            assert process.returncode in (0, 130, -15), process.returncode  # -15: while Python starts
            if process.returncode == 0:
                break
        sampled = time.monotonic() - began
        length = len((path / "log.txt").read_text().splitlines())
        with RecordFile(path / "trace.records") as file:
            sampled_records = file.recorded
        repeat_records(path, options.records)
        read = subprocess.run(
            [sys.executable, "-c", READ, str(path), str(options.records)], capture_output=True, text=True, check=False
        )
        assert read.returncode == 0, read.stderr
        found = json.loads(read.stdout.splitlines()[-1])
        found["bytes_on_disk"] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    seen = [one for one in seen if one["trace"] > 0.05 * seen[-1]["trace"]]  # without imports and compilation
    half = len(seen) // 2
    found |= {
        "sampling_seconds": round(sampled, 1),
        "sampled_records": sampled_records,
        "lines_of_the_log": length,
        "sampling_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        "load_average": os.getloadavg(),
        "memory_first_half": max(one["bytes"] for one in seen[:half]),
        "memory_second_half": max(one["bytes"] for one in seen[half:]),
        "most_descriptors": max(one["descriptors"] for one in seen),
        "most_files": max(one["files"] for one in seen),
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
