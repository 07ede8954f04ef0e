"""The page as text: well formed, safe against hostile strings, and complete for every kind of run."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from synthetic import make_certificate, make_info, make_samples, make_trace, stop_chain, write_run, write_samples

from pseudolangevin.diagnostics.certificate import Certificate
from pseudolangevin.diagnostics.noise_histogram import noise_histogram
from pseudolangevin.diagnostics.verdicts import Line, Verdict
from pseudolangevin.report import report_html, write_report
from pseudolangevin.report.displacement import mean_squared_displacement
from pseudolangevin.report.figure import POINTS_PER_FIGURE, number, thin
from pseudolangevin.report.page import json_for_html
from pseudolangevin.report.verdict import format_number, summarize, with_error

HELD = Line("kinetic temperature", 1e-5, 0, 1.0, 0.01, 1.0, 0.03, Verdict.PASSED, "")
VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--"


class Parser(HTMLParser):
    """Checks that elements nest, and keeps identities, attributes and embedded data."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data: dict[str, Any] = {}
        self._data_next = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]
        self._data_next = ("id", "report-data") in attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._data_next:
            self.data = json.loads(data)
            self._data_next = False


def parse(page: str) -> Parser:
    parser = Parser()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids)), "an id is used twice"
    for figure in parser.data["figures"]:
        assert f"figure-{figure['id']}" in parser.ids
    return parser


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", page, flags=re.S))


def test_a_full_page_has_every_figure_and_fact() -> None:
    page = report_html(make_trace(), make_info(), make_certificate(), samples=make_samples())
    parser = parse(page)
    assert [figure["id"] for figure in parser.data["figures"]] == [
        "average-loss",
        "average-squared-norm",
        "average-error",
        "trace-loss",
        "trace-squared-norm",
        "trace-error",
        "trace-test-error",
        "trace-kinetic-temperature",
        "trace-virial-temperature",
        "layers",
        "energies",
        "diffusion",
        "ratios",
        "variance",
        "variance-trace",
        "peak-temperature-ratio",
        "raised-share",
        "refresh-interval",
    ]
    text = text_of(page)
    for fact in ("Certificate fails", "R-hat", "run longer", "11 160", "1 min 15 s", "0.10.2", "published values"):
        assert fact in text
    by_id = {figure["id"]: figure for figure in parser.data["figures"]}
    assert {r["label"]: round(r["value"], 3) for r in by_id["ratios"]["references"]} == {
        "𝒯max": 0.02,
        "limit 1/(1+c1²)": 0.503,
    }
    published = [s for s in by_id["average-loss"]["series"] if s["name"] == "published pL"]
    assert published[0]["y"][-1] == 0.324912


def rows_of(page: str, table: str) -> list[list[str]]:
    """The cells of a table, without what stands below a number."""
    found = re.search(table + r".*?</table>", page, flags=re.S)
    assert found is not None
    rows = re.findall(r"<tr.*?</tr>", re.sub(r"<small>.*?</small>", "", found[0]), flags=re.S)
    return [[text_of(cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.S)] for row in rows]


def test_effective_samples_are_those_of_the_certificate() -> None:
    numbers = {"U": (123.4, 56.0), "|w|²": (78.9, 12.0)}
    lines = [
        Line(f"effective samples of {observable}", t, None, value, 0.0, 100.0, 0.0, Verdict.UNDECIDED, "")
        for observable, values in numbers.items()
        for t, value in zip((1e-5, 3e-5), values, strict=True)
    ]
    certificate = Certificate((HELD, *lines), (), "pseudo_langevin", 11_160, 0.5)
    header, cold, hot = rows_of(report_html(make_trace(), make_info(), certificate), 'id="table"')
    assert header[-2:] == ["eff. samples of U", "eff. samples of |w|²"]
    assert (cold[0], cold[-2:]) == ("10⁻⁵", ["123.4", "78.9"])
    assert (hot[0], hot[-2:]) == ("3×10⁻⁵", ["56", "12"])
    without = report_html(make_trace(), make_info())
    assert rows_of(without, 'id="table"')[0][-1] == "virial / T"
    assert "ffective samples" not in text_of(without)


def test_only_a_run_that_was_resumed_says_so() -> None:
    info = make_info()
    for resumed in ([], [{"from_step": 2000}]):
        info["provenance"]["resumed"] = resumed
        rows = rows_of(report_html(make_trace(), info), "<caption>provenance")
        assert [row[0] for row in rows].count("resumed") == len(resumed)


