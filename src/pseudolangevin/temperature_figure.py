"""The picture of a temperature scan: the order parameter, the loss, and the heat capacity against T."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .temperature import TemperatureRange

_PANELS = [
    ("gradient_variance", "mean gradient variance of the hidden layers", "log"),
    ("loss", "loss", "linear"),
    ("heat_capacity", "dU/dT per weight", "linear"),
]
_COLORS = {"down": "#0072b2", "up": "#d55e00"}


def temperature_figure(found: TemperatureRange) -> Figure:
    """Three panels over T, down and up, with the range shaded, the recommended T and the Bayesian 1/P marked.

    Args:
        found: from `find_temperature`.

    Example:
        >>> temperature_figure(found).savefig("temperature.png")  # doctest: +SKIP
    """
    figure = Figure(figsize=(12.3, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # off screen, without touching pyplot's global state
    for axes, (name, label, scale) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        for direction, color in _COLORS.items():
            values = found.curve[name].sel(direction=direction)
            for stage, marker in [(0, "o-"), (1, ".--")]:
                chosen = values.isel(temperature=values["stage"].values == stage)
                text = direction if stage == 0 else None
                axes.plot(chosen["temperature"], chosen, marker, color=color, lw=0.9, ms=5, label=text)
        axes.axvspan(found.low, found.high, color="0.5", alpha=0.15, lw=0)
        axes.axvline(found.temperature, color="#009e73", lw=1.4, label="recommended")
        axes.axvline(found.bayesian_temperature, color="0.4", lw=1, ls=":", label="1/P")
        axes.set(xscale="log", yscale=scale, xlabel="T", title=label)
        axes.xaxis.set_minor_formatter(NullFormatter())
        if found.curve["temperature"].values[-1] < 100 * found.curve["temperature"].values[0]:  # few powers of ten
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")))
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.25)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure
