"""Sums up any text or Markdown by its most telling sentences, streamed in document order.

    python -m reach.demo_agents.summarizer [--addr HOST:PORT] [--pace SECONDS]

Request: the text, or JSON {"text": "…", "sentences": 5} (1 to 50; default: the square root of what the text has, from
3 to 12). Answer: the chosen sentences word for word, one to a line, each a delta of its own; progress before that,
part by part. The algorithm and its sources: `ranking.py`; how text becomes sentences: `text.py`.

`--pace` waits that many seconds before each sentence. It is for people who want to watch (the demo uses it, so that a
kill lands in the middle of a task) and makes nothing better; the default is 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reach.demo_agents.payload import DEFAULT_CONCURRENCY, BadRequestError, argument_parser, read_fields
from reach.demo_agents.ranking import Ranker, Scored, default_count, select
from reach.demo_agents.text import read_document

if TYPE_CHECKING:
    from reach import Agent, Task

AGENT_ID = "doc-summarizer"
MOST_SENTENCES = 50
LONGEST_NOTE = 60  # characters of a heading shown in a progress note
SCORING = 0.8  # the share of the work that is scoring; the rest is sending


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a summary: how far it is (0 to 1), what it did, and the sentence it found, if any."""

    fraction: float
    note: str
    sentence: str | None = None


def read_request(payload: bytes, media_type: str) -> tuple[str, int | None]:
    """The text and the number of sentences asked for (None: our choice). Raises `BadRequestError`."""
    fields = read_fields(payload, media_type, "text", {"sentences": int})
    count = fields.get("sentences")
    if count is not None and not 1 <= count <= MOST_SENTENCES:
        raise BadRequestError(f"'sentences' must be from 1 to {MOST_SENTENCES}, not {count}")
    return fields["text"], count


def summary_steps(text: str, count: int | None = None) -> Iterator[Step]:
    """Sum up a text step by step: one step for each part scored, then one for each sentence chosen.

    Raises `BadRequestError` if the text holds no sentence (only code or tables, say).
    """
    document = read_document(text)
    if not document.sections:
        raise BadRequestError(
            "there is no sentence to choose: the text is empty or holds only headings, code and tables"
        )
    ranker = Ranker(document)
    scored: list[Scored] = []
    for number, part in enumerate(ranker.parts, 1):
        scored.extend(ranker.score(part))
        where = f": {part.title[:LONGEST_NOTE]}" if part.title else ""
        yield Step(SCORING * number / len(ranker.parts), f"scored part {number} of {len(ranker.parts)}{where}")
    chosen = select(scored, default_count(len(scored)) if count is None else count)
    for number, sentence in enumerate(chosen, 1):
        done = SCORING + (1 - SCORING) * number / len(chosen)
        yield Step(done, f"sentence {number} of {len(chosen)}", sentence.text)


def build_agent(
    addr: str | None = None,
    *,
    agent_id: str = AGENT_ID,
    instance_id: str | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    pace: float = 0.0,
) -> Agent:
    """The agent, not yet running. `pace`: seconds to wait before each sentence."""
    from reach import Agent, InvalidRequest, Progress

    agent = Agent(
        agent_id,
        agent_type="summarizer",
        capabilities=["summarization"],
        tags=["text"],
        addr=addr,
        instance_id=instance_id,
        max_concurrency=max_concurrency,
    )

    @agent.route()
    @agent.route("task.process")
    def summarize(task: Task) -> Iterator[str | Progress]:
        try:
            text, count = read_request(task.payload, task.media_type)
            for step in summary_steps(text, count):
                if step.sentence is None:
                    yield Progress(step.fraction, step.note)
                    continue
                _wait(pace, task)
                yield step.sentence + "\n"
        except BadRequestError as error:
            raise InvalidRequest(str(error)) from error

    return agent


def _wait(seconds: float, task: Task) -> None:
    """Sleep, but stop as soon as the task is cancelled."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not task.cancelled:
        time.sleep(min(left, 0.05))  # in short steps, so that a cancel is seen soon


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    parser = argument_parser(__doc__, AGENT_ID)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait before each sentence (default: 0)")
    options = parser.parse_args(argv)
    build_agent(
        options.addr,
        agent_id=options.agent_id,
        instance_id=options.instance_id,
        max_concurrency=options.max_concurrency,
        pace=options.pace,
    ).run()


if __name__ == "__main__":
    main()
