"""The static picture."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from synthetic import make_trace, stop_chain

from pseudolangevin.figures import summary_figure
from pseudolangevin.published import published_averages


def pixels(trace, published=None) -> np.ndarray:
    stream = io.BytesIO()
    summary_figure(trace, published).savefig(stream, format="png", dpi=50)
    stream.seek(0)
    return imread(stream)


def test_three_panels_of_averages_above_three_of_traces(tmp_path: Path) -> None:
    published = published_averages(11_160, {"weight_decay": 10.0611})
    figure = summary_figure(make_trace(), published)
    labels = ["loss", "squared norm |w|²", "training error"]
    assert [axes.get_ylabel() for axes in figure.axes] == [*(f"mean {label}" for label in labels), *labels]
    assert all(axes.get_xscale() == axes.get_yscale() == "log" for axes in figure.axes[:3])
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["published hMC", "published pL", "this run"]
    drawn = [line.get_ydata() for line in figure.axes[0].get_lines()]
    assert any(np.isclose(np.asarray(values, float), 0.324912).any() for values in drawn if len(np.atleast_1d(values)))
    assert not np.array_equal(pixels(make_trace(), published), pixels(make_trace()))
    edge = 3  # pixels: nothing touches the edge of the picture
    page = pixels(make_trace(), published)[..., :3]
    assert min(page[:edge].min(), page[-edge:].min(), page[:, :edge].min(), page[:, -edge:].min()) == 1.0


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 3), (40, 1, 5)])
def test_any_shape(shape: tuple[int, int, int]) -> None:
    assert pixels(make_trace(*shape)).std() > 0.05


def test_stopped_chains_and_missing_observables() -> None:
    trace = stop_chain(make_trace(temperatures=1, chains=1, draws=10), 0, 0, 2)
    assert pixels(trace).std() > 0.02
    assert len(summary_figure(make_trace()[["loss", "status"]]).axes) == 2
    with pytest.raises(ValueError, match="nothing can be drawn"):
        summary_figure(make_trace()[["status"]])


def test_no_global_state_of_matplotlib_is_touched() -> None:
    before = dict(matplotlib.rcParams)
    summary_figure(make_trace())
    assert dict(matplotlib.rcParams) == before
