"""Pictures of a run: `report.html`, one self-contained page without scripts, and a summary picture.

matplotlib draws every chart with the colours of the light theme; in the page, CSS variables replace them, so that the
inline SVG follows the reader's theme. Charts and tables iterate over the variables of the trace and their attributes.
Everything read from a run folder is untrusted: Jinja2 and matplotlib escape all text, and no script may run.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jinja2
import matplotlib as mpl
import numpy as np
import xarray as xr
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..chains import Result
from ..diagnostics.averages import DEFAULT_DISCARD, average_by_temperature, kept, plus_minus
from ..diagnostics.certificate import Certificate
from ..diagnostics.certificate import certificate as make_certificate
from ..samplers.base import HEALTHY, Status
from . import RunFolderError
from .folder import RunFolder, read_or_empty, write_text
from .session import load
from .store import in_order

# Colours of the light theme; report.css defines the same names for both themes.
COLORS = {"ink": "#1c1f24", "soft": "#5c636e", "grid": "#ececea", "card": "#ffffff", "accent": "#0b5cad"}
# Colours of curves from cold to hot. The lightness changes along each ramp, so that the order survives grey print.
RAMPS = {
    "light": ("#123f9e", "#7a3fb5", "#c9306b", "#e06a1c", "#c39400"),
    "dark": ("#7a92ff", "#b884f0", "#f2789f", "#ff9d5c", "#ffd75e"),
}
MAX_SHOWN = 12  # temperatures, chains or list entries shown of any number
FEW_SAMPLES = 20  # effective samples below which an average is drawn as a hollow point


class Charts:
    """Charts of one trace: each method draws one variable into given axes."""

    def __init__(self, trace: xr.Dataset, discard: float, internal: Collection[str] = ()) -> None:
        """Express temperatures in units of T, and average over all but the share `discard` of the records.

        Variables whose names are `internal` describe the sampler; the others are observables of the weights.
        """
        trace = trace.transpose("temperature", "chain", "draw", ...)
        self.groups: dict[str, list[str]] = {"observables": [], "temperatures": [], "sampler": []}
        for name in in_order(trace):
            attrs, group = trace[name].attrs, "sampler" if name in internal else "observables"
            label, unit = str(attrs.get("label") or name), f" ({attrs['unit']})" if attrs.get("unit") else ""
            if unit == " (loss)":  # the unit of T; a run without temperature has T = 0
                trace[name] = trace[name] / trace["temperature"].where(trace["temperature"] > 0)
                group, unit = "temperatures", " / T"
            trace[name] = trace[name].assign_attrs(attrs | {"label": label + unit})
            numeric = name != "status" and trace[name].ndim <= 4 and trace[name].dtype.kind in "fiu"
            if numeric and np.isfinite(trace[name]).any():
                self.groups[group].append(name)
        self.trace, self.kept = trace, kept(trace, discard)
        self.temperatures = np.asarray(trace["temperature"].values, np.float64)
        self.steps = np.asarray(trace["step"].values, np.float64)
        self.shown = np.unique(np.linspace(0, len(self.temperatures) - 1, MAX_SHOWN).round().astype(int)).tolist()
        self.chains = range(min(trace.sizes["chain"], MAX_SHOWN))
        self.by_chain = len(self.temperatures) == 1
        temperatures = [f"T = {number(self.temperatures[index])}" for index in self.shown]
        self.legend = [f"chain {chain}" for chain in self.chains] if self.by_chain else temperatures
        self.colors = ramp("light", len(self.legend))
        names = [n for n in self.groups["observables"] + self.groups["temperatures"] if trace[n].ndim == 3]
        self.averages = {name: average_by_temperature(self.kept[name], self.kept) for name in names}

    def draw_average(self, axes: Axes, name: str) -> None:
        """Draw the averages of a variable against temperature."""
        means, errors, samples = np.array(self.averages[name]).T
        style: dict[str, Any] = {"color": COLORS["accent"], "ms": 6}
        axes.errorbar(self.temperatures, means, np.nan_to_num(errors), fmt="o-", lw=1, capsize=2, **style)
        hollow = ~(samples >= FEW_SAMPLES)
        axes.plot(self.temperatures[hollow], means[hollow], "o", mfc=COLORS["card"], zorder=3, **style)
        if self.temperatures.min() > 0:
            _logarithmic(axes.xaxis, self.temperatures)
        self._finish(axes, name, means, "temperature T")

    def draw_trace(self, axes: Axes, name: str) -> None:
        """Draw a variable against steps, a curve for each chain; the records that averages leave out are shaded."""
        values = np.asarray(self.trace[name].values, np.float64)
        for (position, temperature), chain in product(enumerate(self.shown), self.chains):
            color, marker = self.colors[chain if self.by_chain else position], "o-" if len(self.steps) == 1 else "-"
            axes.plot(self.steps, values[temperature, chain], marker, color=color, lw=1, alpha=0.85)
        first = self.trace.sizes["draw"] - self.kept.sizes["draw"]
        axes.axvspan(self.steps[0], self.steps[first], color=COLORS["soft"], alpha=0.1, lw=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))  # more labels of many digits would overlap
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: number(step)))
        self._finish(axes, name, values[..., first:], "steps")

    def draw_profile(self, axes: Axes, name: str) -> None:
        """Draw the averages of a variable against its further dimension, such as the layer."""
        dimension = str(self.trace[name].dims[3])
        entries = [str(entry)[:14] for entry in self.trace[dimension].values]
        columns = (self.kept[name].isel({dimension: index}) for index in range(len(entries)))
        table = np.array([average_by_temperature(column, self.kept) for column in columns])
        for position, temperature in enumerate(self.shown):  # next to each other, so that no bar covers another
            x = np.arange(len(entries)) + 0.5 * ((position + 0.5) / len(self.shown) - 0.5)
            means, errors = table[:, temperature, 0], np.nan_to_num(table[:, temperature, 1])
            axes.errorbar(x, means, errors, fmt="o", ms=4.5, capsize=2, color=self.colors[position])
        ticks = np.unique(np.linspace(0, len(entries) - 1, 8).round().astype(int))
        axes.set_xticks(ticks, [entries[tick] for tick in ticks], rotation=20 if len("  ".join(entries)) > 40 else 0)
        axes.set_xlim(-0.5, len(entries) - 0.5)
        self._finish(axes, name, table[:, self.shown, 0], dimension)

    def _finish(self, axes: Axes, name: str, values: np.ndarray, xlabel: str) -> None:
        """Label the axes; make the vertical one logarithmic where most values span more than a decade."""
        axes.set(xlabel=xlabel, ylabel=textwrap.fill(self.trace[name].attrs["label"], 28))
        values = values[np.isfinite(values)]
        low, high = np.quantile(values, [0.05, 0.95]) if values.size else (1.0, 1.0)
        if name in self.groups["temperatures"]:
            axes.axhline(1, color=COLORS["ink"], lw=0.9, ls=(0, (5, 4)), alpha=0.65)
            if xlabel == "steps" and low < high:  # the start of a run may be far outside
                low, high = min(values.min(), 1.0), max(values.max(), 1.0)
                axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        elif high > 10 * low and values.min() > 0:
            _logarithmic(axes.yaxis, values)


def _logarithmic(axis: Any, values: np.ndarray) -> None:
    """Make an axis of positive values logarithmic, with plain tick labels, at 1, 2 and 5 if there are few decades."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if np.ptp(np.log10(values)) < 2 else (1,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def summary_figure(trace: xr.Dataset, *, discard: float = DEFAULT_DISCARD) -> Figure:
    """Return a picture of loss, |w|² and error: averages against temperature (as in Fig. 3d), above their traces.

    Averages leave out the share `discard` of the records, which is shaded in the traces.
    """
    charts = Charts(trace, discard)
    names = [name for name in ("loss", "squared_norm", "error") if name in charts.averages]
    if not names:
        raise ValueError(f"trace holds {', '.join(map(str, trace.data_vars))}; record loss, squared_norm or error")
    with _style():
        figure = Figure(figsize=(4.3 * len(names), 6.8))
        for (upper, lower), name in zip(figure.subplots(2, len(names), squeeze=False).T, names, strict=True):
            charts.draw_average(upper, name)
            charts.draw_trace(lower, name)
        curves = [mpl.lines.Line2D([], [], color=color) for color in charts.colors]
        figure.legend(curves, charts.legend, loc="outside lower center", ncols=6)
    return figure


