"""An endpoint on this machine that speaks as much of OpenAI's protocol as is needed."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self


def said(text: str) -> bytes:
    """An answer with this text."""
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


class Endpoint:
    """Answers all calls alike, until it is told another answer: (status, body)."""

    def __init__(self, text: str = " refunds\n") -> None:
        self.answer = 200, said(text)
        self.seen: list[tuple[str, str | None, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, self.headers["Authorization"], body))
                status, answer = outer.answer
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
