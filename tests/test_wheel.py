"""The wheel: the package and nothing else, with its metadata, and it runs where it is unpacked."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

import pseudolangevin as pl
from tests.test_documents import shortened

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the folder of an unpacked wheel, built from a copy of the sources without network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", command, str(folder)], cwd=source, check=True, capture_output=True)
    (archive,) = folder.glob("*.whl")
    assert archive.name == f"pseudolangevin-{pl.__version__}-py3-none-any.whl"
    with ZipFile(archive) as files:
        files.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    information = f"pseudolangevin-{pl.__version__}.dist-info/"
    built = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/pseudolangevin").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    described = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    assert built == sources | {information + name for name in described}


def test_the_metadata_name_version_and_dependencies(wheel):
    (distribution,) = metadata.distributions(name="pseudolangevin", path=[str(wheel)])
    assert distribution.version == pl.__version__
    required = {re.split(r"[<>=~]", one)[0] for one in distribution.requires or [] if "extra ==" not in one}
    assert required == {"jax", "jaxtyping", "numpy", "optax", "pydantic", "rich", "scipy", "typer", "xarray"}


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [pl.__version__]


COMMANDS = """
import sys
from importlib.metadata import distribution
for name in pl.__all__:
    getattr(pl, name)
print(pl.__file__)
main = distribution("pseudolangevin").entry_points["pseudolangevin"].load()
for sys.argv in (["pseudolangevin", "--version"], ["pseudolangevin", "sample", "--print-config"]):
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
"""


@pytest.mark.slow
def test_the_unpacked_wheel_runs(wheel):
    program = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    environment = os.environ | {"PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", shortened(program, 80) + COMMANDS]
    output = subprocess.run(command, cwd=wheel, env=environment, check=True, capture_output=True, text=True).stdout
    assert "\ncertificate " in output
    assert f"{wheel}/pseudolangevin/__init__.py\n{pl.__version__}\n# A pseudolangevin run" in output
