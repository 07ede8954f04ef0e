"""Execute the notebooks of this folder from top to bottom and store their outputs, without what differs between runs.

python docs/tutorials/execute.py [NAME.ipynb …]
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
MAX_BYTES = 300_000


def execute(path: Path) -> None:
    """Execute one notebook in place."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for !pseudolangevin
    started = time.perf_counter()
    NotebookClient(notebook, timeout=900, kernel_name="python3", coalesce_streams=True).execute()
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for one in cell.outputs:
                if "text" in one:
                    one["text"] = re.sub(r"\x1b\[[0-9;]*m", "", one["text"]).replace("\r\n", "\n")  # colours
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    text = nbformat.writes(notebook) + "\n"
    if len(text.encode()) > MAX_BYTES:
        raise SystemExit(f"{path.name} has {len(text.encode())} bytes with its outputs; make them smaller: {MAX_BYTES}")
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}: {time.perf_counter() - started:.0f} s, {len(text.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    for chosen in [FOLDER / name for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        execute(chosen)
