"""Formulas of the site as MathML, which browsers typeset without JavaScript.

In pages and docstrings a formula is an indented line of plain text: `M_i = δt²·𝒱_i/(4·(1 − c1²))`. A dot is a product,
a slash is a fraction of its two neighbours, √ is the root of what follows, `_` begins an index.
"""

from __future__ import annotations

import html
import re
import unicodedata
from itertools import accumulate

RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᵏ", "0123456789+-Tk")
ACCENTS = {"\u0304": r"\bar", "\u0302": r"\hat", "\u0303": r"\tilde"}
SYMBOLS = {"←": r"\leftarrow ", "−": "-", "~": r"\sim ", "±": r"\pm ", "½": r"\tfrac{1}{2} ", "…": r"\ldots "}
SYMBOLS |= {"𝒱": r"\mathcal{V}", "𝒯": r"\mathcal{T}", "≤": r"\leq ", "⟨": r"\langle "}
SYMBOLS |= {"⟩": r"\rangle ", "∇": r"\nabla "}
LETTER = r"[^\W\d_⁰¹²³⁴⁵⁶⁷⁸⁹ᵀᵏ½]"
MARK = "[\u0304\u0302\u0303]"
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᵏ]+)|(?P<below>_\w+)|(?P<number>\d+(?:\.\d+)?)"
    rf"|(?P<word>[δΔ]?{LETTER}{MARK}?'?\d?(?!{LETTER})|{LETTER}{{2,}})|(?P<other>.)"
)
FUNCTIONS = ("exp", "ln", "Cov", "Var", "tr", "sign", "max", "min")
OPEN, CLOSE = {"(": ")", "[": "]", "⟨": "⟩"}, ")]⟩"
FORMULA = re.compile(r"[·√⟨←∂∇∫]")
PROSE = re.compile(r"[a-z]{3,} [a-z]{2,}")  # a block with two words in a row is text, not a formula
BLOCK = re.compile(
    r'<div class="(?:language-text )?highlight"><pre>(?:<span></span>)?<code>(.*?)</code></pre></div>', re.DOTALL
)


def typeset(page: str) -> str:
    """Return the HTML of a page with its blocks of formulas as MathML, one line of text a formula."""
    from latex2mathml.converter import convert  # noqa: PLC0415 (a dependency of the site alone)

    def block(found: re.Match[str]) -> str:
        text = html.unescape(re.sub("<[^>]+>", "", found[1]))
        if PROSE.search(text) or not FORMULA.search(text):
            return found[0]
        lines = [convert(latex(line), display="block") for line in text.splitlines() if line.strip()]
        return '<div class="formula">' + "".join(lines) + "</div>"

    return BLOCK.sub(block, page)


def latex(text: str) -> str:
    """Return a formula in plain text, one line, as LaTeX."""
    text = unicodedata.normalize("NFD", text.strip())
    tokens = [(found.lastgroup or "", found[0]) for found in TOKEN.finditer(text)]
    out, position = sequence(tokens, 0, "")
    if position < len(tokens):
        raise ValueError(f"{text!r}: a bracket is closed that was not opened")
    return out


def sequence(tokens: list[tuple[str, str]], position: int, end: str) -> tuple[str, int]:
    """Translate tokens up to the closing bracket `end`; return the LaTeX and the position of that bracket."""
    parts: list[str] = []
    while position < len(tokens) and tokens[position][1] not in (end or CLOSE):
        kind, text = tokens[position]
        if text == "·":
            parts.append(r"\,")
            position += 1
        elif text == "/":
            while parts[-1].isspace():
                parts.pop()
            position += 1 + (tokens[position + 1][0] == "space")
            below, position = factor(tokens, position)
            parts[-1] = rf"\frac{{{bare(parts[-1])}}}{{{bare(below)}}}"
        elif kind == "space":
            parts.append(r"\qquad " if len(text) > 3 else " ")
            position += 1
        else:
            part, position = factor(tokens, position)
            parts.append(part)
    return "".join(parts), position


def factor(tokens: list[tuple[str, str]], position: int) -> tuple[str, int]:
    """Translate one factor: a symbol, a number, a bracket or a root, with its argument, index and exponent."""
    kind, text = tokens[position]
    position += 1
    if text == "√":
        inside, position = factor(tokens, position)
        return rf"\sqrt{{{bare(inside)}}}", position
    if text in OPEN:
        inside, position = sequence(tokens, position, OPEN[text])
        left, right = SYMBOLS.get(text, text), SYMBOLS.get(OPEN[text], OPEN[text])
        tall = r"\frac" in inside or r"\sum" in inside or text == "⟨"
        out = rf"\left{left}{inside}\right{right}" if tall else f"{left}{inside}{right}"
        position += 1
    else:
        out = word(text) if kind == "word" else SYMBOLS.get(text, text)
    while position < len(tokens):
        kind, text = tokens[position]
        if kind == "raised":
            out, position = f"{out}^{{{text.translate(RAISED)}}}", position + 1
        elif kind == "below":
            out = r"\sum " if out == "Σ" else out
            index = text[1:] if len(text) < 4 or text[1] in "Pi" else rf"\text{{{text[1:]}}}"
            out, position = f"{out}_{{{index}}}", position + 1
        elif text == "^":
            power, position = factor(tokens, position + 1)
            out += "^{" + re.sub(r"\\frac{(.*?)}{(.*?)}", r"\1\\text{/}\2", bare(power)) + "}"
        elif text in "([" and re.search(r"[^\W\d_]", out) and tokens[position - 1][0] in ("word", "below"):
            argument, position = factor(tokens, position)
            return out + argument, position
        else:
            break
    return out, position


def word(text: str) -> str:
    """Return a symbol such as `c1`, `δt`, `w̄'` or `Cov`."""
    if text in SYMBOLS:
        return SYMBOLS[text]
    letters, index = re.fullmatch(r"(\D+)(\d?)", text).groups()  # type: ignore[union-attr]
    letters, primes = letters.rstrip("'"), "'" * text.count("'")
    for mark, command in ACCENTS.items():
        if letters.endswith(mark):
            letters = f"{command}{{{letters[:-1]}}}"
    if letters in FUNCTIONS:
        letters = rf"\operatorname{{{letters}}}"
    elif letters.isalpha() and len(letters) > 1 and letters[0] not in "δΔ":
        letters = rf"\text{{ {letters} }}"
    return letters + primes + (f"_{{{index}}}" if index else "")


def bare(out: str) -> str:
    """Return a factor without the brackets around all of it."""
    plain = out.replace(r"\left(", "(").replace(r"\right)", ")")
    depths = list(accumulate({"(": 1, ")": -1}.get(character, 0) for character in plain))
    if not plain.startswith("(") or 0 in depths[:-1]:
        return out
    return out[len(r"\left(") : -len(r"\right)")] if out.startswith(r"\left") else out[1:-1]
