"""What a person sees: a line for every result as it comes, and tables at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from .rows import Row


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "–"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def memory(value: int | None) -> str:
    """Bytes in GiB or MiB."""
    if value is None:
        return "–"
    return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"


def line(kind: str, value: Row) -> str:
    """One result."""
    if kind == "machine":
        rates = value["matrix_product_flops_per_second"].items()
        return f"{value['device']}: " + ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in rates)
    if kind == "recording":
        if "skipped" in value:
            return f"recording: skipped, {value['skipped']}"
        observing = f"measuring observables {value['observe_share']:.1%}"
        return f"recording at the default settings adds {value['share']:.1%} to the run ({observing})"
    name = f"N = {value['num_weights'] or '–':>9}  {value['implementation']} {value['sampler']}"
    name += f" × {value['num_chains']}" if value["num_chains"] else ""
    if kind == "skipped":
        return f"{name}: skipped, {value['reason']}"
    text = (
        f"{name}: {seconds(value['seconds_per_step'])} per step, {seconds(value['seconds_per_gradient'])} per gradient"
    )
    return text + (f", 𝒱 {value['refresh_share']:.1%}" if "refresh_share" in value else "")


def tables(content: dict[str, Any]) -> Iterable[Table]:
    """The whole benchmark."""
    if content["rows"]:
        yield _steps(content["rows"])
    if content["ratios"]:
        yield _ratios(content["ratios"])
    if content.get("scaling", {}).get("rows"):
        yield _scaling(content["scaling"])


def _table(title: str, *headings: str) -> Table:
    found = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        found.add_column(heading, justify="left" if heading in ("sampler", "peer") else "right")
    return found


def _steps(rows: list[Row]) -> Table:
    headings = ("N", "sampler", "chains", "step", "with 𝒱", "chain-step", "TFLOP/s", "of TF32", "compile", "memory")
    found = _table("time of a step, median over blocks", *headings)
    for r in sorted(rows, key=lambda r: r["num_weights"]):
        share = r["share_of_matrix_product_rate"].get("tensorfloat32")
        found.add_row(
            f"{r['num_weights']:,}".replace(",", " "),
            f"{r['sampler']}" if r["implementation"] == "pseudolangevin" else f"{r['implementation']} {r['sampler']}",
            str(r["num_chains"]),
            seconds(r["seconds_per_step"]),
            seconds(r.get("seconds_per_step_with_refresh")),
            seconds((r.get("seconds_per_step_with_refresh") or r["seconds_per_step"]) / r["num_chains"]),
            f"{r['flops_per_second'] / 1e12:.3g}",
            "–" if share is None else f"{share:.0%}",
            seconds(r.get("compile_seconds")),
            memory(r.get("peak_bytes") or r.get("program_bytes")),
        )
    return found


def _ratios(rows: list[Row]) -> Table:
    found = _table("pseudo-Langevin against others, per gradient", "N", "peer", "chains", "times faster", "𝒱 included")
    for r in sorted(rows, key=lambda r: (r["num_weights"], r["num_chains"])):
        size = f"{r['num_weights']:,}".replace(",", " ")
        included = "yes" if r["refresh_included"] else "no"
        found.add_row(size, r["peer"], str(r["num_chains"]), f"{r['times_faster']:.3g}", included)
    return found


def _scaling(summary: Row) -> Table:
    title = f"one chain at growing sizes: time ~ (N·S)^{summary.get('exponent', float('nan')):.2f}"
    found = _table(title, "N", "S", "step", "memory")
    for r in summary["rows"]:
        found.add_row(
            str(r["num_weights"]), str(r["batch_size"]), seconds(r["seconds_per_step"]), memory(r["program_bytes"])
        )
    return found
