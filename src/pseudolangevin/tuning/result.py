"""What tuning found: the recommended settings, and everything that was tried on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from ..diagnostics.diffusion import Diffusion
from ..samplers.base import Sampler
from .measure import Estimate

LABELS = {"loss": "loss", "squared_norm": "|w|²", "error": "error"}
SHORT = {
    "batch_size": "S",
    "temperature_ratio": "𝒯",
    "momentum_retention": "c1",
    "reset_probability": "ρ",
    "refresh_every": "refresh",
    "num_leapfrog_steps": "L",
    "time_step": "δt",
}


@dataclass(frozen=True)
class Bias:
    """Relative deviation of an average from the reference."""

    value: float
    uncertainty: float

    def within(self, budget: float) -> bool:
        """Whether it is, and is known well enough to say so."""
        return abs(self.value) <= budget and self.uncertainty <= budget


@dataclass(frozen=True)
class Tried:
    """One candidate, as measured."""

    settings: Mapping[str, Any]
    """What it differs in."""
    relative_diffusion: float
    """D*/N in 1/s, one chain."""
    standard_error: float
    milliseconds_per_step: float
    variance_share: float
    """Of the time, spent on measuring 𝒱."""
    bias: Mapping[str, Bias]
    """Of loss, |w|² and error; empty for an exact sampler."""
    within_budget: bool
    note: str = ""
    diffusion: Diffusion | None = None
    """The displacements that D* is the beginning of."""
    acceptance: Estimate | None = None
    """Of hybrid Monte Carlo, over the moves that the displacements are of."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON; unknown numbers are None."""
        return plain(
            asdict(replace(self, diffusion=None))
            | {"diffusion": None if self.diffusion is None else self.diffusion.to_dict()}
        )


@dataclass(frozen=True)
class Tuned:
    """The settings that diffuse fastest within the bias budget."""

    sampler: Sampler
    """Ready to run."""
    temperature: float
    bias_budget: float
    best: Tried
    tried: tuple[Tried, ...]
    reference: str
    """What biases are judged against."""
    notes: tuple[str, ...]
    seconds: float
    weights: Any
    """Where the chain that equilibrated is now, leading axes (1, 1); a start for what follows."""

    @property
    def settings(self) -> dict[str, Any]:
        """The recommended settings, as the sampler's arguments."""
        return dict(self.sampler.settings)

    @property
    def within_budget(self) -> bool:
        """Whether the recommendation keeps the budget; if not, it is the least biased candidate."""
        return self.best.within_budget

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return plain(
            {
                "sampler": self.sampler.name,
                "settings": self.settings,
                "temperature": self.temperature,
                "bias_budget": self.bias_budget,
                "within_budget": self.within_budget,
                "best": self.best.to_dict(),
                "tried": [tried.to_dict() for tried in self.tried],
                "reference": self.reference,
                "notes": list(self.notes),
                "seconds": self.seconds,
            }
        )

    def to_toml(self) -> str:
        """The recommendation as the [sampler] section of a configuration file."""
        lines = [f"{name} = {_toml(value)}" for name, value in self.settings.items() if value is not None]
        return "\n".join(["[sampler]", f'name = "{self.sampler.name}"', *lines])

    def __str__(self) -> str:
        """A table for a person."""
        stream = StringIO()
        console = Console(file=stream, width=140, highlight=False)
        table = Table(box=None, pad_edge=False, header_style="bold")
        varied = [name for name in SHORT if any(name in tried.settings for tried in self.tried)]
        biased = [name for name in LABELS if any(name in tried.bias for tried in self.tried)]
        for heading in [*(SHORT[name] for name in varied), "ms/step", "𝒱 share", "D*/N [1/s]"]:
            table.add_column(heading, justify="right")
        for name in biased:
            table.add_column(f"bias of {LABELS[name]}", justify="right")
        table.add_column("")
        for tried in self.tried:
            table.add_row(
                *(_short(tried.settings.get(name)) for name in varied),
                f"{tried.milliseconds_per_step:.4g}",
                f"{tried.variance_share:.0%}",
                f"{tried.relative_diffusion:.3g}",
                *(_percent(tried.bias.get(name)) for name in biased),
                ("best" if tried is self.best else "") + (f" {tried.note}" if tried.note else ""),
            )
        console.print(table)
        for note in self.notes:
            console.print(f"note: {note}", soft_wrap=True)
        verdict = "within" if self.within_budget else "NOT within"
        console.print(
            f"{self.sampler.name} at T = {self.temperature:g}: D*/N = {self.best.relative_diffusion:.3g} 1/s, "
            f"{verdict} {self.bias_budget:.1%} of {self.reference}; {self.seconds:.0f} s",
            soft_wrap=True,
        )
        return stream.getvalue().rstrip("\n")


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str | bool | int) else repr(float(value))


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(bias: Bias | None) -> str:
    if bias is None or not math.isfinite(bias.value):
        return "–"
    error = f"{bias.uncertainty:.2%}" if math.isfinite(bias.uncertainty) else "?"
    return f"{bias.value:+.2%} ± {error}"


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries, ready for JSON; numbers that are not finite are None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | bool | None) else str(value)