def overlapping_trace() -> xr.Dataset:
    """Three temperatures of a harmonic system of 200 weights: neighbours overlap."""
    trace = make_trace(temperatures=3, draws=400).assign_coords(temperature=[1e-5, 1.2e-5, 1.4e-5])
    random = np.random.default_rng(3)
    for index, temperature in enumerate(trace["temperature"].values):
        trace["potential"].values[index] = temperature * random.gamma(100, size=(2, 400))
    return trace


def test_what_the_certificate_looked_at_is_drawn() -> None:
    trace = overlapping_trace()
    random = np.random.default_rng(4)
    draws = {c: random.normal(size=(250, 400)) for c in range(2)}
    noise = tuple(noise_histogram(draws[c], float(t), c) for t in trace["temperature"].values for c in range(2))
    certificate = Certificate((), (), "pseudo_langevin", 200, 0.5, noise)
    figures = {figure["id"]: figure for figure in parse(report_html(trace, make_info(), certificate)).data["figures"]}
    ensemble = figures["ensemble"]
    assert [entry["label"] for entry in ensemble["legend"]] == [
        "T = 10⁻⁵ and 1.2×10⁻⁵",
        "T = 1.2×10⁻⁵ and 1.4×10⁻⁵",
    ]
    points, line = ensemble["series"][:2]
    u = ensemble["abscissae"][line["x"]]
    slope = (line["y"][-1] - line["y"][0]) / (u[-1] - u[0])
    assert slope == pytest.approx(1 / 1e-5 - 1 / 1.2e-5, rel=1e-3)
    scores = (np.array(points["y"]) - line["y"]) / points["error"]
    assert np.mean(scores**2) < 1 + 4 * math.sqrt(2 / len(scores))
    *measured, normal = figures["noise-distribution"]["series"]
    assert [series["key"] for series in measured] == ["T0", "T1", "T2"]
    # 200 000 numbers: where the density is high it is known to a few per cent, 0.01 in the middle bins.
    middle = slice(20, 30)
    np.testing.assert_allclose(measured[0]["y"][middle], normal["y"][middle], rtol=0.05)
    only_a_part = make_info()
    only_a_part["config"]["recording"] = {"observe_examples": 100}  # its U is not that of exp(−U/T)
    assert "figure-ensemble" not in parse(report_html(trace, only_a_part)).ids


def test_the_page_asks_nothing_of_the_network() -> None:
    page = report_html(make_trace(), make_info())
    parser = parse(page)
    assert not {"src"} & {name for name, _ in parser.attributes}
    assert [value for name, value in parser.attributes if name == "href"] == ["data:,", "#run"]
    assert "@import" not in page
    assert "url(http" not in page
    assert "default-src 'none'" in page


def test_hostile_strings_stay_text() -> None:
    info = make_info() | {"name": HOSTILE}
    info["config"] |= {HOSTILE: {HOSTILE: [HOSTILE, 1]}, "plain": HOSTILE}
    info["provenance"] |= {"device": HOSTILE, HOSTILE: HOSTILE}
    certificate = {"passed": False, "lines": [{"name": HOSTILE, "value": HOSTILE, "passed": None, "message": HOSTILE}]}
    trace = make_trace(draws=8).assign_coords(layer=[HOSTILE, "b", "c"])
    page = report_html(trace, info, certificate)
    parser = parse(page)
    assert "img" not in parser.tags
    assert "onerror" not in {name for name, _ in parser.attributes}
    assert parser.tags.count("script") == 2
    assert page.count("</script>") == 2
    layers = next(figure for figure in parser.data["figures"] if figure["id"] == "layers")
    assert layers["xAxis"]["categories"][0] == HOSTILE


def test_embedded_json_survives_as_it_was() -> None:
    data = {"a": HOSTILE, "b": "\u2028 é 𝒯", "c": [1.5, None]}
    text = json_for_html(data)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == data
    with pytest.raises(ValueError, match="JSON"):
        json_for_html({"a": math.nan})


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 5), (2, 1, 2), (1, 1, 60)])
def test_small_runs(shape: tuple[int, int, int]) -> None:
    parser = parse(report_html(make_trace(*shape), make_info(), make_certificate()))
    assert len(parser.data["figures"]) >= 12
    if shape[:2] == (1, 3):  # with one temperature, colour tells the chains apart
        assert [entry["label"] for entry in parser.data["legend"]] == ["chain 0", "chain 1", "chain 2"]


