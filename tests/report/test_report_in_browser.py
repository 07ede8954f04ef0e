"""The page in a real browser: nothing on the console, every figure drawn, hover, zoom, axes and legends at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find_chromium
from synthetic import HOSTILE_LAYER, make_certificate, make_info, make_samples, make_trace, stop_chain

from pseudolangevin.report import report_html

LOSS = "document.querySelector('#figure-trace-loss')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium on this machine; install it (apt-get install chromium) or set CHROMIUM to its path")
    running = Browser(executable, tmp_path_factory.mktemp("profile"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    trace = stop_chain(make_trace(draws=200), 1, 1, 150).assign_coords(layer=[HOSTILE_LAYER, "b", "c"])
    endless = "a_name_without_any_place_to_break" * 3
    info = make_info() | {"name": HOSTILE_LAYER + endless, "provenance": {"device": endless, endless: endless}}
    path.write_text(report_html(trace, info, make_certificate(), samples=make_samples()), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.problems.clear()
    browser.open(page)
    browser.run(f"{LOSS}.scrollIntoView({{block: 'center'}})")
    yield browser
    assert browser.problems == []


def place(browser: Browser, across: float, down: float) -> tuple[float, float]:
    """A point of the loss figure, by its share of the width and height, in the window's pixels."""
    box = browser.run(f"{LOSS}.querySelector('.plot svg').getBoundingClientRect().toJSON()")
    return box["left"] + across * box["width"], box["top"] + down * box["height"]


def labels(browser: Browser) -> list[str]:
    """What the axes of the loss figure say."""
    return browser.run(f"[...{LOSS}.querySelectorAll('.axes text')].map(t => t.textContent).filter(t => t)")


def curve(browser: Browser) -> str:
    """The path of its first curve, in pixels."""
    return browser.run(f"{LOSS}.querySelector('.curve').getAttribute('d')")


def press_button(browser: Browser, text: str) -> Any:
    found = f"[...{LOSS}.querySelectorAll('button')].find(b => b.textContent === '{text}')"
    return browser.run(f"(b => {{ b.click(); return b.getAttribute('aria-pressed'); }})({found})")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (320, True)])
def test_every_figure_is_drawn_and_nothing_overflows(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.problems.clear()
    browser.open(page, width, 800, mobile=width < 600, dark=dark)
    figures = browser.run(
        """[...document.querySelectorAll('figure')].map(figure => ({
            id: figure.id,
            shapes: [...figure.querySelectorAll('.data .series path, .data .series circle')]
                .map(shape => shape.getBoundingClientRect()).filter(box => box.width + box.height > 1).length,
            labels: [...figure.querySelectorAll('.axes text')].filter(text => text.textContent).length,
            broken: /NaN|Infinity|undefined/.test(figure.querySelector('svg').outerHTML),
            described: (figure.querySelector('svg').getAttribute('aria-label') || '').length,
        }))"""
    )
    assert len(figures) == 18
    for figure in figures:
        assert figure["shapes"] > 0, figure
        assert figure["labels"] >= 4, figure
        assert not figure["broken"], figure
        assert figure["described"] > 20, figure
    assert browser.run("document.documentElement.scrollWidth") <= width
    expected = "rgb(20, 22, 26)" if dark else "rgb(251, 251, 249)"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == expected
    assert browser.problems == []


def test_hover_reads_a_point(opened: Browser) -> None:
    opened.mouse("Moved", *place(opened, 0.7, 0.5))
    readout = opened.run(f"{LOSS}.querySelector('.readout').innerText")
    assert "T = " in readout
    assert "steps: " in readout
    assert "loss: 0." in readout
    assert opened.run(f"{LOSS}.querySelectorAll('.overlay .spot').length") == 1
    opened.mouse("Moved", 2, 2)
    assert opened.run(f"{LOSS}.querySelector('.readout').hidden")


def test_drag_zooms_and_double_click_resets(opened: Browser) -> None:
    before = labels(opened)
    start, end = place(opened, 0.6, 0.5), place(opened, 0.8, 0.52)
    opened.mouse("Moved", *start)
    opened.mouse("Pressed", *start, button="left", clickCount=1)
    opened.mouse("Moved", *end, button="left", buttons=1)
    assert opened.run(f"{LOSS}.querySelectorAll('.overlay .zoom').length") == 1
    opened.mouse("Released", *end, button="left", clickCount=1)
    zoomed = labels(opened)
    assert zoomed != before
    assert "10\u202f000" in before
    assert "10\u202f000" not in zoomed
    assert not opened.run(f"[...{LOSS}.querySelectorAll('.tools button')][0].hidden")
    for count in (1, 2):
        opened.mouse("Pressed", *start, button="left", clickCount=count)
        opened.mouse("Released", *start, button="left", clickCount=count)
    assert labels(opened) == before


def test_wheel_zooms_a_figure_once_it_is_clicked(opened: Browser) -> None:
    before, middle = curve(opened), place(opened, 0.6, 0.5)
    opened.mouse("Wheel", *middle, deltaX=0, deltaY=-1)  # too little to scroll the figure away
    assert curve(opened) == before
    opened.mouse("Pressed", *middle, button="left", clickCount=1)
    opened.mouse("Released", *middle, button="left", clickCount=1)
    opened.mouse("Wheel", *middle, deltaX=0, deltaY=-120)
    assert curve(opened) != before


def test_keyboard_reads_zooms_and_resets(opened: Browser) -> None:
    opened.run(f"{LOSS}.querySelector('.plot svg').focus({{preventScroll: true}})")
    before = labels(opened)
    opened.press("ArrowRight")
    assert "steps: 50" in opened.run(f"{LOSS}.querySelector('.readout').innerText")
    opened.press("+")
    assert labels(opened) != before
    opened.press("0")
    assert labels(opened) == before


def test_logarithmic_axes(opened: Browser) -> None:
    before = labels(opened)
    assert press_button(opened, "log x") == "true"
    assert "100" in labels(opened)
    assert "100" not in before
    assert press_button(opened, "log y") == "true"
    assert press_button(opened, "log y") == "false"
    assert press_button(opened, "log x") == "false"
    assert labels(opened) == before


def test_the_legend_switches_a_temperature_everywhere(opened: Browser) -> None:
    count = "document.querySelectorAll('.data [data-key=T0]').length"
    before = opened.run(count)
    assert before > 15
    entry = "document.querySelector('#page-legend button[data-key=T0]')"
    opened.run(f"{entry}.click()")
    assert opened.run(count) == 0
    assert opened.run(f"{entry}.getAttribute('aria-pressed')") == "false"
    opened.run(f"{entry}.click()")
    assert opened.run(count) == before
    local = "document.querySelector('#figure-average-loss .legend button')"
    points = "document.querySelectorAll('#figure-average-loss .data .marker').length"
    shown = opened.run(points)
    opened.run(f"{local}.click()")
    assert opened.run(points) == shown - 2  # of this run, at two temperatures


def test_paper_is_light_static_and_complete(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.problems.clear()
    browser.open(page, dark=True)
    browser.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert browser.run("[...document.querySelectorAll('details')].every(node => node.open)")
    browser.send("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    assert browser.run("getComputedStyle(document.documentElement).getPropertyValue('--card')").strip() == "#ffffff"
    browser.send("Emulation.setEmulatedMedia", media="", features=[])
    assert browser.problems == []
