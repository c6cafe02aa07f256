"""Old addresses of the site lead to the pages that hold the text now. A hook of mkdocs."""

from pathlib import Path
from typing import Any

# Pages that kept their names and moved from docs/ to a folder.
FOLDERS = {
    "use": "start recipes loader transforms devices frameworks equality troubleshooting".split(),
    "internals": (
        "augmentations changing cuda design image-kernels image-plan one-batch patching "
        "processes ragged-columns release streams threads tokens torch worker-threads"
    ).split(),
    "results": "benchmarks versions".split(),
}
# Pages whose text is in a page with a different name.
RENAMED = {
    "bench": "use/measuring",
    "compare": "use/measuring",
    "gpu/index": "results/gpu/index",
    "image-folder": "use/images",
    "limits": "use/equality",
    "ranks": "use/ranks-and-resuming",
    "report": "use/measuring",
    "resuming": "use/ranks-and-resuming",
    "see": "use/measuring",
    "sequences": "use/text",
    "sequences-collate": "use/text",
    "step": "internals/step",
    "stepper": "use/step",
    "tune": "use/measuring",
    "zero-change": "use/frameworks",
}
STUB = """<!doctype html><meta charset="utf-8"><title>Moved</title>
<meta http-equiv="refresh" content="0; url={page}"><a href="{page}">This page has moved.</a>
"""


def moved_pages() -> dict[str, str]:
    """Return the new page for each old one; both lack their suffix."""
    kept = {name: f"{folder}/{name}" for folder, names in FOLDERS.items() for name in names}
    return kept | RENAMED


def on_post_build(config: Any) -> None:
    """Write a page at each old address that sends the reader on."""
    site = Path(config.site_dir)
    for old, new in moved_pages().items():
        stub = site / f"{old}.html"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(STUB.format(page="../" * old.count("/") + f"{new}.html"))
