"""The page: everything the report shows, as one string of HTML that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import xarray as xr
from markupsafe import Markup

from .. import estimates
from ..estimates import DEFAULT_DISCARD
from ..published import published_averages
from ..runfiles import find_number, flatten
from . import along_the_run, behind_the_certificate, equilibrium
from .facts import averages_table, dead_classes, key_numbers, origin, settings_tables, stopped_chains
from .figure import Figure
from .verdict import summarize
from .view import View

_SCRIPTS = ("scale.js", "plot.js", "interact.js", "page.js")


def report_html(
    trace: xr.Dataset,
    info: Mapping[str, Any],
    certificate: Any = None,
    *,
    samples: tuple[np.ndarray, Mapping[str, np.ndarray]] | None = None,
    discard: float = DEFAULT_DISCARD,
) -> str:
    """A self-contained page about a run.

    Args:
        trace: observables with dimensions (temperature, chain, draw), as `sample` returns them.
        info: what is known of the run, all optional: `name`, `config` (nested settings), `provenance` (versions,
            device, seed, data hash…), `metrics` (records of speed), `num_weights`, `certificate_error` (why none),
            `written_at`.
        certificate: an object or mapping with `passed` and `lines`, or None.
        samples: steps, and arrays (temperature, chain, kept draw, …) of kept weights, for the diffusion.
        discard: share of the records that averages leave out.
    """
    kept = estimates.kept(trace, discard)
    config = info.get("config") or {}
    settings = {path.rsplit(".", 1)[-1]: value for path, value in flatten(config).items()}
    if isinstance(decay := (config.get("potential") or {}).get("weight_decay"), Mapping):
        settings["weight_decay"] = decay
    published = published_averages(info.get("num_weights"), settings)
    view = View.of(trace)
    averages = {
        name: estimates.average_by_temperature(kept[name], kept)
        for name in ("loss", "squared_norm", "error", "test_error", "kinetic_temperature", "virial_temperature")
        if name in kept
    }
    verdict = summarize(certificate, str(info.get("certificate_error") or ""))
    sections = _sections(trace, kept, view, averages, published, config, samples, certificate)
    drawn = [figure for section in sections for figure in section["figures"]]
    script = '"use strict";\n(() => {\n' + "\n".join(_resource(name) for name in _SCRIPTS) + "})();"
    data = {"figures": [figure.to_json() for figure in drawn], "legend": view.legend()}
    return (
        _environment()
        .get_template("page.html")
        .render(
            name=info.get("name") or "run",
            written_at=info.get("written_at") or "",
            verdict=verdict,
            key_numbers=key_numbers(trace, info),
            origin=origin(info),
            stopped=stopped_chains(trace),
            dead=dead_classes(trace),
            tables=settings_tables(info),
            averages=averages_table(trace, averages, published, verdict.effective_samples()),
            kept_draws=kept.sizes.get("draw", 0),
            draws=trace.sizes.get("draw", 0),
            sections=sections,
            view_note=view.note,
            style=Markup(_resource("page.css")),
            light=Markup(view.palette(dark=False)),
            dark=Markup(view.palette(dark=True)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            data=Markup(json_for_html(data)),
        )
    )


def _sections(
    trace: xr.Dataset,
    kept: xr.Dataset,
    view: View,
    averages: Mapping[str, Any],
    published: list[Any],
    config: Mapping[str, Any],
    samples: tuple[np.ndarray, Mapping[str, np.ndarray]] | None,
    certificate: Any,
) -> list[dict[str, Any]]:
    """Headings with their figures; sections without figures are left out."""
    if trace.sizes.get("draw", 0) == 0:
        return []
    temperatures = np.asarray(trace["temperature"].values, np.float64)
    steps = trace["step"].values if "step" in trace.coords else np.arange(1, trace.sizes["draw"] + 1)
    shade = None
    if kept.sizes["draw"] < trace.sizes["draw"]:
        shade = (float(steps[0]), float(steps[trace.sizes["draw"] - kept.sizes["draw"]]))
    retention = find_number(config, "momentum_retention")
    ratios = along_the_run.ratio_figures(
        trace,
        view,
        find_number(config, "max_temperature_ratio") or find_number(config, "temperature_ratio"),
        None if retention is None else 1 / (1 + retention**2),
    )
    diffusion = None if samples is None else equilibrium.diffusion_figure(*samples, view)
    groups: list[tuple[str, str, list[Figure | None]]] = [
        ("averages", "Averages", [*equilibrium.average_figures(temperatures, averages, published)]),
        ("traces", "Traces", [*along_the_run.trace_figures(trace, view, shade)]),
        (
            "equilibrium",
            "Equilibrium",
            [
                equilibrium.layer_figure(kept, view),
                equilibrium.energy_figure(kept, view),
                None if find_number(config, "observe_examples") else behind_the_certificate.ensemble_figure(kept, view),
                diffusion,
            ],
        ),
        (
            "noise",
            "Mini-batch noise",
            [
                behind_the_certificate.noise_figure(getattr(certificate, "noise", ()), view),
                *ratios[:1],
                equilibrium.variance_figure(temperatures, kept),
                along_the_run.variance_figure(trace, view),
                *ratios[1:],
            ],
        ),
    ]
    sections = []
    for identity, title, figures in groups:
        shown = [figure for figure in figures if figure is not None and figure.drawable()]
        if shown:
            sections.append({"id": identity, "title": title, "figures": shown})
    return sections


def json_for_html(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or start another."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
