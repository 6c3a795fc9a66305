"""Puts tables into a Markdown file, between <!-- table: NAME --> and <!-- end -->."""

import re
from pathlib import Path


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def fill(path: Path, tables):
    """Replaces each table that is named; a name that the file lacks is an error, for the table would be lost."""
    text = path.read_text()
    for name, content in tables.items():
        pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        text, count = pattern.subn(lambda match: match.group(1) + content + "\n" + match.group(2), text)
        if count != 1:
            raise SystemExit(f"validation: {path} has {count} places for the table {name}")
    path.write_text(text)
