"""A small page of every kind, and pictures of it: light and dark, wide and narrow. `make pages`.

    python -m tests.checks.pages [FOLDER] [NAME ...]

FOLDER (build/pages by default) gets the pages and, if a headless Chromium is installed, a PNG file
of each look: NAME-light-1200.png, NAME-dark-420.png and so on. Look at them. A page that exists is
not made again; with names, only these are made and taken. The browser also measures each page as a
phone shows it: how far it runs beyond the window (tables and charts scroll in boxes of their own,
the page does not), how small the letters of its charts are, and what is cut off inside no box. Exit
code 1 if a command fails, a page is wider than its window, or letters are below SMALLEST.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "docs" / "runs"
KERNELS = "tests.tools.check.kernels_to_check"
TINY = (
    "layers=2 heads=2 width=16 context=32 vocab=64 batch=2 warmup=2 data=repeat steps=60"
    " monitor_every=5 plan=qiu-yao lr=0.3"
)
# name -> its page, and the commands that make it: of a study, its results file comes first
PAGES: dict[str, tuple[str, list[str]]] = {
    "trace": ("trace/report.html", ["trace --sample --layer layer4 --out trace"]),
    "sweep": (
        "sweep.html",
        [
            "sweep preset=qiu-yao,fa2-bf16 T=64,128 tile=32,64 seed=0:3 --backward"
            " --out sweep.sqlite",
            "report sweep.sqlite",
        ],
    ),
    "diagnose": ("diagnose/report.html", ["diagnose --sample --out diagnose"]),
    "check": (
        "check/report.html",
        [f"check {KERNELS}:short --claims fa2-bf16 --tokens 40 --features 16 --out check"],
    ),
    "check-good": (
        "check-good/report.html",
        [
            f"check {KERNELS}:good --claims fa2-bf16 --tokens 40 --features 16 --budget 0"
            " --out check-good"
        ],
    ),
    "compare": (
        "compare/report.html",
        ["compare tests.checks.pages:run tests.checks.pages:changed_run --out compare"],
    ),
    "model-budget": (
        "model-budget/report.html",
        ["budget tests.checks.pages:run --plan rms_norm:XC=fp32 --out model-budget"],
    ),
    "check-cast": (
        "check-cast/report.html",
        ["check-cast tests.checks.pages:truncated --format bf16 --out check-cast"],
    ),
    "train": ("train/report.html", [f"train {TINY} --out train", "report train"]),
    "released": ("released/report.html", ["reproduce released"]),
    "alarm": ("alarm/report.html", ["reproduce alarm --draw"]),
    "dose": ("dose/identity.html", ["dose --study identity --seeds 0-2 --out dose"]),
    "kernels": ("kernels/report.html", ["kernels --draw --out kernels"]),
}
KEPT = {
    "released": {"released.sqlite": "released.sqlite"},
    "alarm": {"alarm.sqlite": "alarm.sqlite"},
    "dose": {"dose-identity.sqlite": "dose.sqlite"},
    "kernels": {"kernels-h200.json": "measured.json"},
}
SCHEMES, WIDTHS, TALL = {"light": 1, "dark": 0}, (1200, 390), 12000
SMALLEST = 7.0  # pixels, of letters in charts
# appended to a page: what it measures of itself is its title then
MEASURE = """<script>addEventListener('load',()=>{
const all=document.documentElement,smallest=Math.min(999,...[...document.querySelectorAll('svg')]
.filter(s=>s.getBoundingClientRect().width).flatMap(s=>{
const scale=s.getBoundingClientRect().width/s.viewBox.baseVal.width;
return [...s.querySelectorAll('text')].map(t=>scale*parseFloat(getComputedStyle(t).fontSize))}));
document.title=`measured ${all.scrollWidth-innerWidth} ${smallest.toFixed(1)}`})</script>"""


def truncated(x: np.ndarray) -> np.ndarray:
    """A cast to bfloat16 that cuts off bits where it should round to nearest."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def run() -> tuple[Any, Any]:
    """A run of a small model."""
    from tests.operations.models import small

    return small.llama(), small.tokens()


def changed_run() -> tuple[Any, Any]:
    """Return the same model with two changes of its arithmetic."""
    from tests.operations.models import small

    model, tokens = run()
    return small.with_split_k(small.with_late_cast(model)), tokens


def made(folder: Path, name: str) -> bool:
    """Make a page unless it exists; return whether it is there."""
    page, commands = PAGES[name]
    if (folder / page).exists():
        return True
    for record, own in KEPT.get(name, {}).items():
        (folder / name).mkdir(exist_ok=True)
        shutil.copyfile(RUNS / record, folder / name / own)
    for line in commands:
        print(f"{name}: roundscope {line}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "roundscope", *line.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        (folder / f"{name}.txt").write_text(done.stdout)
    if not (folder / page).exists():
        print(f"{name}: no {page}; {done.stdout.strip()[-600:]}")
    return (folder / page).exists()


def browsed(browser: str, page: Path, width: int, *more: str) -> str:
    """Open a page in a headless browser and return what that printed."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={width},{TALL}",
                *more,
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    return done.stdout


def taken(browser: str, page: Path, stem: str, scheme: str, width: int) -> Path:
    """Take a picture of a whole page, cut below its end, and return its path."""
    out = Path(f"{stem}-{scheme}-{width}.png")
    look = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    browsed(browser, page, width, look, f"--screenshot={out}")
    image = Image.open(out).convert("RGB")
    pixels = np.asarray(image)
    drawn = np.flatnonzero((pixels != pixels[-1, 0]).any((1, 2)))
    image.crop((0, 0, width, min(TALL, int(drawn.max(initial=0)) + 24))).save(out)
    return out


def measured(browser: str, page: Path, width: int) -> tuple[int, float]:
    """Return by how many pixels a page is wider than a window, and its smallest letters in charts.

    The latter are in pixels, 999 of a page without charts.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
        text = browsed(browser, copy, width, "--dump-dom")
    found = re.search(r"<title>measured (-?\d+) ([\d.]+)", text)
    assert found, "the browser ran no script"
    return int(found[1]), float(found[2])


def main() -> int:
    """Make the pages and take their pictures; return the exit code."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/pages").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or list(PAGES)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no chromium here, so no pictures are taken")
    missing = [name for name in names if not made(folder, name)]
    bad = 0
    for name in names if browser else ():
        if name not in missing:
            page = folder / PAGES[name][0]
            for width in WIDTHS:
                for scheme in SCHEMES:
                    print(taken(str(browser), page, str(folder / name), scheme, width))
                beyond, smallest = measured(str(browser), page, width)
                bad += beyond > 0 or smallest < SMALLEST
                print(f"{name}, {width} px: {beyond} px beyond, letters of {smallest} px or more")
    print(f"pages: {len(names) - len(missing)} of {len(names)}, in {folder}")
    return 1 if missing or bad else 0


if __name__ == "__main__":
    sys.exit(main())
