"""Hooks of the documentation site: pages from the root of the repository, public names, notebooks.

- README, CHANGELOG, CONTRIBUTING and SECURITY become pages. Links between them and `docs` are those of the repository;
  files outside of `docs` that a page links to are copied to `files/`.
- `::: pl.NAME` stands for the public name, wherever its module is.
- Formulas in plain text are typeset (docs/formulas.py).
- A notebook becomes a page of Markdown with the outputs that are stored in it. Nothing is executed.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import re
import runpy
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md"}
PAGES |= {f"{name}.md": f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
TYPESET = runpy.run_path(str(ROOT / "docs/formulas.py"))["typeset"]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


class Docstrings(griffe.Extension):
    """Docstrings as the site shows them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Give samplers the arguments that they inherit; name the section `Example:` as griffe does, `Examples:`."""
        if obj.docstring is None:
            return
        if obj.is_class and obj.module.path.startswith("pseudolangevin.samplers."):
            obj.docstring.value = inspect.getdoc(getattr(importlib.import_module(obj.module.path), obj.name)) or ""
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, pictures and files that are not in `docs`."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page, pictures = markdown_of(json.loads(notebook.content_string), Path(notebook.src_uri).stem)
        files.append(File.generated(config, notebook.src_uri + ".md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{Path(notebook.src_uri).parent}/{name}", content=content))
    linked: set[str] = set()
    for file in files.documentation_pages():
        for link in LINK.findall(file.content_string):
            linked.add(target_of(link, file.src_uri))
    for target in sorted(one for one in linked if one.startswith("files/")):
        path = ROOT / target.removeprefix("files/")
        if path.is_file():
            files.append(File.generated(config, target, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with the links and the public names of the site."""
    source = page.file.src_uri
    up = "../" * source.count("/")
    markdown = LINK.sub(lambda found: f"]({up}{target_of(found[1], source)}", markdown)
    markdown = re.sub(r"!\[([^\]]*)\]\(https?:[^)]*\)", r"`\1`", markdown)  # a badge: the site fetches nothing
    return re.sub(r"^::: pl\.(\S+)$", lambda found: entry(found[1]), markdown, flags=re.MULTILINE)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Return a page with formulas, and public names in its signatures: `balanced_langevin(…)`, not its class."""
    if page.file.src_uri.startswith("reference/"):
        package = importlib.import_module("pseudolangevin")
        for name in package.__all__:
            own = getattr(getattr(package, name), "__qualname__", name)
            html = html.replace(
                f'<span class="nf">{own}</span><span class="p">(', f'<span class="nf">{name}</span><span class="p">('
            )
    return TYPESET(html)


def target_of(link: str, source: str) -> str:
    """Return the path on the site of a link in the page `source`, as seen from the root of the site."""
    origin = {site: name for name, site in PAGES.items()}.get(source, f"docs/{source}")
    path = (ROOT / origin).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()
    if path in PAGES:
        return PAGES[path]
    inside = path.removeprefix("docs/")
    if inside != path:
        return f"{inside}.md" if inside.endswith(".ipynb") else inside
    return f"files/{path}"


def entry(name: str) -> str:
    """Return the directive that documents a public name."""
    found: Any = (package := importlib.import_module("pseudolangevin"))
    for part in name.split("."):
        found = getattr(found, part)
    path = found.__name__ if inspect.ismodule(found) else f"{found.__module__}.{found.__qualname__}"
    options = {"heading": f"pl.{name}", "toc_label": name}
    if inspect.isclass(found) and issubclass(found, package.Sampler) and found is not package.Sampler:
        options["members"] = "false"  # they are those of `Sampler`
    return "\n".join([f"::: {path}", "    options:", *(f"      {key}: {value}" for key, value in options.items())])


def markdown_of(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its stored outputs as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        shown = ""
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({name})")
            else:
                shown += "".join(output.get("text", data.get("text/plain", "")))
        if shown:
            parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures
