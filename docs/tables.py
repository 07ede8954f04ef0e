"""Write the tables of the documentation from the JSON files that they come from.

    python docs/tables.py            # rewrite the tables
    python docs/tables.py --check    # exit with 1 if a table is not what the files give

A table stands between the lines `<!-- table KIND FILE... -->` and `<!-- end of table -->`. KIND is

    summary    one line for each reproduction: the paper's claim, the verdict, and the worst row with its reason
    rows       all rows of one reproduction; with a third word, those whose quantity contains it
    failures   the rows that fail, with their reasons
    architectures    differences from hybrid Monte Carlo
    balanced   averages of balanced Langevin, alongside its references; with a third word, another part of the file
    equal_time biases and diffusion of samplers in equal time
    sabotage   verdicts of the certificate on wrong samplers, or on correct ones
    steps, against_peers, growth    tables of benchmarks/tables.py from a file of the benchmark
"""

import json
import re
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/certificate.md", "docs/method.md", "docs/models.md", "docs/reproductions.md", "docs/performance.md")
FIGURES = {
    "noise": ("3a-c", "the mini-batch noise is Gaussian and white, and its correlations vanish in the total noise"),
    "thermodynamics": ("3d", "pL and hMC have the same averages at all temperatures"),
    "performance": ("4, Table A1", "pL diffuses faster than hMC in large networks, slower in small ones"),
    "variants": ("A.1", "pL is faster than its naive variant and than hMC with mini-batches"),
    "batch-size": ("A.2", "batches of 1 % of P are faster than smaller ones"),
    "prediction-vs-size": ("A.3", "pL and hMC agree at every size"),
    "suboptimal": ("A.4", "poor settings are slower, and the order of the samplers stays"),
    "generalization": (
        "5, A.5",
        "above a transition samples generalise as well as the best of Adam; below, they overfit",
    ),
    "fashion": ("6", "sampled FashionMNIST networks have test errors below that of Adam, and do not overfit"),
}
TABLE = re.compile(r"(<!-- table (?P<words>[^>]*?) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def markdown(headings: list[str], lines: list[list[str]]) -> str:
    """Return a table."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in [headings, ["---"] * len(headings), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


def number(value: float | None, error: float | None = None) -> str:
    """Return a number with four digits, or with two digits of its standard error."""
    if value is None:
        return ""
    if not error:
        return f"{value:.4g}"
    digits = max(2, len(f"{abs(value) / error:.0f}") + 1) if value else 2
    return f"{value:.{min(digits, 6)}g} ± {error:.2g}"


def deviation(row: Mapping[str, Any]) -> float:
    """Return by how many tolerances a row deviates; infinite for other rows that fail, zero for those not judged."""
    if row["tolerance"] and row["measured"] is not None:
        known = row["published"] if row.get("published_scaled") is None else row["published_scaled"]
        return abs(row["measured"] - (known or 0.0)) / row["tolerance"]
    return 0.0 if row["passed"] else float("inf")


def summary(*files: str) -> str:
    """Return one line for each reproduction, in the order of the paper's figures."""
    lines = []
    for name, (figure, claim) in FIGURES.items():
        path = next((file for file in files if Path(file).stem == name), None)
        if path is None:
            lines.append([f"{figure} ([{name}](#{name}))", claim, "not measured at this scale", "", ""])
            continue
        content = json.loads((ROOT / path).read_text(encoding="utf-8"))
        rows = content["rows"]
        worst = max((row for row in rows if not row["passed"]), key=deviation, default=None)
        text = "" if worst is None else f"{worst['quantity']}: {number(worst['measured'], worst['standard_error'])}"
        text = text.removesuffix(": ")  # there is no value
        text += f". {worst['reason']}" if worst is not None and worst.get("reason") else ""
        judged = [r for r in rows if not r["passed"] or r["tolerance"] is not None or "(at least" in r["quantity"]]
        passed = f"{sum(row['passed'] for row in judged)} of {len(judged)} judged rows pass"
        if left := content["provenance"].get("parts_left"):
            passed += f"; {len(left)} part{'s are' if len(left) > 1 else ' is'} left"
        link = f"[{Path(path).name}](../{path}), {content['provenance']['device']}"
        lines.append([f"{figure} ([{name}](#{name}))", claim, passed, text, link])
    return markdown(["figure", "claim of the paper", "verdict", "worst row", "file"], lines)


def failures(file: str) -> str:
    """Return the rows of one reproduction that fail, on one line for each place and reason."""
    lines: dict[tuple[str, str], list[str]] = {}
    for r in json.loads((ROOT / file).read_text(encoding="utf-8"))["rows"]:
        if not r["passed"]:
            quantity, ratio, _ = r["quantity"].partition(" over hMC, minus one")
            name, _, where = re.sub(r"(,| at) ", "\n", quantity, count=1).partition("\n")
            known = r["published"] if r.get("published_scaled") is None else r["published_scaled"]
            value = f"{name}{' over hMC, minus one:' if ratio else ''} {number(r['measured'], r['standard_error'])}"
            value += f" ({number(known)})" if known is not None else ""
            lines.setdefault((where, r.get("reason") or ""), []).append(value.strip())
    rows = [[where, ", ".join(values), reason] for (where, reason), values in lines.items()]
    return markdown(["rows that fail", "measured (published)", "reason"], rows) if rows else "No row fails.\n"


def rows(file: str, *words: str) -> str:
    """Return the rows of one reproduction whose quantity contains the words."""
    content, chosen = json.loads((ROOT / file).read_text(encoding="utf-8")), " ".join(words)
    lines = []
    for r in content["rows"]:
        if chosen in r["quantity"]:
            values = (number(r["published"]), number(r["measured"], r["standard_error"]), number(r["tolerance"]))
            lines.append([r["quantity"], *values, "yes" if r["passed"] else "**no**"])
    return markdown(["quantity", "published", "measured", "tolerance", "passes"], lines)


def balanced(file: str, part: str = "rows") -> str:
    """Return averages of each sampler, with their standard errors."""
    content, lines = json.loads((ROOT / file).read_text(encoding="utf-8")), []
    for r in content[part]:
        found = [r.get(k) for k in ("loss", "squared_norm", "error", "virial_temperature")]
        averages = ["" if f is None else number(f["mean"], f["standard_error"]) for f in found]
        size = str(r.get("num_weights", content["provenance"]["num_weights"]))
        lines.append([size, r["sampler"].replace("_", " "), number(r["temperature_ratio"]), *averages])
    return markdown(["N", "sampler", "ratio", "loss", "|w|²", "error", "virial temperature / T"], lines)


def architectures(file: str) -> str:
    """Return the relative differences of loss and |w|² for each network."""
    content, lines = json.loads((ROOT / file).read_text(encoding="utf-8")), []
    for r in content["rows"]:
        found = [r[f"{name}_difference"] for name in ("loss", "squared_norm")]
        percent = [f"{100 * d['relative']:+.1f} ± {100 * d['standard_error']:.1f} %" for d in found]
        lines.append([r["network"], str(r["num_weights"]), f"{r['settings']['temperature']:g}", *percent])
    return markdown(["network", "N", "T", "loss", "|w|²"], lines)


def equal_time(file: str) -> str:
    """Return biases, diffusion and effective samples of each method."""
    lines: list[list[str]] = []
    for r in json.loads((ROOT / file).read_text(encoding="utf-8"))["rows"]:
        biases = [r[f"{name}_bias"] for name in ("loss", "squared_norm")]
        found = [f"{100 * b['relative']:+.2f} ± {100 * b['standard_error']:.2f} %" for b in biases]
        rates = [f"{r[name]['effective_per_second']:.1f}" for name in ("loss", "squared_norm")]
        steps, moved = str(r["steps"]), number(r["diffusion"], r["diffusion_error"])
        lines.append([r["method"], steps, *(found if lines else ["reference"] * 2), moved, *rates])
    headings = [
        "method",
        "steps",
        "bias of the loss",
        "bias of |w|²",
        "D*/N, 1/s",
        "effective losses, 1/s",
        "effective |w|², 1/s",
    ]
    return markdown(headings, lines)


def sabotage(file: str) -> str:
    """Return verdicts of the certificate, with true errors where they are known."""

    def error(row: Mapping[str, Any], key: str) -> str:
        if key not in row:
            return ""
        uncertainty = f" ± {100 * row[f'{key}_uncertainty']:.2f}" if f"{key}_uncertainty" in row else ""
        return f"{100 * row[key]:+.2f}{uncertainty} %"

    lines = []
    for row in json.loads((ROOT / file).read_text("utf-8"))["rows"]:
        if row["name"] == "reference":
            continue
        errors = [error(row, "error_of_loss"), error(row, "error_of_squared_norm")]
        errors.append(f"{row['worst_mean']:.2f}" if "worst_mean" in row else "")
        verdicts = ", ".join(f"{row[word]} {word}" for word in ("passed", "undecided", "failed") if word in row)
        found = ", ".join(dict.fromkeys(name.partition(",")[0] for name in row.get("lines", ())))
        lines.append([row["name"], *errors, row.get("verdict") or verdicts, found])
    return markdown(["run", "error of the loss", "error of |w|²", "worst mean [σ]", "verdict", "lines"], lines)


def made(words: str) -> str:
    """Return the table of a marker."""
    kind, *arguments = words.split()
    own: dict[str, Any] = {
        "summary": summary,
        "rows": rows,
        "failures": failures,
        "balanced": balanced,
        "architectures": architectures,
        "equal_time": equal_time,
        "sabotage": sabotage,
    }
    if kind in own:
        return own[kind](*arguments)
    part = {"steps": "rows", "against_peers": "ratios", "growth": "scaling"}[kind]
    content = json.loads((ROOT / arguments[0]).read_text(encoding="utf-8"))
    return runpy.run_path(str(ROOT / "benchmarks/tables.py"))[kind](content[part]) + "\n"


def updated(text: str) -> str:
    """Return a page with its tables made again."""
    return TABLE.sub(lambda match: match[1] + made(match["words"]), text)


def main() -> int:
    """Rewrite the tables, or check them."""
    stale = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        if updated(text) != text:
            stale = 1
            print(f"{page}: its tables are not those of the files" if "--check" in sys.argv else f"{page}: updated")
            if "--check" not in sys.argv:
                (ROOT / page).write_text(updated(text), encoding="utf-8")
    return stale if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
