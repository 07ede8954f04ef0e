"""Tables of the documentation, made from the committed results."""

import json
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


def test_the_summary_has_a_line_for_every_figure():
    lines = TABLES["summary"]("paper/results/noise.json", "paper/results/thermodynamics.json").splitlines()
    assert len(lines) == 11
    assert "[noise.json](../paper/results/noise.json), NVIDIA H200" in lines[2]
    assert sum("not measured" in line for line in lines) == 7
    assert lines[2].startswith("| 3a-c ([noise](#noise)) | the mini-batch noise is Gaussian")


def test_rows_that_fail_are_listed_with_their_reasons(tmp_path):
    line = {"quantity": "loss at T = 1", "published": 1.0, "published_scaled": 1.1, "standard_error": None}
    line |= {"measured": 2.0, "passed": False, "reason": "The chain is short."}
    ratio = line | {"quantity": "loss at T = 1 over hMC, minus one", "published": None, "published_scaled": None}
    rows = [line, ratio, line | {"passed": True, "reason": None}]
    (tmp_path / "name.json").write_text(json.dumps({"rows": rows}))
    found = TABLES["failures"](str(tmp_path / "name.json")).splitlines()
    assert found[2:] == ["| T = 1 | loss 2 (1.1), loss over hMC, minus one: 2 | The chain is short. |"]
    (tmp_path / "name.json").write_text(json.dumps({"rows": rows[2:]}))
    assert TABLES["failures"](str(tmp_path / "name.json")) == "No row fails.\n"


def test_numbers_have_as_many_digits_as_their_errors_allow():
    number = TABLES["number"]
    assert number(0.3261731, 0.00011) == "0.32617 ± 0.00011"
    assert number(0.3261731) == "0.3262"
    assert number(None) == ""
