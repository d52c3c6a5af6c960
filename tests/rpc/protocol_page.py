"""The tables of docs/protocol.md, made from the contract and from the constants of the server.

`python -m tests.rpc.protocol_page` writes them into the page; a test compares.
"""

import re
from pathlib import Path

from reach.config.sections import Server
from reach.core import pieces, questions, stream
from reach.rpc import agent, callers, server
from reach.rpc import services as rpc_services
from reach.wire import agents, batcher, requests, status, statuses
from reach.wire.status import TABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocol.md"
_VALUE = re.compile(r"((?:  // .*\n)+)  ERROR_REASON_(\w+) = [1-9]\d*;")

_CODE = re.compile(r" (?:[A-Z_]+(?: with RetryInfo)?|Not a gRPC error: .*|The task is REJECTED)\.$")


def meanings() -> dict[str, str]:
    """What error.proto says of each reason, without the code at its end."""
    text = (ROOT / "protos/agentreach/v1/error.proto").read_text()
    found = {}
    for comment, name in _VALUE.findall(text):
        words = " ".join(line.removeprefix("  // ") for line in comment.splitlines())
        found[name] = _CODE.sub("", words)
    return found


def reasons_table() -> str:
    """Every reason with its code, its class and what it means."""
    told = meanings()
    rows = ["| reason | gRPC code | class | meaning |", "|---|---|---|---|"]
    for reason, row in TABLE.items():
        code = f"{row.code.name} + RetryInfo" if row.retry_after_ms is not None else row.code.name
        rows.append(f"| `{reason.name}` | {code} | {row.error_class.name} | {told[reason.name]} |")
    return "\n".join(rows)


def _size(count: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count:,} bytes"


def limits_table() -> str:
    """What is bounded, how, and what comes of going over it."""
    payload = Server().payload_limit
    received = max(payload, batcher.FRAME_BYTES) + server.MESSAGE_MARGIN
    sent = 2 * max(payload, pieces.FOLD_LIMIT) + server.SENT_MARGIN
    days = requests.MAX_DURATION_MS // 86_400_000
    rows = [
        ("payload of a task, its answer", f"{_size(payload)} (`payload_limit` of the welcome)",
         "`PAYLOAD_TOO_LARGE`; an answer: the task fails with `RESULT_TOO_LARGE`"),
        ("a task as a whole, attachments and all", f"payload limit + {_size(requests.SPEC_MARGIN)}",
         "`PAYLOAD_TOO_LARGE`"),
        ("deltas of an attempt, put together", _size(pieces.FOLD_LIMIT), "the task fails with `RESULT_TOO_LARGE`"),
        ("one message to the server", _size(received),
         "the **whole call** ends with RESOURCE_EXHAUSTED, without a reason"),
        ("one message from the server", _size(sent), "set your client's receive limit to at least this"),
        ("a frame of several items", f"{_size(batcher.FRAME_BYTES)} (`frame_limit` of the welcome)",
         "larger ones are taken; keep to it, so that large items do not hold up small ones"),
        ("metadata of a call", "16 KiB", "RESOURCE_EXHAUSTED by gRPC itself"),
        ("ids, names, tags, label names and values", f"{requests.ID_BYTES} bytes of UTF-8, no control characters",
         "`INVALID_FIELD`"),
        ("labels / tags / attachments of a task",
         f"{requests.LABELS} / {requests.TAGS} / {requests.ATTACHMENTS}", "`INVALID_FIELD`"),
        ("durations", f"0 … {days} days", "`INVALID_FIELD`"),
        ("registration", f"{_size(agents.REGISTRATION_BYTES)}, {agents.CAPABILITIES} capabilities", "`INVALID_FIELD`"),
        ("status of a beat", _size(statuses.STATUS_BYTES), "figures per handler are left out"),
        ("checkpoint", _size(agents.CHECKPOINT_BYTES), "`PAYLOAD_TOO_LARGE`"),
        ("question of an agent", _size(questions.PROMPT_BYTES), "`PAYLOAD_TOO_LARGE`"),
        ("an answer to one / all of a task", f"{_size(questions.INPUT_BYTES)} / {_size(questions.INPUTS_BYTES)}",
         "`PAYLOAD_TOO_LARGE`"),
        ("questions of a task", str(questions.QUESTIONS), "the task is given up, `PROTOCOL_VIOLATION`"),
        ("note of progress, `conflict_hint`", _size(agents.NOTE_BYTES), "cut"),
        ("entries of `usage`; they must be finite", str(agents.FIGURES), "left out"),
        ("message of an `Error`", _size(status.MESSAGE_LIMIT), "cut with a mark"),
        ("message of a gRPC status", _size(status.STATUS_MESSAGE_LIMIT), "cut with a mark"),
        ("links on an Attach stream", f"{agent.LINKS:,}", "`RATE_LIMITED`"),
        ("readers on a DispatchStream", f"{callers.OUTSTANDING:,}", "`RATE_LIMITED`"),
        ("unread on a stream", _size(batcher.QUEUE_BYTES), "the stream says what fits, then ends with `RATE_LIMITED`"),
        ("first credit of a reader of events", _size(stream.READER_CREDIT), "it hears no more until it gives credit"),
        ("events held for replay", f"{_size(stream.KEEP_BYTES)} and {stream.KEEP_MS // 1_000} s per task",
         "a `gap` stands for what is no longer held"),
        ("calls that stay open", f"{Server().max_streams:,}", "`TOO_MANY_STREAMS`"),
        ("a key that was revoked or has expired",
         f"noticed within {rpc_services.RECHECK_SECONDS:.0f} s on open streams",
         "`UNAUTHENTICATED`"),
    ]  # fmt: skip
    return "\n".join(["| what | limit | over it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def with_tables(page: str) -> str:
    """The page with both tables as they are now."""
    for name, table in (("reasons", reasons_table()), ("limits", limits_table())):
        head, mark, rest = page.partition(f"<!-- {name}: ")
        assert mark, name
        written, end, rest = rest.partition("<!-- end -->")
        page = f"{head}{mark}{written.partition('-->')[0]}-->\n\n{table}\n\n{end}{rest}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
