"""A run in pieces: measurements of several runs put together, and a page of which a part is made anew."""

import json

from . import report
from .measure import Cell, Sample, Workload


def load(paths):
    """The workloads of several `--json` files: the samples of a cell are put together. What the machine was like is taken
    from the last file."""
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
    """How many rounds every cell took part in (but those that failed)."""
    counts = [len(cell.samples) for workload in workloads for cell in workload.cells if not cell.failure]
    return min(counts, default=0)


def update(page, about, workloads, verdicts):
    """`page` with the tables and targets of these workloads made anew."""
    measured = "Measured {date}, {cpu}, TCP {congestion} where a program does not choose, load before: {load:.1f}.\n".format(**about)
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
            # Its other rows have been made with the first.
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
    """The workload that a row of targets is about."""
    return line.split("|")[1].strip() if line.startswith("|") and line.count("|") == 8 else None


def replace_section(page, title, text):
    before, found, after = page.partition(f"{title}\n")
    if not found:
        return f"{page.rstrip()}\n\n{text.rstrip()}\n"
    _, heading, rest = after.partition("\n## ")
    return before + text.rstrip() + "\n" + (f"\n## {rest}" if heading else "")
