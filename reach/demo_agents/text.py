"""Text and Markdown, cut into sections, blocks and sentences. Standard library only, no model.

    document = read_document("# Title\\n\\nDr. Lee came. She left.\\n")
    [s.text for s in document.sentences]      # ['Dr. Lee came.', 'She left.']

Prose is kept: paragraphs, list items, quotes. What is not prose is left out: code (fenced or indented), tables, front
matter, HTML comments, link definitions, lists of links, images, fields and directives of reStructuredText. Headings
become the titles of sections.

Sentence ends are found by rules in the spirit of T. Kiss and J. Strunk, "Unsupervised Multilingual Sentence Boundary
Detection", Computational Linguistics 32(4), 2006: a full stop ends a sentence unless its word is an abbreviation, an
initial or an ordinal, and what follows looks like a start (upper case, a digit, code, or a script without case).
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

# Never the end of a sentence, whatever follows.
_TITLES = frozenset(
    "mr mrs ms mx dr prof rev fr gen sen rep gov capt cpt lt sgt col maj hon pres vs cf e.g i.e eg ie fig figs "
    "eq eqs viz approx ca resp incl excl".split()
)
# Abbreviations only in front of a number: "No. 5", "Jan. 3"; else plain words ("He said no.", "They sat.").
_BEFORE_NUMBER = frozenset(
    "no nos p pp vol ch sec sect art para tab jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
# May end a sentence: only when the next word is a usual first word ("… Ltd. The firm …").
_EITHER_WAY = frozenset(
    "etc inc ltd co corp llc jr sr st al dept est ed eds ave blvd esp a.m p.m ph.d b.sc m.sc".split()
)
_FIRST_WORDS = frozenset(
    "a an the this that these those it its he she they we you i his her their our your there here in on at by for from "
    "to with without after before when while if as because but and or so yet however then thus what who where why how "
    "each every all some no not one two both many most such since until although though".split()
)
_INITIAL = re.compile(r"^[^\W\d_]$")
_ACRONYM = re.compile(r"^(?:[^\W\d_]\.)+[^\W\d_]$")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]*_]*(?=\s|$)|[。！？｡]+[」』”’）]*")  # noqa: RUF001
_OPENERS = "\"'“‘«([*_¿¡"  # noqa: RUF001
_CJK_STOPS = "。！？｡"  # noqa: RUF001
_CODE_INDENTS = ("    ", "\t")
_SPAN = re.compile("\x00(\\d+)\x00")

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_ATX = re.compile(r"^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{2,}\s*$")
_RULE = re.compile(r"^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d{1,9}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(.*)$")
_QUOTE = re.compile(r"^\s{0,3}(?:>[ \t]?)+")
_TABLE_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_LINK_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]{1,200}\]:\s+\S")
_DIRECTIVE = re.compile(r"^\s*\.\. ")
_FIELD = re.compile(r"^:[^:\s][^:\n]{0,60}:(?:\s|$)")
_ONLY_A_LINK = re.compile(r"^!?\[[^\[\]]{0,500}\]\([^()]{0,1000}\)$")

# Lengths are bounded so that no input, however odd, makes these slow.
_KEPT = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|<>~])|(?<!`)(`{1,4})(?!`)(.{1,500}?)(?<!`)\2(?!`)")
_IMAGE = re.compile(r"!\[[^\[\]]{0,300}\](?:\([^()]{0,1000}\)|\[[^\[\]]{0,100}\])")
_LINK = re.compile(r"\[([^\[\]]{0,500})\](?:\([^()]{0,1000}\)|\[[^\[\]]{0,100}\])")
_FOOTNOTE = re.compile(r"\[\^[^\[\]]{1,60}\]")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,300}>")
_AUTOLINK = re.compile(r"<((?:https?|mailto):[^<>\s]{1,500})>")
_EMPHASIS = (
    re.compile(r"\*\*(?=\S)([^*]{1,500}?)(?<=\S)\*\*"),
    re.compile(r"(?<!\w)__(?=\S)([^_]{1,500}?)(?<=\S)__(?!\w)"),
    re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]{1,500}?)(?<=\S)\*(?!\w)"),
    re.compile(r"(?<!\w)_(?=[^\s_])([^_]{1,500}?)(?<=\S)_(?!\w)"),
    re.compile(r"~~(?=\S)([^~]{1,500}?)(?<=\S)~~"),
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: where it stands in the document. All counts begin at 0, lines at 1."""

    text: str
    index: int
    section: int
    position: int
    line: int


