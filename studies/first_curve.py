"""How long a newcomer waits: from an empty environment to the first curve that 'stmaml serve' draws.

    python studies/first_curve.py [--wheel dist/stmaml-*.whl] [--keep FOLDER]

Makes an environment, installs the package with its extra `serve`, starts the service twice, first without and then with
programs that an earlier start has compiled, and asks it as the page does. Prints the seconds of each part."""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
POINTS = {"x": [[0.5, 1.0], [2.5, 1.0], [4.5, 1.0]], "y": [-2.0, 0.0, 2.0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", help="what to install; else the folder of this script's project")
    parser.add_argument("--keep", type=Path, help="environment and cache are made here, and stay")
    flags = parser.parse_args()
    folder = flags.keep or Path(tempfile.mkdtemp(prefix="stmaml-first-"))
    try:
        for words, seconds in measured(folder, flags.wheel or str(ROOT)):
            print(f"{seconds:6.1f} s  {words}", flush=True)
    finally:
        if flags.keep is None:
            shutil.rmtree(folder)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def measured(folder: Path, what: str) -> list[tuple[str, float]]:
    """Each part and its seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([python, "-m", "pip", "install", *quiet, f"{what}[serve]"], check=True)
    installed = time.perf_counter() - began
    found = [("pip install '.[serve]' in a fresh environment", installed)]
    for words in ("first start", "second start"):
        found += [(f"{words}: {part}", seconds) for part, seconds in started(python, folder / "cache").items()]
    return found


def started(python: Path, cache: Path) -> dict[str, float]:
    """Seconds from the command to the page, to the first curve, and until nothing is left to compile."""
    began = time.perf_counter()
    environment = {**os.environ, "STMAML_CACHE": str(cache)}
    command = [str(python), "-m", "stmaml", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd="/")
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        port = next(int(found[1]) for line in lines if (found := re.search(r"127\.0\.0\.1:(\d+)", line)))
        asked(port, "GET", "/")
        seconds = {"page": time.perf_counter() - began}
        learner = next(one["name"] for one in asked(port, "GET", "/learners")["learners"] if one["page"] == "curves")
        while not asked(port, "GET", f"/learners/{learner}")["ready"]:
            time.sleep(0.1)
        asked(port, "POST", f"/learners/{learner}/predict", {"support": POINTS, "query": {"of": "line"}, "samples": 12})
        seconds["first curve"] = time.perf_counter() - began
        while asked(port, "GET", "/health")["status"] != "ok":
            time.sleep(0.2)
        return {**seconds, "all programs compiled": time.perf_counter() - began}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def asked(port: int, verb: str, path: str, body: Any = None) -> Any:
    """What the service answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    text = None if body is None else json.dumps(body)
    connection.request(verb, path, text, {"Content-Type": "application/json"})
    response = connection.getresponse()
    said = response.read()
    if response.status != 200:
        raise SystemExit(f"{path} answered {response.status}: {said[:300]!r}")
    return said if path == "/" else json.loads(said)


if __name__ == "__main__":
    main()
