"""An agent that streams: it counts the words of a text, line by line, and shows most of what the SDK can do.

    python examples/streaming_agent.py

* a generator runs in a thread, so it may block; what it yields goes to the caller at once
* `Progress` says how far it is, an `Answer` at the end is the result in place of the streamed text
* a checkpoint lets the next attempt go on where this one was, if this process dies
* `InvalidRequest` means "ask differently", `AgentError` means "cannot be done": neither is tried again
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from reach import Agent, AgentError, Answer, InvalidRequest, Progress, Task

agent = Agent("word-counter", agent_type="counter", capabilities=["word_count"], max_concurrency=4)


@agent.route("words.count")
def count_words(task: Task) -> Iterator[str | Progress | Answer]:
    """A blocking generator: one delta and one checkpoint for each line."""
    lines = task.text.splitlines()
    if not lines:
        raise InvalidRequest("there is no text to count")
    done, counts = 0, Counter[str]()
    if task.checkpoint:  # an earlier attempt got so far
        saved = json.loads(task.checkpoint)
        done, counts = saved["done"], Counter(saved["counts"])
    for number, line in enumerate(lines[done:], done + 1):
        words = line.lower().split()
        counts.update(words)
        time.sleep(0.1)  # real work would be here
        yield f"line {number}: {len(words)} words\n"
        yield Progress(number / len(lines), f"line {number} of {len(lines)}")
        task.save_checkpoint(json.dumps({"done": number, "counts": counts}).encode())
    if not counts:
        raise AgentError("the text has lines, but no words")
    yield Answer({"words": counts.total(), "most_common": counts.most_common(5)})


@agent.route("words.spell")
async def spell(task: Task) -> AsyncIterator[str]:
    """An asynchronous generator: it runs on the event loop and must not block. Its deltas together are the result."""
    for letter in task.text:
        await asyncio.sleep(0.05)
        yield f"{letter}-"


if __name__ == "__main__":
    agent.run()
