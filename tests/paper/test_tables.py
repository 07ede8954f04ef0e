"""Tables of the documentation, made from the committed results."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "docs/tables.py"))


@pytest.mark.parametrize("page", TABLES["PAGES"])
def test_the_documentation_has_the_tables_that_the_files_give(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert TABLES["updated"](text) == text, "run python docs/tables.py"


def test_a_table_between_markers_is_replaced():
    marker = "<!-- table rows paper/results/noise.json KS tests -->\n"
    page = TABLES["updated"](f"before\n\n{marker}old\n<!-- end of table -->\nafter\n")
    lines = page.splitlines()
    assert lines[3] == "| quantity | published | measured | tolerance | passes |"
    assert lines[5].startswith("| share of KS tests with p > 0.05 | 0.946 |")
    assert lines[6:] == ["<!-- end of table -->", "after"]
    assert TABLES["updated"](page) == page
