"""Calls an agent from a program without asyncio. Here: the summariser that ships with Agent-Reach.

python -m reach.demo_agents.summarizer &
python examples/sync_client.py README.md
"""

import sys
from pathlib import Path

from reach import SyncClient


def main(path: str) -> None:
    """Sums up a file, once as it comes and once as a whole."""
    text = Path(path).read_text("utf-8")
    with SyncClient() as client:
        for piece in client.stream_text("task.process", text, capability="summarization", timeout=60):
            if piece.restarts:
                print("(again, from the beginning)")
            print(piece, end="", flush=True)

        request = {"text": text, "sentences": 1}
        print("In one sentence:", client.call("task.process", request, capability="summarization", timeout=60))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/sync_client.py FILE")
    main(sys.argv[1])
