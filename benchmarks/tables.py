"""The tables of docs/performance.md, from a file that `pseudolangevin bench --out FILE` wrote.

python benchmarks/tables.py benchmarks/results/bench-h200.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pseudolangevin.bench.table import memory, seconds


def main() -> None:
    """Print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    content = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    for part in (steps, against_peers, scaling, recording):
        print(part(content), end="\n\n")


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [headings, ["---"] * len(headings), *rows])


def size(num_weights: int) -> str:
    """A number with thin groups: 11 160."""
    return f"{num_weights:,}".replace(",", " ")


def steps(content: dict[str, Any]) -> str:
    """This package's samplers."""
    headings = ["N", "sampler", "chains", "step", "with 𝒱", "per chain", "TFLOP/s", "compile", "memory of the programs"]
    rows = []
    for r in sorted(content["rows"], key=lambda r: (r["num_weights"], r["sampler"] != "pseudo_langevin")):
        if r["implementation"] == "pseudolangevin":
            whole = r.get("seconds_per_step_with_refresh")
            row = [size(r["num_weights"]), f"`{r['sampler']}`", str(r["num_chains"])]
            row += [seconds(r["seconds_per_step"]), seconds(whole)]
            row += [seconds((whole or r["seconds_per_step"]) / r["num_chains"]), f"{r['flops_per_second'] / 1e12:.3g}"]
            rows.append([*row, seconds(r["compile_seconds"]), memory(r["program_bytes"])])
    return markdown(headings, rows)


def against_peers(content: dict[str, Any]) -> str:
    """How many times faster pseudo-Langevin is per gradient."""
    rows = []
    for r in sorted(content["ratios"], key=lambda r: (r["num_weights"], r["num_chains"])):
        times = (r["peer_seconds_per_gradient"], r["pseudo_langevin_seconds_per_gradient"])
        faster = f"{r['times_faster']:.3g}×" + ("" if r["refresh_included"] else " without 𝒱")
        rows.append([size(r["num_weights"]), r["peer"], str(r["num_chains"]), *map(seconds, times), faster])
    return markdown(["N", "peer", "chains", "peer, per gradient", "pL, per gradient", "faster"], rows)


def scaling(content: dict[str, Any]) -> str:
    """One chain at growing sizes."""
    found = content.get("scaling")
    if not found or not found["rows"]:
        return "Growth with N was not measured."
    rows = [
        [size(r["num_weights"]), size(r["batch_size"]), seconds(r["seconds_per_step"]), memory(r["program_bytes"])]
        for r in found["rows"]
    ]
    words = f"Time ~ (N·S)^{found.get('exponent', float('nan')):.2f} over all, at most ^"
    words += f"{found.get('steepest_exponent', float('nan')):.2f} from one size to the next. "
    words += f"The largest: N = {size(found['largest_num_weights'])}, limited by: {found['largest_is_limited_by']}."
    return markdown(["N", "S", "step", "memory"], rows) + "\n\n" + words


def recording(content: dict[str, Any]) -> str:
    """The cost of recording."""
    found = content.get("recording")
    if not found or "share" not in found:
        return "The cost of recording was not measured."
    parts = {"measuring the observables": "observe", "writing": "write", "checkpoints": "checkpoint"}
    shares = ", ".join(f"{what} {found[name + '_share']:.1%}" for what, name in parts.items())
    return f"Recording at the default settings adds {found['share']:.1%} to the run: {shares}."


if __name__ == "__main__":
    main()
