"""Text and Markdown to sentences, by cases that are known to be hard."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents.text import plain, read_document, split_sentences

DOCUMENT = """\
---
title: not prose
---
# The *Main* Title

[![build](https://example.org/b.svg)](https://example.org)

First paragraph, hard-wrapped
over two lines. Second sentence of it!

- [Contents](#contents)
- An item with `code.that(has) dots.` inside. And a second sentence.
- [x] A task that is done
  and goes on here.

> A quoted remark. It counts too.

```python
x = "This is code. Not prose."
```

    indented = code.  # Not prose either.

| a | b |
|---|---|
| Cell one. | Cell two. |

<!-- A comment. With sentences.
Over lines. -->

Section two
-----------

Dr. Lee paid 3.50 for version 1.2.3, i.e. very little. She left.

[ref]: https://example.org/x "A title."

***

Done.
"""


def test_markdown_document_by_sections_and_sentences() -> None:
    document = read_document(DOCUMENT)
    assert document.title == "The Main Title"
    assert [(section.title, [s.text for s in section.sentences]) for section in document.sections] == [
        (
            "The Main Title",
            [
                "First paragraph, hard-wrapped over two lines.",
                "Second sentence of it!",
                "An item with code.that(has) dots. inside.",
                "And a second sentence.",
                "A task that is done and goes on here.",
                "A quoted remark.",
                "It counts too.",
            ],
        ),
        (
            "Section two",
            ["Dr. Lee paid 3.50 for version 1.2.3, i.e. very little.", "She left.", "Done."],
        ),
    ]


def test_places_are_numbered() -> None:
    sentences = read_document(DOCUMENT).sentences
    assert [s.index for s in sentences] == list(range(len(sentences)))
    last = sentences[-1]
    assert (last.section, last.position) == (1, 2)
    assert DOCUMENT.splitlines()[last.line - 1] == "Done."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three! Four…", ["One.", "Two?", "Three!", "Four…"]),
        ("No end", ["No end"]),
        ("", []),
        ("... !!! ---", []),
        # Abbreviations, titles, initials, acronyms.
        ("Mr. and Mrs. Smith met Prof. Jones. They talked.", ["Mr. and Mrs. Smith met Prof. Jones.", "They talked."]),
        ("J. R. R. Tolkien wrote it. It is long.", ["J. R. R. Tolkien wrote it.", "It is long."]),
        ("Use e.g. Python or cf. Knuth. Fine.", ["Use e.g. Python or cf. Knuth.", "Fine."]),
        ("He lives in the U.S. The house is big.", ["He lives in the U.S.", "The house is big."]),
        ("The U.S. Army came. It left.", ["The U.S. Army came.", "It left."]),
        ("They sell pens, ink, etc. The shop is old.", ["They sell pens, ink, etc.", "The shop is old."]),
        ("Acme Inc. Germany is small.", ["Acme Inc. Germany is small."]),
        ("We meet at 5 p.m. on Monday. Come.", ["We meet at 5 p.m. on Monday.", "Come."]),
        # Words that are abbreviations only in front of a number.
        (
            "See No. 5 and p. 12 there. He said no. Then he left.",
            ["See No. 5 and p. 12 there.", "He said no.", "Then he left."],
        ),
        ("They sat. Jan. 3 was cold.", ["They sat.", "Jan. 3 was cold."]),
        # Numbers, versions, names of files, addresses.
        ("Pi is 3.14159. That is known.", ["Pi is 3.14159.", "That is known."]),
        ("Version 2. 3 files changed.", ["Version 2.", "3 files changed."]),
        (
            "Read README.md first. See https://a.b/c.d?e=f. Done.",
            ["Read README.md first.", "See https://a.b/c.d?e=f.", "Done."],
        ),
        ("1. First do this. 2. Then that.", ["1. First do this.", "2. Then that."]),
        # Quotes, brackets, ellipses.
        ('"Stop!" he said. "Why?" She ran.', ['"Stop!" he said.', '"Why?"', "She ran."]),
        ("It works (mostly.) Really.", ["It works (mostly.)", "Really."]),
        ("Well... maybe. Or not.", ["Well... maybe.", "Or not."]),
        ("¿Qué? Nada. «Oui.» Non.", ["¿Qué?", "Nada.", "«Oui.»", "Non."]),
        # Scripts without case or without spaces.
        ("これは文です。次の文です！終わり", ["これは文です。", "次の文です！", "終わり"]),  # noqa: RUF001
        ("Это предложение. Это тоже.", ["Это предложение.", "Это тоже."]),
        # Markup: code begins a sentence, though it has no capital.
        ("It is fast. `reach` starts it.", ["It is fast.", "reach starts it."]),
        ("Read the **bold. It ends.** Then [go](https://a.b/c. d).", ["Read the bold.", "It ends.", "Then go."]),
    ],
)
def test_sentence_ends(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("**bold** and *it* and __b__ and _i_ and ~~gone~~", "bold and it and b and i and gone"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("`**kept**` and ``a ` b``", "**kept** and a ` b"),
        ("[text](https://x.y 'title') and [ref][1] and note[^2]", "text and ref and note"),
        ("![alt](i.png)words", "words"),
        ("<b>tag</b> <https://x.y/z> a < b", "tag https://x.y/z a < b"),
        (r"\*not\* &amp; &lt;so&gt;", "*not* & <so>"),
    ],
)
def test_inline_markup_is_taken_off(markup: str, text: str) -> None:
    assert plain(markup) == text


def test_restructured_text() -> None:
    document = read_document(
        "Title\n=====\n\nText here.\n\nSub\n~~~~~\n\n.. code-block:: c\n\n   int x. Y.\n\nMore text.\n\n:field: value\n"
    )
    assert [(s.title, [x.text for x in s.sentences]) for s in document.sections] == [
        ("Title", ["Text here."]),
        ("Sub", ["More text."]),
    ]


def test_fence_that_never_ends_swallows_the_rest() -> None:
    assert [s.text for s in read_document("Before it.\n\n~~~~\ncode. More.\n~~~\nstill code.\n").sentences] == [
        "Before it."
    ]


def test_indented_prose_is_not_code() -> None:
    text = "    It was a dark and stormy night, and nobody was out.\n    The rain fell.\n\n    x = call(y); z = 1;\n"
    assert [s.text for s in read_document(text).sentences] == [
        "It was a dark and stormy night, and nobody was out.",
        "The rain fell.",
    ]


def test_wrapped_chinese_is_joined_without_spaces() -> None:
    assert read_document("这是第一行\n和第二行。\n").sentences[0].text == "这是第一行和第二行。"


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read(text: str) -> None:
    document = read_document(text)
    for section in document.sections:
        assert section.sentences
    for sentence in document.sentences:
        assert sentence.text == sentence.text.strip() != ""
        assert "\x00" not in sentence.text


@settings(deadline=None)
@given(st.text(alphabet="aA1 .!?\n#-*>`~|[]()<>_=:&;\\\t\"'。", max_size=200))
def test_any_markup_is_read(text: str) -> None:
    document = read_document(text)
    assert [s.index for s in document.sentences] == list(range(len(document.sentences)))


@pytest.mark.parametrize(
    "piece",
    ["*", "_", "`", "[", "![", "<", "(", "a. ", "\\", "> ", "1. ", "```\n", "    a\n\n", "|-|\n", "9. 9 ", "#\n"],
)
def test_no_input_is_slow(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.perf_counter()
    read_document(text)
    assert time.perf_counter() - began < 10