def test_no_records_yet() -> None:
    trace = make_trace().isel(draw=slice(0, 0))
    page = report_html(trace, make_info())
    assert parse(page).data["figures"] == []
    assert "Nothing was recorded yet" in text_of(page)
    parse(report_html(xr.Dataset(), {}))


def test_missing_observables_leave_their_figures_out() -> None:
    trace = make_trace()[["loss", "squared_norm", "status"]]
    identities = [figure["id"] for figure in parse(report_html(trace, {})).data["figures"]]
    assert identities == ["average-loss", "average-squared-norm", "trace-loss", "trace-squared-norm"]


def test_an_optimiser_has_no_temperature() -> None:
    trace = make_trace(temperatures=1).assign_coords(temperature=[0.0])
    identities = [figure["id"] for figure in parse(report_html(trace, {})).data["figures"]]
    assert "trace-loss" in identities
    assert "trace-kinetic-temperature" not in identities


def test_not_a_number_is_a_gap() -> None:
    trace = make_trace(draws=20)
    trace["loss"].values[0, 0, 3:6] = math.nan
    trace["loss"].values[0, 1, 4] = math.inf
    figures = {figure["id"]: figure for figure in parse(report_html(trace, {})).data["figures"]}
    first, second = figures["trace-loss"]["series"][:2]
    assert [i for i, y in enumerate(first["y"]) if y is None] == [3, 4, 5]
    assert [i for i, y in enumerate(second["y"]) if y is None] == [4]


def test_stopped_chains_are_named_and_left_out_of_averages() -> None:
    healthy = make_trace(draws=40)
    page = report_html(stop_chain(healthy, 1, 0, 30), make_info())
    assert "Chain 0 at T = 3×10⁻⁵ stopped before step 1 550" in text_of(page)
    figures = {figure["id"]: figure for figure in parse(page).data["figures"]}
    expected = float(healthy["loss"].values[1, 1, 20:].mean())
    assert figures["average-loss"]["series"][0]["y"][1] == pytest.approx(expected, rel=1e-5)
    everyone = stop_chain(stop_chain(healthy, 1, 0, 0), 1, 1, 0)
    figures = {figure["id"]: figure for figure in parse(report_html(everyone, make_info())).data["figures"]}
    assert figures["average-loss"]["series"][0]["y"][1] is None


def test_dead_classes_are_named() -> None:
    trace = make_trace(draws=4)
    dead = np.zeros((2, 2, 4, 3), bool)
    dead[1, 0, 3, [0, 2]] = True
    dead[0, 1, 1, 1] = True  # it came back to life
    trace["dead_class"] = (("temperature", "chain", "draw", "class"), dead)
    text = text_of(report_html(trace, make_info()))
    assert text.count("Dead class") == 1
    assert "Dead class 0, 2 in chain 0 at T = 3×10⁻⁵" in text


def test_hundreds_of_temperatures_and_long_traces_stay_small() -> None:
    many = report_html(make_trace(temperatures=300, chains=4, draws=30), make_info())
    parser = parse(many)
    assert "12 of 300 temperatures" in text_of(many)
    assert len(parser.data["legend"]) == 12
    averages = next(figure for figure in parser.data["figures"] if figure["id"] == "average-loss")
    assert len(averages["series"][0]["y"]) == 300
    long = report_html(make_trace(temperatures=4, chains=4, draws=20_000), make_info())
    traces = next(figure for figure in parse(long).data["figures"] if figure["id"] == "trace-loss")
    assert sum(len(series["y"]) for series in traces["series"]) <= POINTS_PER_FIGURE
    assert len(many) < 2_000_000
    assert len(long) < 2_000_000


def test_thinning_keeps_every_excursion() -> None:
    x = np.arange(10_000.0)
    y = np.sin(x / 500)
    y[[17, 4321]] = 9.0, -9.0
    y[6000:6500] = math.nan
    thin_x, thin_y = thin(x, y, 400)
    assert len(thin_x) <= 400
    assert (np.diff(thin_x) > 0).all()
    assert {17.0, 4321.0} <= set(thin_x)
    assert np.isnan(thin_y).any()
    np.testing.assert_array_equal(thin_y, y[thin_x.astype(int)])
    assert thin(x[:10], y[:10], 400)[0] is not None
    assert number(math.inf) is None
    assert number(1 / 3) == 0.333333


