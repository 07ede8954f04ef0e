"""Static pictures of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from . import estimates
from .estimates import DEFAULT_DISCARD
from .published import PublishedAverages

MAX_CURVES = 12
_PANELS = [("loss", "loss"), ("squared_norm", "squared norm |w|²"), ("error", "training error")]
_RUN, _OTHERS = "#0072b2", ("#009e73", "#b6578f")
# Cold to hot, as in the report.
_RAMP = np.array([[18, 63, 158], [122, 63, 181], [201, 48, 107], [224, 106, 28], [195, 148, 0]]) / 255


def summary_figure(
    trace: xr.Dataset,
    published: Sequence[PublishedAverages] | None = None,
    *,
    discard: float = DEFAULT_DISCARD,
) -> Figure:
    """Loss, |w|² and error against T on logarithmic axes (the form of the paper's Fig. 3d), above their traces.

    Args:
        trace: as `sample` returns it.
        published: from `published.published_averages`; drawn beside the run's own averages, with their thermal
            standard deviations.
        discard: share of the records that averages leave out; it is shaded in the traces.

    Example:
        >>> summary_figure(result.trace).savefig("summary.png")  # doctest: +SKIP
    """
    kept = estimates.kept(trace, discard)
    panels = [(name, label) for name, label in _PANELS if name in trace]
    if not panels or trace.sizes["draw"] == 0:
        raise ValueError(f"trace holds none of {[name for name, _ in _PANELS]} or no records; nothing can be drawn")
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)  # the default clips labels at the edge
    figure = Figure(figsize=(4.3 * len(panels), 6.8), layout=layout)
    FigureCanvasAgg(figure)  # off screen, without touching pyplot's global state
    axes = figure.subplots(2, len(panels), squeeze=False)
    for column, (name, label) in enumerate(panels):
        _draw_averages(axes[0, column], name, label, trace, kept, published or [])
        _draw_traces(axes[1, column], name, label, trace, kept)
    axes[0, 0].legend(frameon=False, fontsize=9)
    curves = axes[1, 0].get_legend_handles_labels()
    figure.legend(*curves, loc="outside lower center", frameon=False, ncols=2 * len(panels))
    return figure


def _draw_averages(
    axes: Axes,
    name: str,
    label: str,
    trace: xr.Dataset,
    kept: xr.Dataset,
    published: Sequence[PublishedAverages],
) -> None:
    temperatures = np.asarray(trace["temperature"].values, float)
    averages = estimates.average_by_temperature(kept[name], kept)
    means = np.array([average.mean for average in averages])
    errors = np.nan_to_num(np.array([average.standard_error for average in averages]))
    markers = ("s", "D")
    for index, other in enumerate(published):
        if name in other.values:
            axes.errorbar(
                other.temperatures,
                other.values[name],
                other.deviations.get(name),
                fmt=markers[index % 2],
                color=_OTHERS[index % 2],
                mfc="none",
                ms=7,
                capsize=2,
                label=other.label,
            )
    axes.errorbar(temperatures, means, errors, fmt="o-", lw=1, ms=5, capsize=2, color=_RUN, label="this run")
    if (temperatures > 0).all():
        axes.set_xscale("log")
    finite = means[np.isfinite(means)]
    if finite.size and (finite > 0).all():
        axes.set_yscale("log")
        # Less than a decade is shown, as a rule: powers of ten alone would leave the axis bare.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7), numticks=8))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="temperature T", ylabel=f"mean {label}")
    axes.grid(alpha=0.25)


def _draw_traces(axes: Axes, name: str, label: str, trace: xr.Dataset, kept: xr.Dataset) -> None:
    steps = np.asarray(trace["step"].values if "step" in trace.coords else np.arange(1, trace.sizes["draw"] + 1))
    values = trace[name].transpose("temperature", "chain", "draw").values
    count = trace.sizes["temperature"]
    drawn = np.unique(np.linspace(0, count - 1, min(count, MAX_CURVES)).round().astype(int))
    for position, index in enumerate(drawn):
        shade = 4 * position / max(len(drawn) - 1, 1)
        color = tuple(np.interp(shade, range(5), _RAMP[:, channel]) for channel in range(3))
        for chain in range(min(trace.sizes["chain"], MAX_CURVES)):
            label_once = f"T = {float(trace['temperature'].values[index]):g}" if chain == 0 else None
            axes.plot(steps, values[index, chain], color=color, lw=0.9, alpha=0.85, label=label_once)
    if kept.sizes["draw"] < trace.sizes["draw"]:
        axes.axvspan(steps[0], steps[trace.sizes["draw"] - kept.sizes["draw"]], color="0.5", alpha=0.12, lw=0)
    axes.set(xlabel="steps", ylabel=label)
    axes.margins(x=0)
    axes.grid(alpha=0.25)