def number(value: float) -> str:
    """Return a number as text for the page: 3×10⁻⁵, 0.25, 11 160."""
    if float(value).is_integer() and 1e4 <= abs(value) < 1e9:
        return f"{int(value):,}".replace(",", "\u202f")
    return pretty(f"{value:.4g}") if math.isfinite(value) else "—"


def pretty(text: str) -> str:
    """Return printed numbers with powers of ten and minus signs: 1e-05 becomes 10⁻⁵."""
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    text = re.sub(r"e([+-]\d+)", lambda found: f"×10{str(int(found[1])).translate(raised)}", text)
    return re.sub(r"^1×", "", text).replace("-", "−")


def ramp(theme: str, count: int) -> list[str]:
    """Return colours of curves from cold to hot; a single one is the cold end."""
    colormap = LinearSegmentedColormap.from_list(theme, RAMPS[theme])
    return [to_hex(color) for color in colormap(np.linspace(0, 1, count))]


def _style(salt: str = "") -> Any:
    return mpl.rc_context({"svg.hashsalt": salt}, fname=str(resources.files(__package__) / "report.mplstyle"))


def _svg(draw: Callable[[Axes, Any], None], what: Any, identity: str, variables: Mapping[str, str]) -> Markup:
    """Return a chart as inline SVG; `variables` maps the colours of the light theme to CSS variables."""
    stream = io.StringIO()
    with _style(identity):  # the salt makes identities within the SVG unique
        figure = Figure(figsize=(5, 3))
        draw(figure.subplots(), what)
        metadata = dict.fromkeys(["Creator", "Date", "Format", "Type"])
        figure.savefig(stream, format="svg", transparent=True, metadata=metadata)
    text = re.sub(r"^.*?<svg[^>]*>|<defs>\s*<style.*?</defs>", "", stream.getvalue(), flags=re.S)
    text = re.sub(r'(?<=<g) id="[^"]*"|font-family: [^;]*;', "", text)
    text = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d)\d+|\n", r"\1", found[0]), text)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), text)
    return Markup(f'<svg viewBox="0 0 360 216" role="img" aria-labelledby="{identity}-title">{text}')