def test_displacement_of_a_random_walk() -> None:
    steps, leaves = make_samples(draws=41)
    lags, displacement = mean_squared_displacement(steps, leaves)
    assert lags[0] == 200
    # 2050 components and two chains: a mean square of t from t·χ²/n, with starts that overlap.
    np.testing.assert_allclose(displacement, np.tile(lags / 200, (2, 1)), rtol=4 * math.sqrt(2 / 4100))
    few = {name: leaf[:, :, :3] for name, leaf in leaves.items()}
    assert mean_squared_displacement(steps[:3], few)[0].tolist() == [200, 400]  # one lag alone would be a dot
    assert mean_squared_displacement(steps[:2], {"w": leaves["layer1.bias"][:, :, :2]})[0].size == 0


def test_certificates_of_every_form() -> None:
    class Object:
        passed = False
        lines = (make_certificate()["lines"][0],)

    assert summarize(Object()).verdict == "failed"
    assert summarize({"passed": True, "lines": []}).verdict == "passed"
    assert summarize({"passed": None, "lines": []}).verdict == "undecided"
    assert summarize({"verdict": "undecided", "passed": False, "lines": []}).verdict == "undecided"
    summary = summarize(make_certificate())
    assert [line.verdict for line in summary.lines] == ["failed", "undecided", "passed"]
    columns, rows = summary.overview()
    assert columns == ["T = 10⁻⁵"]
    assert [(name, cells[0][0].verdict) for name, cells in rows] == [
        ("kinetic temperature", "passed"),
        ("R-hat", "failed"),
        ("drift", "undecided"),
    ]
    assert summary.lines[-1].expected == "1 ± 0.03"
    assert summary.lines[-1].where == "T = 10⁻⁵, chain 0"
    assert "undecided: run on" in report_html(make_trace(), {}, make_certificate() | {"advice": "undecided: run on"})
    missing = summarize(None, "no noise")
    assert (missing.verdict, missing.reason) == ("unchecked", "no noise")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.32491, 0.00123, "0.3249 ± 0.0012"),
        (352.018, 4.288, "352.0 ± 4.3"),
        (1234567.0, 8910.0, "(1.2346 ± 0.0089)×10⁶"),
        (1.013e-5, 2.1e-7, "(1.013 ± 0.021)×10⁻⁵"),
        (-0.5, 0.25, "−0.50 ± 0.25"),
        (1.0, 0.0, "1"),
        (1.0, math.nan, "1"),
        (math.nan, 1.0, "—"),
        (None, None, "—"),
    ],
)
def test_values_with_errors(value: float | None, error: float | None, text: str) -> None:
    assert with_error(value, error) == text


def test_numbers() -> None:
    assert format_number(3e-5) == "3×10⁻⁵"
    assert format_number(0.25) == "0.25"
    assert format_number("x") == "—"


def test_write_report_of_a_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", room=40)
    write_samples(run)
    page = write_report(run)
    assert page == run / "report.html"
    text = page.read_text(encoding="utf-8")
    parser = parse(text)
    assert "diffusion" in [figure["id"] for figure in parser.data["figures"]]
    trace = next(figure for figure in parser.data["figures"] if figure["id"] == "trace-loss")
    assert max(trace["abscissae"][0]) == 4000  # the room for records to come is not drawn
    assert "my run" in text
    # This folder has no checkpoint, so no certificate can be made of it, and the page says why.
    assert "The certificate could not be computed" in text
    assert list(run.glob("*.partial")) == []
    # One that is given is shown, and not computed again.
    assert (
        "Certificate holds" in write_report(run, Certificate((HELD,), (), "pseudo_langevin", 12_345, 0.25)).read_text()
    )
    text = text_of(page.read_text(encoding="utf-8"))
    assert "Over the last 60 of 80 records" in text  # as many as the certificate looked at
    assert "12 345" in text
    assert "could not be computed" not in text


def test_write_report_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run_dir = .*nothere.* is not a folder"):
        write_report(tmp_path / "nothere")
    with pytest.raises(ValueError, match=r"holds no records yet"):
        write_report(tmp_path)
