#!/usr/bin/env python3
"""Checks comments and documents for sentences that are hard to read.

    .ci/plain_english.py [PATH...]     check these files and directories
    .ci/plain_english.py               check all that `.ci/plain_english.txt` lists

The rules are those of CONTRIBUTING.md, "Words": a sentence has a subject and a verb, so it does not begin with "Who" or
"What" used as a noun; terms are those of the field; comments and documents wrap at 100 columns. The exit code is 1 if
there is a finding, and each finding is one line: file, line number, rule, text.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / ".ci" / "plain_english.txt"
WIDTH = 100

# Sentences that begin with one of these are findings unless they end as a question.
NOUNS = re.compile(r"(?:^|(?<=[.:;!?] ))(Who|Whoever|Whose|Whom|What|Whatever)\b[^.?!]*([.?!]|$)")

# Pattern -> what to write instead.
BANNED = {
    r"\banew\b": "again; restart",
    r"\b(?:go|goes|going|gone|went) on with\b": "resume; continue",
    r"\bof ours\b": "a Ropewalk peer; our",
    r"\b(?:nobody|somebody)\b": "no client, a user: name it",
    r"\bwhoever\b": "the client that",
    r"\btold\b": "reported; configured",
    r"\bculprits?\b": "the command that failed",
    r"\bknobs?\b": "setting; stream control",
    r"\bbit(?:e|es)\b(?! of)": "chunk; range",
    r"\bput back\b": "requeue",
    r"\bgive(?:s|n)? up on\b": "abandon",
}
BANNED = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in BANNED.items()}

COMMENT = re.compile(r"^\s*(//[/!]?|#)(?: |$)(.*)$")
URL = re.compile(r"https?://\S+")


def blocks(path, lines):
    """Yields (first line number, text) of each comment block, or of each paragraph of a document."""
    start, words = 0, []
    fenced = False
    kind = None
    for number, line in enumerate(lines, 1):
        if path.suffix == ".md":
            if line.lstrip().startswith("```"):
                fenced = not fenced
                text, marker = None, None
            elif fenced or not line.strip() or line.startswith(("    ", "|", "#", "<")):
                text, marker = None, None
            else:
                item = re.match(r"^\s*(?:[-*+]|\d+\.) +", line)
                text, marker = line.strip(), "text"
                if item:
                    text, marker = line[item.end():].strip(), ("item", number)
                elif isinstance(kind, tuple):
                    marker = kind
        else:
            match = COMMENT.match(line)
            if match and (path.suffix == ".rs") == match.group(1).startswith("/"):
                text, marker = match.group(2).strip(), match.group(1)
                if text.startswith("```"):
                    fenced = not fenced
                    text, marker = None, None
                elif fenced or not text:
                    text, marker = None, None
            else:
                fenced = False
                text, marker = None, None
        if marker != kind and words:
            yield start, " ".join(words)
            words = []
        kind = marker
        if text is not None:
            if not words:
                start = number
            words.append(text)
    if words:
        yield start, " ".join(words)


def findings(path, content):
    """Yields (line number, rule, text) for one file."""
    lines = content.splitlines()
    for number, text in blocks(path, lines):
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"", lambda quoted: "x" * len(quoted.group()), text)
        for match in NOUNS.finditer(plain):
            if match.group(2) != "?":
                yield number, f"sentence begins with '{match.group(1)}'", text[match.start():][:80]
        for pattern, instead in BANNED.items():
            for match in pattern.finditer(plain):
                begin = max(match.start() - 30, 0)
                yield number, f"'{match.group()}': write {instead}", text[begin:match.end() + 30]
    fenced = False
    for number, line in enumerate(lines, 1):
        if path.suffix == ".md":
            if line.lstrip().startswith("```"):
                fenced = not fenced
            measured = not fenced and not line.startswith(("|", "    "))
        else:
            match = COMMENT.match(line)
            measured = bool(match) and (path.suffix == ".rs") == match.group(1).startswith("/")
        if measured and len(URL.sub("", line)) > WIDTH:
            yield number, f"{len(line)} columns, at most {WIDTH}", line.strip()[:60]


def files(places):
    """The checked files beneath the places, in order."""
    for place in places:
        place = ROOT / place
        if place.is_dir():
            for suffix in ("rs", "md", "py", "sh"):
                yield from sorted(place.rglob(f"*.{suffix}"))
        else:
            yield place


def main(arguments):
    places = arguments or [line.strip() for line in LIST.read_text().splitlines()
                           if line.strip() and not line.startswith("#")]
    count = 0
    for path in files(places):
        for number, rule, text in findings(path, path.read_text(errors="replace")):
            count += 1
            print(f"{path.resolve().relative_to(ROOT)}:{number}: {rule}: {text}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
