"""Merges the measurements of several runs, and updates the tables of a page.

The tables of a page stand between two markers. The text outside of them is written by hand and never
changed.
"""

import json

from . import report
from .measure import Cell, Sample, Workload

BEGIN = "<!-- begin: bench/run -->\n"
END = "<!-- end: bench/run -->\n"


def load(paths):
    """Returns the workloads of several `--json` files, with the samples of each cell merged. The
    description of the machine is that of the last file."""
    workloads, about = {}, None
    for path in paths:
        with open(path) as file:
            document = json.load(file)
        about = {"congestion": "unknown", **document["about"]}
        for one in document["workloads"]:
            workload = workloads.setdefault(
                one["key"], Workload(one["key"], one["title"], one["bytes"], one["files"], [], None, None)
            )
            for saved in one["cells"]:
                cell = next((cell for cell in workload.cells if cell.label == saved["label"]), None)
                if cell is None:
                    plain, checksums = saved["plain"], saved["checksums"]
                    cell = Cell(saved["group"], saved["label"], None, plain=plain, checksums=checksums)
                    workload.cells.append(cell)
                cell.failure = cell.failure or saved["failure"]
                cell.samples += [Sample(**sample) for sample in saved["samples"]]
    return list(workloads.values()), about


def rounds(workloads):
    """Returns the number of rounds that every cell took part in, except failed cells."""
    counts = [len(cell.samples) for workload in workloads for cell in workload.cells if not cell.failure]
    return min(counts, default=0)


def update(page, about, workloads, verdicts, whole):
    """Returns `page` with new tables between its markers: all of them if `whole`, otherwise those of
    these workloads and their targets. Raises ValueError if the page has no markers."""
    before, begin, rest = page.partition(BEGIN)
    tables, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no markers {BEGIN.strip()} and {END.strip()}")
    if whole:
        tables = report.render(about, workloads, verdicts)
    else:
        tables = replace_tables(tables, about, workloads, verdicts)
    return f"{before}{begin}\n{tables.strip()}\n\n{end}{after}"


def replace_tables(page, about, workloads, verdicts):
    """Returns `page` with new tables and targets for these workloads."""
    measured = "Measured {date}, {cpu}, TCP {congestion} if a program does not choose, load before: {load:.1f}.\n".format(**about)
    for workload in workloads:
        title, *table = report.workload_table(workload)
        page = replace_section(page, title.strip(), "\n".join([title, measured, *table]))
    rows = {}
    for row in report.targets_table(verdicts)[4:-1]:
        rows.setdefault(title_of(row), []).append(row)
    lines, last = page.splitlines(), None
    kept = []
    inside = False
    for line in lines:
        inside = line == "## Targets" or inside and not line.startswith("## ")
        if inside and title_of(line) in rows:
            group = rows[title_of(line)]
            kept += group
            # The first row of the group has been replaced by all of its rows.
            group.clear()
        else:
            kept.append(line)
        if inside and line.startswith("|"):
            last = len(kept)
    new = [row for group in rows.values() for row in group]
    if last is not None:
        kept[last:last] = new
    return "\n".join(kept).rstrip() + "\n"


def title_of(line):
    """Returns the workload of a row of targets."""
    return line.split("|")[1].strip() if line.startswith("|") and line.count("|") == 8 else None


def replace_section(page, title, text):
    before, found, after = page.partition(f"{title}\n")
    if not found:
        return f"{page.rstrip()}\n\n{text.rstrip()}\n"
    _, heading, rest = after.partition("\n## ")
    return before + text.rstrip() + "\n" + (f"\n## {rest}" if heading else "")
