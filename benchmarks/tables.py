"""Print the tables of docs/performance.md as Markdown, from files of `bench --json`, peers.py and growth.py.

    python benchmarks/tables.py benchmarks/results/bench-h200.json

A table is printed for each of the parts that the file has.
"""

import argparse
import json
from pathlib import Path
from typing import Any


def seconds(value: float | None) -> str:
    """Return a time in a suitable unit."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    return next((f"{value / unit:.3g} {name}" for unit, name in units if value and value >= unit), "-")


def memory(value: float | None) -> str:
    """Return bytes in GiB or MiB."""
    return "-" if value is None else f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [headings, ["---"] * len(headings), *rows])


def steps(rows: list[dict[str, Any]]) -> str:
    """Return the table of this package's samplers."""
    headings = ["N", "sampler", "chains", "step", "with variance", "per chain", "compile", "memory of the program"]
    table = []
    for row in sorted(rows, key=lambda row: (row["num_weights"], row["sampler"] != "pseudo_langevin")):
        if row.get("implementation", "pseudolangevin") == "pseudolangevin":
            total = row.get("seconds_per_step_with_refresh")
            times = [row["seconds_per_step"], total, (total or row["seconds_per_step"]) / row["num_chains"]]
            cells = [f"{row['num_weights']:,}".replace(",", " "), f"`{row['sampler']}`", str(row["num_chains"])]
            table.append([*cells, *map(seconds, [*times, row["compile_seconds"]]), memory(row["program_bytes"])])
    return markdown(headings, table)


def against_peers(rows: list[dict[str, Any]]) -> str:
    """Return the table of the time per gradient of other libraries."""
    table = []
    for row in sorted(rows, key=lambda row: (row["num_weights"], row["num_chains"])):
        times = (row["peer_seconds_per_gradient"], row["pseudo_langevin_seconds_per_gradient"])
        faster = f"{row['times_faster']:.3g}" + ("" if row["refresh_included"] else " without variance")
        size = f"{row['num_weights']:,}".replace(",", " ")
        table.append([size, row["peer"], str(row["num_chains"]), *map(seconds, times), faster])
    return markdown(["N", "library", "chains", "per gradient", "pL, per gradient", "times faster"], table)


def growth(found: dict[str, Any]) -> str:
    """Return the table of one chain at growing sizes."""
    sizes = [[f"{row[name]:,}".replace(",", " ") for name in ("num_weights", "batch_size")] for row in found["rows"]]
    others = [[seconds(row["seconds_per_step"]), memory(row["program_bytes"])] for row in found["rows"]]
    table = markdown(["N", "S", "step", "memory"], [a + b for a, b in zip(sizes, others, strict=True)])
    return f"{table}\n\nTime grows as (N·S)^{found['exponent']:.2f}." if "exponent" in found else table


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    content = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    for name, table in (("rows", steps), ("ratios", against_peers), ("scaling", growth)):
        if content.get(name):
            print(table(content[name]), end="\n\n")


if __name__ == "__main__":
    main()