def report_html(result: Result, certificate: Certificate | None = None, facts: Mapping[str, Any] | None = None) -> str:
    """Return a self-contained page about a run with at least one record.

    Optional `facts` are `name`, `config` (nested settings) and `provenance` (as in a run folder).
    """
    facts = {"name": "run", "config": {}, "provenance": {}, **(facts or {})}
    discard = DEFAULT_DISCARD if certificate is None else certificate.burn_in
    state = jax.tree.map(lambda leaf: leaf[0], result.states)
    internal = () if state is None else jax.eval_shape(result.sampler.measure, state, state.weights)
    charts = Charts(result.trace, discard, internal)
    loader = jinja2.PackageLoader(__package__ or "", "")
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    pages.filters["number"] = number
    return pages.get_template("report.html").render(
        facts,
        certificate=certificate,
        charts=charts,
        few=FEW_SAMPLES,
        key_numbers=_key_numbers(result),
        notices=_notices(result.trace),
        plus_minus=lambda value, error: pretty(plus_minus(value, error)),
        sections=_sections(charts),
        themes={theme: ramp(theme, len(charts.colors)) for theme in RAMPS},
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def write_report(
    path: str | Path, *, certificate: Certificate | None = None, result: Result | None = None, allow_code: bool = False
) -> Path:
    """Write `report.html` of a run, finished or not, and return its path.

    The run is loaded, and its certificate computed, unless they are given. With `allow_code`, the Python file that
    `network.module` names is executed.
    """
    folder = RunFolder.existing(path)
    result = load(path, allow_code=allow_code) if result is None else result
    if not result.trace.sizes["draw"]:
        raise RunFolderError(f"{path} has no records yet; continue it with {folder.resume_call}")
    facts = {"name": folder.path.resolve().name, "config": read_or_empty(folder.config)}
    facts["provenance"] = read_or_empty(folder.provenance)
    page = folder.path / "report.html"
    write_text(page, report_html(result, certificate=certificate or make_certificate(result), facts=facts))
    return page


def _sections(charts: Charts) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of every section; a figure has an identity, a title, a caption and an SVG."""
    variables = {color: f"var(--{name})" for name, color in COLORS.items()}
    variables |= {color: f"var(--t{index})" for index, color in enumerate(charts.colors)}

    def figures(names: Sequence[str], draw: Callable[[Axes, str], None] | None = None) -> list[dict[str, Any]]:
        found = []
        for name in names:
            variable, finite = charts.trace[name], charts.trace[name].values[np.isfinite(charts.trace[name].values)]
            if finite.size == 1 or np.ptp(finite) > 1e-6 * np.abs(finite).max():  # a constant needs no picture
                method = draw or (charts.draw_trace if variable.ndim == 3 else charts.draw_profile)
                identity = re.sub(r"\W", "-", f"{method.__name__.removeprefix('draw_')}-{name}")
                texts = {"title": variable.attrs["label"], "caption": str(variable.attrs.get("long_name") or "")}
                found.append({"id": identity, "svg": _svg(method, name, identity, variables), **texts})
        return found

    sections = {group: figures(names) for group, names in charts.groups.items()}
    scalars = [name for name in charts.groups["observables"] if name in charts.averages and not charts.by_chain]
    return sections | {"averages": figures(scalars, charts.draw_average)}


def _key_numbers(result: Result) -> dict[str, str]:
    sizes, steps, seconds = result.trace.sizes, int(result.trace["step"].values[-1]), result.seconds
    ends = [number(float(end(result.trace["temperature"].values))) for end in (np.min, np.max)]
    numbers = {}
    if result.sampler:
        numbers = {"sampler": result.sampler.name.replace("_", " "), "weights N": number(result.num_weights)}
    if ends[1] != "0":
        numbers["temperature T"] = " – ".join(dict.fromkeys(ends))
    numbers["chains"] = " × ".join(str(sizes[name]) for name in ("temperature", "chain") if sizes[name] > 1) or "1"
    numbers |= {"steps": number(steps), "records": number(sizes["draw"])}
    if seconds > 0:
        numbers |= {"steps/s": number(float(f"{steps / seconds:.3g}")), "time": str(timedelta(seconds=round(seconds)))}
    return numbers


def _notices(trace: xr.Dataset) -> list[str]:
    """Return a sentence for every chain that failed, or in which a class has no signal at the last record."""
    notices = []
    for t, c in np.ndindex(trace.sizes["temperature"], trace.sizes["chain"]):
        chain = trace.isel(temperature=t, chain=c)
        where, code = f"Chain {c} at T = {number(float(chain['temperature']))}", int(chain["status"].values[-1])
        if code not in HEALTHY:
            first = chain["step"].values[np.argmax(~np.isin(chain["status"].values, HEALTHY))]
            reason = Status(code).explanation if code in set(Status) else f"status {code}"
            notices.append(f"{where} stopped before step {number(first)}: {reason}.")
        if "dead_class" in chain and chain["dead_class"].values[-1].any():
            classes = ", ".join(map(str, np.flatnonzero(chain["dead_class"].values[-1])))
            notices.append(f"{where} has the dead class {classes}: its score is the same for nearly every example.")
    more = len(notices) - MAX_SHOWN
    return [*notices[:MAX_SHOWN], f"… and {more} more."] if more > 0 else notices
