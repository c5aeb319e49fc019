"""How long the service takes: a warm table, asked by one client and by many at once.

    python studies/latency.py RUN [--seconds 60] [--out latency.md]

RUN is the folder of a run of 'stmaml fit'. The service runs in a process of its own, clients are threads of this one.
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = (1, 10, 100)  # rows asked for
CLIENTS = 32
ALONE = 200  # requests of a single client


def started(run: str) -> tuple[subprocess.Popen, int]:
    """The service and its port, once every program is compiled."""
    command = [sys.executable, "-m", "stmaml", "serve", run, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    port = next(int(found[1]) for line in lines if (found := re.search(r"serving at http://127.0.0.1:(\d+)", line)))
    while asked(http.client.HTTPConnection("127.0.0.1", port), "GET", "/health")[1]["status"] != "ok":
        time.sleep(1)
    return process, port


def asked(connection: http.client.HTTPConnection, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
    text = None if body is None else json.dumps(body)
    # In one piece: sent after its head, a body waits for the other side's acknowledgement.
    connection.connect() if connection.sock is None else None
    head = f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1:{connection.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text or '')}\r\n\r\n"
    connection.sock.sendall((head + (text or "")).encode())
    response = http.client.HTTPResponse(connection.sock, method=verb)
    response.begin()
    return response.status, json.loads(response.read())


def request_of(about: dict[str, Any], count: int) -> dict[str, Any]:
    """Labelled rows as the page begins with, and so many rows to predict."""
    target, rows = about["target"]["name"], about["rows"]
    known = [row for row in rows if row.get(target) is not None]
    plain = [{name: cell for name, cell in row.items() if name != target} for row in rows]
    return {"support": {"rows": known}, "query": {"rows": [plain[i % len(plain)] for i in range(count)]}}


def resident(process: subprocess.Popen) -> float:
    """Memory of the service in MB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def client(port: int, path: str, body: Any, until: float, times: list[float], failures: list[Any]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while time.monotonic() < until:
        began = time.perf_counter()
        try:
            status, said = asked(connection, "POST", path, body)
        except Exception as error:
            failures.append(repr(error))
            return
        times.append(time.perf_counter() - began)
        if status != 200:
            failures.append((status, said))


def row(words: str, times: list[float], failed: int, seconds: float, memory: str = "") -> str:
    p50, p99 = np.percentile(np.array(times) * 1e3, [50, 99])
    return f"| {words} | {len(times)} | {p50:.0f} | {p99:.0f} | {len(times) / seconds:.1f} | {failed} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, default=None)
    flags = parser.parse_args()
    process, port = started(flags.run)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        name = asked(connection, "GET", "/learners")[1]["learners"][0]["name"]
        about, path = asked(connection, "GET", f"/learners/{name}")[1]["material"], f"/learners/{name}/predict"
        lines = ["| requests | number | p50, ms | p99, ms | a second | failed | memory before, after, MB |"]
        lines.append("|---|---|---|---|---|---|---|")
        for count in COUNTS:
            times, failures = list[float](), list[Any]()
            began = time.perf_counter()
            while len(times) < ALONE and not failures:
                client(port, path, request_of(about, count), time.monotonic() + 0.001, times, failures)
            lines.append(
                row(f"one client, {count} row{'s' * (count > 1)}", times, len(failures), time.perf_counter() - began)
            )
        times, failures, before = list[float](), list[Any](), resident(process)
        told = (port, path, request_of(about, 10), time.monotonic() + flags.seconds, times, failures)
        threads = [threading.Thread(target=client, args=told) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        memory = f"{before:.0f}, {resident(process):.0f}"
        lines.append(row(f"{CLIENTS} clients, 10 rows", times, len(failures), flags.seconds, memory))
    finally:
        process.terminate()
        process.wait()
    lines.append(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {failures[:3] or 'no failure'}")
    print("\n".join(lines))
    if flags.out is not None:
        flags.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
