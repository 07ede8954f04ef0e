"""Where the FashionMNIST files are: in a given folder, in Debian's, or fetched with a checksum."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .idx import PARTS, IdxFiles, find_file, read_folder

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Of the package dataset-fashion-mnist."""
SOURCE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"

CONTENTS_SHA256 = {
    "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Of the unpacked files, however they are compressed: Debian packs them anew."""
ARCHIVE_SHA256 = {
    "train-images": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
"""Of the original gzip files, which a download fetches."""


def read_fashion_mnist(folder: str | Path | None, *, download: bool = False) -> IdxFiles:
    """The original images and labels, every file checked against its checksum.

    Args:
        folder: where the files are, or where a download puts them; None is Debian's folder, or the user's cache for
            a download.
        download: fetch the files that are not there yet (needs pooch).
    """
    return read_folder(_locate(folder, download), sha256=CONTENTS_SHA256)


def _locate(folder: str | Path | None, download: bool) -> Path:
    if folder is not None and not download:
        return Path(folder)  # where anything is missing, reading says what
    if folder is None and _is_complete(DEBIAN_FOLDER):
        return DEBIAN_FOLDER
    if download:
        return _download(None if folder is None else Path(folder))
    raise ValueError(
        f"FashionMNIST is not in {DEBIAN_FOLDER}: install the Debian package dataset-fashion-mnist, give the folder "
        "with its four IDX files, or allow the download (download = true)"
    )


def _is_complete(folder: Path) -> bool:
    return all(find_file(folder, part, num_axes) for part, num_axes in PARTS)


def _download(folder: Path | None) -> Path:
    """Fetch what is missing; a file appears under its name only when whole and with the right checksum."""
    pooch: Any
    try:
        pooch = importlib.import_module("pooch")
    except ImportError:
        raise ValueError(
            "download = true needs pooch; install it (`pip install pseudolangevin[download]`), or give a folder"
        ) from None
    target = Path(pooch.os_cache("pseudolangevin")) / "fashion-mnist" if folder is None else folder
    for part, num_axes in PARTS:
        if find_file(target, part, num_axes):
            continue
        name = f"{part}-idx{num_axes}-ubyte.gz"
        try:
            pooch.retrieve(SOURCE + name, known_hash=f"sha256:{ARCHIVE_SHA256[part]}", fname=name, path=target)
        except (OSError, ValueError) as error:  # the network's errors are OSErrors; a wrong checksum is a ValueError
            why = " ".join(str(error).split())
            raise ValueError(f"{name} could not be fetched from {SOURCE}: {why}; give a folder with it") from None
    return target