@dataclass(frozen=True, slots=True)
class Section:
    """A heading ("" before the first one) and the sentences under it."""

    title: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A text as sections that hold at least one sentence each; `title` is its first heading, or ""."""

    title: str
    sections: tuple[Section, ...]

    @property
    def sentences(self) -> list[Sentence]:
        """All sentences in document order."""
        return [sentence for section in self.sections for sentence in section.sentences]


@dataclass(slots=True)
class _Block:
    kind: str  # "heading" | "prose"
    line: int
    lines: list[str]


def read_document(text: str) -> Document:
    """Cut a text or Markdown document into sections and sentences; any string is accepted."""
    titles: list[str] = [""]
    bodies: list[list[tuple[str, int]]] = [[]]
    for block in _Blocks().read(text.replace("\x00", "").splitlines()):
        joined = _join(block.lines)
        if block.kind == "heading":
            titles.append(plain(joined))
            bodies.append([])
        else:
            bodies[-1].extend((sentence, block.line) for sentence in split_sentences(joined))
    sections: list[Section] = []
    index = 0
    for title, body in zip(titles, bodies, strict=True):
        if not body:
            continue
        number = len(sections)
        sentences = [Sentence(words, index + i, number, i, line) for i, (words, line) in enumerate(body)]
        index += len(body)
        sections.append(Section(title, tuple(sentences)))
    return Document(next((title for title in titles if title), ""), tuple(sections))


def split_sentences(text: str) -> list[str]:
    """Cut one paragraph (Markdown inline markup allowed) into plain sentences, in order."""
    masked, spans = _mask(text)
    sentences: list[str] = []
    begin = 0
    for match in _SENTENCE_END.finditer(masked):
        if _is_end(masked, begin, match):
            sentences.append(masked[begin : match.end()])
            begin = match.end()
    sentences.append(masked[begin:])
    restored = (_unmask(sentence, spans).strip() for sentence in sentences)
    return [sentence for sentence in restored if any(letter.isalnum() for letter in sentence)]


def plain(text: str) -> str:
    """The text of one line or paragraph without Markdown markup."""
    masked, spans = _mask(text)
    return _unmask(masked, spans).strip()


def _is_end(text: str, begin: int, match: re.Match[str]) -> bool:
    """Whether the punctuation found by `match` ends the sentence that began at `begin`."""
    mark = match.group()
    if mark[0] in _CJK_STOPS:
        return True
    rest = text[match.end() : match.end() + 60].lstrip()
    following = rest.lstrip(_OPENERS)
    if not following:
        return not rest
    if not _can_begin(following[0]):
        return False
    return mark[0] != "." or mark.startswith("..") or _word_can_end(text[begin : match.start()], following)


def _can_begin(letter: str) -> bool:
    """Whether a sentence can begin so: no lower case, but a digit, code (NUL), or a letter of any other kind."""
    return not letter.islower() and (letter.isalnum() or letter == "\x00" or not letter.isascii())


def _word_can_end(sentence: str, following: str) -> bool:
    """Whether the full stop after this, with `following` behind it, ends a sentence rather than belong to its word."""
    word = (sentence[-40:].split() or [""])[-1].lstrip(_OPENERS)
    lowered = word.lower()
    if lowered in _TITLES:
        return False
    if lowered in _BEFORE_NUMBER:
        return not following[0].isdigit()
    if word.isdigit() and sentence.strip() == word:
        return False  # "1. First …"
    if lowered in _EITHER_WAY or _INITIAL.match(word) or _ACRONYM.match(word):
        next_word = re.match(r"[^\W\d_]+", following)
        return next_word is not None and next_word.group().lower() in _FIRST_WORDS
    return True


def _mask(text: str) -> tuple[str, list[str]]:
    """Strip inline markup; code and escaped signs become `NUL number NUL`, and are returned beside the text."""
    spans: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if match.group(1) in (".", "!"):
            return str(match.group(1))
        spans.append(match.group(1) or match.group(3).strip())
        return f"\x00{len(spans) - 1}\x00"

    text = _KEPT.sub(keep, text.replace("\x00", ""))
    text = _FOOTNOTE.sub("", _LINK.sub(r"\1", _IMAGE.sub("", text)))
    text = _TAG.sub("", _AUTOLINK.sub(r"\1", text))
    for emphasis in _EMPHASIS:
        text = emphasis.sub(r"\1", text)
    return " ".join(html.unescape(text).split()), spans


def _unmask(text: str, spans: list[str]) -> str:
    return _SPAN.sub(lambda match: spans[int(match.group(1))], text) if spans else text


def _join(lines: list[str]) -> str:
    """Hard-wrapped lines as one; between scripts that write no spaces (Chinese, Japanese) none is put in."""
    parts: list[str] = []
    for line in filter(None, (line.strip() for line in lines)):
        if parts and not (is_cjk(parts[-1][-1]) and is_cjk(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


def is_cjk(letter: str) -> bool:
    """Whether a character belongs to a script written without spaces (CJK ideographs, kana, their punctuation)."""
    return "\u3000" <= letter <= "\u9fff" or "\uf900" <= letter <= "\ufaff" or "\uff00" <= letter <= "\uffef"


class _Blocks:
    """Finds the headings and prose blocks of a document, in order; the rest is dropped (see the top of this file)."""

    def __init__(self) -> None:
        self.done: list[_Block] = []
        self._open: _Block | None = None
        self._in_list = False

    def read(self, lines: list[str]) -> list[_Block]:
        """The blocks of these lines."""
        number = _skip_front_matter(lines)
        while number < len(lines):
            skipped = _skip_not_prose(lines, number, in_paragraph=self._open is not None, in_list=self._in_list)
            if skipped > number:
                self._close()
                number = skipped
            else:
                self._line(number + 1, lines[number])
                number += 1
        self._close()
        return self.done

    def _close(self) -> None:
        if self._open is not None:
            self.done.append(self._open)
        self._open = None

    def _line(self, number: int, raw: str) -> None:
        line = _QUOTE.sub("", raw)
        atx = _ATX.match(line)
        item = _ITEM.match(line)
        if self._underlines(line):
            self._close()
            self.done[-1].kind = "heading"
        elif not line.strip() or _RULE.match(line):
            self._close()
        elif atx:
            self._close()
            self._in_list = False
            self.done.append(_Block("heading", number, [atx.group(2) or ""]))
        elif item:
            self._close()
            self._in_list = True
            navigation = _ONLY_A_LINK.match(item.group(2).strip())
            self._open = _Block("prose", number, [] if navigation else [item.group(2)])
        elif self._open is None:
            self._in_list = self._in_list and raw[:1].isspace()
            self._open = _Block("prose", number, [line])
        else:
            self._open.lines.append(line)

    def _underlines(self, line: str) -> bool:
        """Whether this line makes the one line before it a heading."""
        block = self._open
        return block is not None and not self._in_list and len(block.lines) == 1 and _is_underline(block.lines[0], line)


def _skip_front_matter(lines: list[str]) -> int:
    """The first line after YAML front matter, else 0."""
    if lines and lines[0].strip() == "---":
        for number in range(1, min(len(lines), 200)):
            if lines[number].strip() in ("---", "..."):
                return number + 1
    return 0


def _skip_not_prose(lines: list[str], number: int, *, in_paragraph: bool, in_list: bool) -> int:
    """If something that is not prose begins at this line, the first line after it; else `number`."""
    line = lines[number]
    fence = _FENCE.match(_QUOTE.sub("", line))
    if fence and not (in_paragraph and _is_underline(lines[number - 1], line)):
        return _after_fence(lines, number, fence.group(1))
    if line.lstrip().startswith("<!--"):
        return next((n + 1 for n in range(number, len(lines)) if "-->" in lines[n]), len(lines))
    if _is_table(lines[number : number + 2]):
        return next((n for n in range(number, len(lines)) if "|" not in lines[n]), len(lines))
    return number if in_paragraph else _skip_between_paragraphs(lines, number, in_list)


def _skip_between_paragraphs(lines: list[str], number: int, in_list: bool) -> int:
    """The same for what cannot interrupt a paragraph."""
    line = lines[number]
    if _LINK_DEFINITION.match(line) or _FIELD.match(line):
        return number + 1
    if _DIRECTIVE.match(line):
        return _after_indented(lines, number + 1)
    if line.startswith(_CODE_INDENTS) and line.strip() and not in_list:
        end = next((n for n in range(number, len(lines)) if not lines[n].startswith(_CODE_INDENTS)), len(lines))
        return number if _looks_like_prose(lines[number:end]) else end
    return number


def _is_table(lines: list[str]) -> bool:
    """Whether a row and the rule below it begin a table."""
    return len(lines) == 2 and all("|" in line for line in lines) and _TABLE_RULE.match(lines[1]) is not None


def _after_fence(lines: list[str], number: int, mark: str) -> int:
    """The line after the fence that closes `mark`; an open fence runs to the end, as CommonMark says."""
    for n in range(number + 1, len(lines)):
        closing = _FENCE.match(_QUOTE.sub("", lines[n]))
        if closing and closing.group(1).startswith(mark) and not closing.group(2).strip():
            return n + 1
    return len(lines)


def _after_indented(lines: list[str], number: int) -> int:
    """The first line from `number` on that is neither indented nor blank."""
    return next((n for n in range(number, len(lines)) if lines[n].strip() and not lines[n][:1].isspace()), len(lines))


def _looks_like_prose(lines: list[str]) -> bool:
    """Whether an indented block is an old-fashioned indented text rather than code: full words and a full stop."""
    joined = " ".join(lines).strip()
    letters = sum(letter.isalpha() or letter.isspace() for letter in joined)
    return joined.endswith((".", "!", "?", '"')) and len(joined.split()) >= 8 and letters >= 0.9 * len(joined)


def _is_underline(title: str, line: str) -> bool:
    """Whether `line` underlines `title` as a heading: Markdown (=, -) or reStructuredText (also ~ ^ " and others)."""
    match = _UNDERLINE.match(line)
    if match is None or not title.strip():
        return False
    return match.group(1) in "=-" or len(line.strip()) >= len(title.strip())
