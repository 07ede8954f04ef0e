"""Draw the figures of gallery.md from the programs of that page: `python docs/gallery.py`, two minutes."""

import re
from pathlib import Path
from typing import Any

import matplotlib

PAGE = Path(__file__).with_suffix(".md")

if __name__ == "__main__":
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## "):
        for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            names["figure"] = None
            exec(compile(block, PAGE.name, "exec"), names)
        pictures = re.findall(r"\]\((gallery/\S+\.png)\)", section)
        for picture in pictures:
            width = names["figure"].get_figwidth()
            names["figure"].savefig(PAGE.parent / picture, dpi=min(110, 900 / width), bbox_inches="tight")
            print(picture, (PAGE.parent / picture).stat().st_size // 1000, "kB")
