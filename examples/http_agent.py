"""An agent that speaks nothing but HTTP, with Python's standard library alone; the same is a page in any language.

It needs a server (`reach serve`). Start it, then call it by curl:

    curl -s localhost:8800/task/dispatch -d '{"agent_id": "http-agent", "payload": "Ada", "wait_ms": 10000}'

`"method": "count"` streams, `"method": "report"` takes long: it answers 202 and reports when it is done.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REACH = os.environ.get("REACH_HTTP", "http://127.0.0.1:8800")
PORT = int(os.environ.get("PORT", "8950"))
BOOT_ID = uuid.uuid4().hex  # another one each time it starts
LOADED = threading.Event()  # the model, say


def greet(task: dict[str, Any]) -> Any:
    """Answers at once: whatever it returns is the result."""
    return {"result": f"Hello, {task['payload']}!"}


def report(task: dict[str, Any]) -> Any:
    """Takes its time, then reports by itself, to any node."""
    time.sleep(float(os.environ.get("REPORT_SECONDS", "2")))
    said = {**{name: task["report"][name] for name in ("instance_id", "boot_id")}, "result": "It took a while."}
    for _ in range(60):  # the server may be on its way back; to say it twice does no harm
        try:
            return call(task["report"]["path"], {**said, "task_id": task["task_id"], "attempt": task["attempt"]})
        except OSError:
            time.sleep(1)
    return None


class Handler(BaseHTTPRequestHandler):
    """POST is a task, GET is health."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """How it is. Without `ready` it gets no work."""
        self.answer(200 if LOADED.is_set() else 503, {"ready": LOADED.is_set(), "boot_id": BOOT_ID})

    def do_POST(self) -> None:
        """One attempt of one task."""
        task = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if task["method"] == "count":
            self.stream([{"delta": f"{number} "} for number in range(1, 6)] + [{"result": "1 to 5"}])
        elif task["method"] == "report":
            threading.Thread(target=report, args=(task,), daemon=True).start()
            self.answer(202, {})
        else:
            self.answer(200, greet(task))

    def answer(self, status: int, body: Any) -> None:
        """A whole answer."""
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def stream(self, items: list[dict[str, Any]]) -> None:
        """An answer in pieces: one JSON object a line."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for item in items:
            line = json.dumps(item).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def log_request(self, *_: Any) -> None:
        """Says nothing of each request."""


def call(path: str, body: dict[str, Any]) -> Any:
    """One call of ours to the server."""
    request = urllib.request.Request(f"{REACH}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def main() -> None:
    """Serves, registers, loads; until Ctrl-C."""
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}/"
    seconds = float(os.environ.get("LOAD_SECONDS", "0"))
    if not seconds:
        LOADED.set()
    told = call(
        "/agent/register",
        {
            "agent_id": "http-agent",
            "instance_id": os.environ.get("INSTANCE", f"http-agent@{server.server_port}"),
            "boot_id": BOOT_ID,
            "endpoint": endpoint,
            "capabilities": ["greeting"],
            "max_concurrency": 8,
        },
    )
    time.sleep(seconds)  # it gets work when this is over, not before
    LOADED.set()
    print(f"{told['instance_id']} serves at {endpoint}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
