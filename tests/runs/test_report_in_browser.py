"""The page in a real browser: every chart is drawn, nothing overflows, in both themes, on phones and on paper."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .report_data import full_page

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
# The page is in a frame, whose width and colour scheme stand for those of a device. It may run no scripts itself.
FRAME = """<!doctype html>
<iframe srcdoc="{page}" style="width: {width}px; height: 900px; color-scheme: {scheme}; border: 0"></iframe>
<pre></pre><script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, all = selector => [...page.querySelectorAll(selector)];
  const style = element => page.defaultView.getComputedStyle(element);
  document.querySelector("pre").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    background: style(page.body).backgroundColor,
    boxes: all(".scroll").map(box => [box.scrollWidth, box.clientWidth]),
    figures: all("figure").map(figure => ({{
      id: figure.id,
      shapes: [...figure.querySelectorAll("path, use")].filter(shape => shape.getBoundingClientRect().width > 0).length,
      labels: [...figure.querySelectorAll("text")].filter(text => text.textContent.trim()).length,
      outside: [...figure.querySelectorAll("text")].filter(text => {{
        const box = text.getBoundingClientRect(), frame = figure.getBoundingClientRect();
        return box.left < frame.left || box.right > frame.right;
      }}).length,
      colour: style(figure.querySelector("text")).fill,
    }})),
  }});
}};</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; apt-get install chromium, or set CHROMIUM")


def run(tmp_path: Path, *arguments: str) -> str:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (320, "dark")])
def test_every_chart_is_drawn_and_nothing_overflows(tmp_path: Path, width: int, scheme: str) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=html.escape(full_page()), width=width, scheme=scheme), encoding="utf-8")
    shown = run(tmp_path, "--window-size=1500,950", "--dump-dom", frame.as_uri())
    (found,) = re.findall(r"<pre>(.*?)</pre>\s*<script>", shown, flags=re.S)
    seen: dict[str, Any] = json.loads(html.unescape(found))
    assert seen["width"] <= width
    assert seen["background"] == ("rgb(20, 22, 26)" if scheme == "dark" else "rgb(251, 251, 249)")
    if width == 1400:
        assert all(inside <= box for inside, box in seen["boxes"])
    assert len(seen["figures"]) == 11
    for figure in seen["figures"]:
        assert figure["shapes"] > 5, figure
        assert figure["labels"] >= 5, figure
        assert figure["outside"] == 0, figure
        assert figure["colour"] == ("rgb(160, 167, 179)" if scheme == "dark" else "rgb(92, 99, 110)")
