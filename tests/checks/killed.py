"""Kill -9 at random moments of commands that write: what is left, and do they then work again?

python -m tests.checks.killed --times 20 --seed 0

After each kill, every JSON file that is there must parse, every page must end, and every picture
and archive must be whole; then the command runs again in the same folder and must succeed.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

KERNEL = (
    "import numpy as np\n\n\ndef cast(x):\n    return x.astype(np.float16).astype(np.float32)\n"
)
SAMPLE = ("--sample", "--layer", "layer4", "--no-budget", "--png", "--record", "rows")
TINY = ("steps=6", "layers=1", "width=16", "heads=1", "context=16", "batch=2", "data=repeat")
COMMANDS = {
    "trace": ("trace", *SAMPLE, "--out", "out"),
    "check-cast": ("check-cast", "mine:cast", "--format", "fp16", "--out", "out"),
    "sweep": ("sweep", "preset=fa2-bf16", "T=64", "N=1", "H=16", "seed=0:40", "--out", "s.sqlite"),
    "train": ("train", *TINY, "--out", "out"),
}
AGAIN = {"train": ("train", "--resume", "out")}  # where the same words are refused


def main() -> int:
    """Run the checks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    asked = parser.parse_args()
    rng, failed = random.Random(asked.seed), 0
    for verb in asked.only:
        whole = timed(verb)
        counts: Counter[str] = Counter()
        for _ in range(asked.times):
            counts[killed(verb, rng.uniform(0.0, whole))] += 1
        failed += sum(n for what, n in counts.items() if what.startswith("FAULT"))
        print(f"{verb}: {whole:.1f} s alone; {dict(counts)}", flush=True)
    return int(failed > 0)


def started(words: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start the command line in a folder."""
    (folder / "mine.py").write_text(KERNEL)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "roundscope", *words]
    return subprocess.Popen(command, cwd=folder, text=True, **pipes)  # type: ignore[call-overload]


def timed(verb: str) -> float:
    """Return the seconds that a command takes here, its second time."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            process = started(COMMANDS[verb], Path(folder))
            _, said = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{verb}: {said}")
    return time.perf_counter() - began


def killed(verb: str, after: float) -> str:
    """Kill a command after some seconds; return what became of its files and of the next run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = started(COMMANDS[verb], folder)
        time.sleep(after)
        process.kill()
        process.communicate()
        if broken := [p.name for p in folder.rglob("*") if p.is_file() and not is_whole(p)]:
            return f"FAULT: half of {', '.join(broken)}"
        words = COMMANDS[verb]
        is_begun = any((folder / "out" / "checkpoints").glob("*.json"))
        again = started(AGAIN.get(verb, words) if is_begun else words, folder)
        _, said = again.communicate()
        if again.returncode:
            return f"FAULT: then {said.strip().splitlines()[-1][:200]}"
        return "resumed or done anew"


def is_whole(path: Path) -> bool:
    """Return whether a file of ours is whole; unfinished ones have another name."""
    if path.name.endswith(".unfinished"):
        return True
    data = path.read_bytes()
    match path.suffix:
        case ".json":
            return isinstance(json.loads(data or b"[]"), dict)
        case ".html":
            return data.rstrip().endswith(b"</html>")
        case ".png":
            return data.endswith(b"IEND\xaeB`\x82")
        case ".npz":
            return zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None
    return True


if __name__ == "__main__":
    sys.exit(main())
