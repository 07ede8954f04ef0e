"""The page and the summary picture: complete, well formed, safe against hostile strings, for every kind of run."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pseudolangevin.diagnostics.certificate import Certificate
from pseudolangevin.runs.report import report_html, summary_figure, write_report

from .report_data import HOSTILE, full_page, make_certificate, make_result, make_trace

FEW = make_trace()[["loss", "status"]]
FACTS_SHOWN = ["Certificate failed", "1 passed, 1 failed, 1 undecided", "R-hat needs two chains", "0:01:15"]
FACTS_SHOWN += ["Chain 1 at T = 1.732×10⁻⁵ stopped before step 7550", "last 150 of 200 records", "2026-01-02T10:00"]
FACTS_SHOWN += ["refresh interval (steps)", "sum of the squared weights", "kinetic temperature / T", "0.10.2"]


class Parser(HTMLParser):
    """Checks that elements nest, and keeps tags, identities, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.words, self._open = [], [], []  # type: ignore[var-annotated]
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        self.close()
        assert self._open == []
        self.ids = [str(value) for name, value in self.attributes if name == "id"]
        assert len(self.ids) == len(set(self.ids)), "an identity is used twice"
        self.text = re.sub(r"\s+", " ", " ".join(self.words))
        self.figures = [name for name in self.ids if re.fullmatch(r"(average|trace|profile)-\w+", name)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)


def parse(trace: xr.Dataset, certificate: Certificate | None = None, **facts: Any) -> Parser:
    return Parser(report_html(make_result(trace), certificate, facts))


def test_a_full_page_has_every_section_in_order() -> None:
    parser = Parser(full_page())
    names = ["averages", "observables", "temperatures", "certificate", "run"]
    assert [name for name in parser.ids if name in names] == names
    # Built-in observables in the order of their table, then the user's own; a constant has no figure.
    assert parser.figures == [
        *(f"average-{name}" for name in ("loss", "squared_norm", "error", "margin")),
        *("trace-loss", "trace-squared_norm", "trace-error", "profile-gradient_variance", "trace-margin"),
        *("trace-kinetic_temperature", "profile-layer_virial_temperature"),
    ]
    for fact in FACTS_SHOWN:
        assert fact in parser.text


def test_nothing_is_loaded_or_run() -> None:
    page = full_page()
    parser = Parser(page)
    assert not {"script", "img", "iframe"} & set(parser.tags)
    assert "src" not in dict(parser.attributes)
    assert [value for name, value in parser.attributes if name == "href"] == ["data:,"]
    assert all((value or "#").startswith("#") for name, value in parser.attributes if name == "xlink:href")
    assert not re.search(r"@import|https?:|#1c1f24(?!;)", page.split("</style>")[1])
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page


def test_hostile_strings_stay_text() -> None:
    trace = make_trace(draws=8).assign_coords(layer=[HOSTILE, "b", "c"]).rename(margin=HOSTILE)
    trace[HOSTILE].attrs |= {"label": HOSTILE, "long_name": HOSTILE, "unit": HOSTILE}
    facts = {"name": HOSTILE, "config": {HOSTILE: {HOSTILE: [HOSTILE, 1]}, "plain": HOSTILE}}
    resumed = [HOSTILE, {HOSTILE: HOSTILE, "versions": {"a": []}}]
    facts |= {"provenance": {HOSTILE: HOSTILE, "versions": 3, "resumed": resumed}}
    parser = parse(trace, make_certificate("failed", name=HOSTILE, message=HOSTILE), **facts)
    assert not {"script", "img"} & set(parser.tags)
    assert "onerror" not in dict(parser.attributes)
    assert parser.text.count(HOSTILE) > 10
    assert HOSTILE[:14] in parser.text  # the layer, at an axis


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 5), (2, 1, 2)])
def test_small_runs(shape: tuple[int, int, int]) -> None:
    parser = parse(make_trace(*shape), make_certificate("undecided"))
    assert "trace-loss" in parser.figures
    assert ("average-loss" in parser.figures) == (shape[0] > 1)  # against temperature, which takes two
    assert ("chain 2" in parser.text) == (shape == (1, 3, 5))  # with one temperature, colours distinguish chains


def test_what_was_not_recorded_is_left_out() -> None:
    assert parse(FEW).figures == ["average-loss", "trace-loss"]
    broken = make_trace(1).assign_coords(temperature=[0.0])  # an optimiser has no temperature
    broken["loss"].values[0, 0, 3:6] = np.nan
    broken["loss"].values[0, 1, 4] = np.inf
    broken["margin"].values[:] = np.nan
    parser = parse(broken)
    assert not {"temperatures", "trace-margin"} & set(parser.ids)
    assert {"trace-loss", "trace-error"} <= set(parser.ids)


def test_stopped_chains_and_dead_classes_are_named() -> None:
    trace = make_trace(draws=4)[["loss", "status"]]
    dead = np.zeros((2, 2, 4, 3), bool)
    dead[1, 0, 3, [0, 2]] = dead[0, 1, 1, 1] = True  # the second one recovered
    text = parse(trace.assign(dead_class=(("temperature", "chain", "draw", "class"), dead))).text
    assert text.count("dead class") == 1
    assert "Chain 0 at T = 3×10⁻⁵ has the dead class 0, 2" in text
    many = make_trace(20, 2, 4)[["loss", "status"]]
    many["status"].values[:] = 1
    assert "… and 28 more." in parse(many).text


def test_many_temperatures_and_long_traces_stay_small() -> None:
    many = report_html(make_result(make_trace(100, 2, 10)[["loss", "status"]]))
    assert "12 of 100 temperatures are shown" in Parser(many).text
    long = make_trace(4, 4, 5_000)
    long["loss"].values[2, 1, 4321] = 9.0
    page = report_html(make_result(long))
    assert max(len(many), len(page)) < 2_000_000
    curve = page.split('id="trace-loss"')[1].split("</figure>")[0]
    heights = [float(y) for y in re.findall(r"L [\d.]+ ([\d.]+)", curve)]
    assert min(heights) < np.median(heights) - 100  # an excursion of one record is not lost


def test_verdicts_and_dots() -> None:
    headings = {(): "Undecided", ("passed",): "Certificate passed", ("passed", "failed"): "Certificate failed"}
    for verdicts, heading in headings.items():
        page = report_html(make_result(FEW), make_certificate(*verdicts))
        assert heading in page
        assert re.findall(r'class="dot (\w+)"', page) == list(verdicts)
        assert ("1.0020 ± 0.0030" in page) == bool(verdicts)
    assert "No certificate was computed" in report_html(make_result(FEW))


def test_write_report_of_a_folder(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    shutil.copytree(finished, run)
    assert write_report(run, certificate=make_certificate("passed")) == run / "report.html"
    parser = Parser((run / "report.html").read_text(encoding="utf-8"))
    for fact in ("my run", "pseudo langevin", "Certificate passed", "settings_sha256"):
        assert fact in parser.text
    assert {"sampler", "trace-loss", "profile-gradient_variance"} <= set(parser.ids)
    assert list(run.glob("*.partial")) == []


def test_summary_picture() -> None:
    figure = summary_figure(make_trace())
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "|w|²", "error"] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["T = 10⁻⁵", "T = 3×10⁻⁵"]
    assert len(summary_figure(make_trace(1, 1, 1)[["loss", "status"]]).axes) == 2
    with pytest.raises(ValueError, match="record loss, squared_norm or error"):
        summary_figure(make_trace()[["margin", "status"]])
