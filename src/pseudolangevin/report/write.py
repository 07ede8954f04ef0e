"""From a run folder to its page."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..diagnostics.certificate import Certificate
from ..diagnostics.certificate import certificate as make_certificate
from ..estimates import DEFAULT_DISCARD
from ..runfiles import (
    check_run_folder,
    find_number,
    find_setting,
    read_config,
    read_metrics,
    read_provenance,
    read_samples,
    read_trace,
)
from ..runs import load
from ..store.folder import RunFolderError, check_writable, write_atomically
from .page import report_html


def write_report(run_dir: str | Path, certificate: Certificate | None = None) -> Path:
    """Write `report.html` into a run folder and return its path. A run that is still going is shown as far as it is.

    Args:
        run_dir: what `sample --out` wrote.
        certificate: of this run, where it was just computed; otherwise it is computed here.

    Example:
        >>> write_report("runs/first")  # doctest: +SKIP
        PosixPath('runs/first/report.html')
    """
    path = check_run_folder(run_dir)
    trace = read_trace(path)
    if trace is None:
        raise RunFolderError(f"{run_dir} holds no records yet; continue it with `pseudolangevin resume {run_dir}`")
    check_writable(path)
    page = path / "report.html"
    samples = read_samples(path)
    config, provenance = read_config(path), read_provenance(path)
    error = ""
    if certificate is None:
        certificate, error = _certificate(path)
    info = {
        "name": path.resolve().name,
        "config": config,
        "provenance": provenance,
        "metrics": read_metrics(path),
        "num_weights": _num_weights(certificate, provenance, config, samples),
        "certificate_error": error,
        "written_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    discard = DEFAULT_DISCARD if certificate is None else certificate.burn_in
    write_atomically(page, report_html(trace, info, certificate, samples=samples, discard=discard))
    return page


def _certificate(path: Path) -> tuple[Certificate | None, str]:
    """The certificate, or why there is none: a page is worth having even where the run cannot be certified."""
    try:
        return make_certificate(load(path, samples=False)), ""
    except Exception as error:  # whatever goes wrong is said on the page
        return None, f"The certificate could not be computed: {type(error).__name__}: {error}"


def _num_weights(
    certificate: Certificate | None,
    provenance: dict[str, Any],
    config: dict[str, Any],
    samples: tuple[np.ndarray, dict[str, Any]] | None,
) -> int | None:
    """N, from whatever knows it."""
    if certificate is not None:
        return certificate.num_weights
    if samples is not None:
        return sum(int(np.prod(leaf.shape[3:])) for leaf in samples[1].values())
    recorded = find_number(provenance, "num_weights")
    if recorded is not None:
        return int(recorded)
    sizes = find_setting(config, "sizes")
    if isinstance(sizes, list) and len(sizes) > 1 and all(isinstance(size, int) for size in sizes):
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))
    return None
