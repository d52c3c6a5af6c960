"""Calls agents: once for an answer, once for a stream, once for later.

python examples/hello_agent.py &
python examples/streaming_agent.py &
python examples/call_agent.py [TEXT]
"""

import asyncio
import sys

from reach import Client, ReachError

TEXT = "the quick brown fox\njumps over\nthe lazy dog"


async def main(text: str) -> None:
    """Three ways to give a task."""
    async with Client() as client:  # AGENT_REACH_ADDR, else 127.0.0.1:8900
        # The answer, or the error of the task as an exception.
        print(await client.call(payload="Ada", agent_id="hello", timeout=10))

        # Everything that happens, as it happens. The last event is `complete`, well or not.
        async for event in client.stream("words.count", text, capability="word_count", timeout=60):
            if event.kind == "delta":
                print(event.text, end="")
            elif event.kind == "progress":
                print(f"  {event.fraction or 0:.0%} {event.note}")
            elif event.kind == "attempt_reset":
                print("  (another instance goes on)")
            elif event.result is not None:
                result = event.result
                print(result.data if result.ok else result.error, f"after {result.attempts} attempt(s)")

        # Give it now, fetch it later, from this process or another one.
        handle = await client.submit("words.spell", "later", agent_id="word-counter")
        print("accepted:", handle.task_id)
        print((await client.wait_for_result(handle.task_id, timeout=10)).text)

        # What goes wrong is an error with a class and a reason.
        try:
            await client.call("words.count", "", agent_id="word-counter", timeout=10)
        except ReachError as error:
            print(f"{type(error).__name__}: {error} (retryable: {error.retryable})")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else TEXT))
