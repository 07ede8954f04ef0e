"""Which temperatures and chains a page draws, and in which colours: a page stays legible with hundreds of either."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

MAX_TEMPERATURES = 12
MAX_CHAINS = 8
MAX_CURVES = 48

# Cold to hot. Lightness changes along each ramp, so that the order survives any colour blindness and grey print.
_LIGHT_RAMP = ("#123f9e", "#7a3fb5", "#c9306b", "#e06a1c", "#c39400")
_DARK_RAMP = ("#7a92ff", "#b884f0", "#f2789f", "#ff9d5c", "#ffd75e")
# Okabe and Ito's set, and the same lightened.
_LIGHT_SET = ("#0072b2", "#d55e00", "#008f68", "#b6578f", "#a87400", "#3a9bd1", "#5b5b5b", "#8c3b00")
_DARK_SET = ("#5ab4ef", "#ff9350", "#3fd0a4", "#eba3cd", "#f0c050", "#a5dbfa", "#b9b9b9", "#e0a070")


@dataclass(frozen=True)
class View:
    """A choice of temperatures and chains (indices into the trace), and how to name and colour them."""

    temperatures: list[int]
    values: list[float]
    chains: list[int]
    num_temperatures: int
    num_chains: int

    @classmethod
    def of(cls, trace: xr.Dataset) -> View:
        """Evenly spread temperatures, the first chains."""
        num_temperatures, num_chains = trace.sizes.get("temperature", 0), trace.sizes.get("chain", 0)
        count = min(num_temperatures, MAX_TEMPERATURES)
        temperatures = [int(i) for i in np.linspace(0, num_temperatures - 1, count).round()] if count else []
        chains = min(num_chains, MAX_CHAINS, max(1, MAX_CURVES // max(count, 1)))
        if "temperature" in trace.coords:
            values = [float(trace["temperature"].values[i]) for i in temperatures]
        else:
            values = [float("nan")] * count
        return cls(temperatures, values, list(range(chains)), num_temperatures, num_chains)

    @property
    def by_chain(self) -> bool:
        """With a single temperature the colour tells chains apart."""
        return self.num_temperatures == 1 and self.num_chains > 1

    @property
    def note(self) -> str:
        """What is left out of the curves, in words."""
        parts = []
        if len(self.temperatures) < self.num_temperatures:
            parts.append(f"{len(self.temperatures)} of {self.num_temperatures} temperatures")
        if len(self.chains) < self.num_chains:
            parts.append(f"{len(self.chains)} of {self.num_chains} chains")
        return f"Curves show {' and '.join(parts)}; averages use all." if parts else ""

    def temperature_label(self, position: int) -> str:
        """T in words; a run without temperature (an optimiser) has T = 0."""
        value = self.values[position]
        return f"T = {scientific(value)}" if value > 0 else "no temperature"

    def style(self, position: int, chain: int | None = None) -> tuple[str, str]:
        """(key, colour) of a curve: `position` counts the temperatures drawn."""
        if self.by_chain and chain is not None:
            return f"chain{chain}", f"c{chain % len(_LIGHT_SET)}"
        return f"T{position}", f"t{position}"

    def name(self, position: int, chain: int | None = None) -> str:
        """A curve in words."""
        label = self.temperature_label(position)
        return label if chain is None else f"{label}, chain {chain}"

    def legend(self) -> list[dict[str, str]]:
        """The legend of the whole page."""
        if self.by_chain:
            return [{"key": f"chain{c}", "label": f"chain {c}", "color": self.style(0, c)[1]} for c in self.chains]
        return [
            {"key": f"T{i}", "label": self.temperature_label(i), "color": f"t{i}"}
            for i in range(len(self.temperatures))
        ]

    def palette(self, *, dark: bool) -> str:
        """CSS custom properties."""
        ramp, categories = (_DARK_RAMP, _DARK_SET) if dark else (_LIGHT_RAMP, _LIGHT_SET)
        colors = {f"t{i}": c for i, c in enumerate(_spread(ramp, len(self.temperatures)))}
        colors |= {f"c{i}": c for i, c in enumerate(categories)}
        return "".join(f"--{name}:{color};" for name, color in colors.items())


def scientific(value: float, digits: int = 4) -> str:
    """A number as 3×10⁻⁵; plain where that is short enough (0.02, 1.5)."""
    if value == 0 or 0.01 <= abs(value) < 1e4:
        return f"{value:.{digits}g}".replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return (
        power_of_ten(int(exponent))
        if mantissa == "1"
        else f"{mantissa}×{power_of_ten(int(exponent))}".replace("-", "−")
    )


def power_of_ten(exponent: int) -> str:
    """10⁻⁵."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _spread(ramp: tuple[str, ...], count: int) -> list[str]:
    anchors = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in ramp], float)
    # A single temperature takes the cold end; two are far apart but short of the ends' extremes.
    positions = np.linspace(0, len(ramp) - 1, count) if count > 1 else np.zeros(count)
    grid = np.arange(len(ramp))
    channels = [np.interp(positions, grid, anchors[:, i]) for i in range(3)]
    return ["#" + "".join(f"{round(value):02x}" for value in color) for color in zip(*channels, strict=True)]
