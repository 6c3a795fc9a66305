"""Formats the results as Markdown tables."""

HEAD = """Median of {rounds} round(s). Measured {date} on {machine}, kernel {kernel}, {disk} on disk, TCP
{congestion} if a program does not choose. Load before: {load:.1f}.

Programs: {programs}.
"""

TARGETS = """Each target is a ratio: the other program with its best options, divided by Ropewalk with default
options ("as it comes") and with its best options ("at our best").
"""


def render(about, workloads, verdicts):
    """Returns the description of the run, the targets and the tables."""
    machine = f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB"
    programs = ", ".join(f"{name} {version}" for name, version in about["programs"].items()) or "no others"
    lines = [HEAD.format(machine=machine, programs=programs, **{k: about[k] for k in ("rounds", "kernel", "congestion", "disk", "date", "load")})]
    if about["missing"]:
        lines.append(f"Not installed, so not measured: {', '.join(about['missing'])}.\n")
    if verdicts:
        lines += targets_table(verdicts)
    for workload in workloads:
        lines += workload_table(workload)
    return "\n".join(lines).rstrip() + "\n"


def targets_table(verdicts):
    lines = ["## Targets\n", TARGETS]
    lines.append("| workload | against | what | wanted | as it comes | at our best | |")
    lines.append("|---|---|---|---|---|---|---|")
    for v in verdicts:
        word = "met" if v.met_plain else "met at our best" if v.met else "**missed**"
        lines.append(
            f"| {v.workload.title} | {v.peer} | {v.what} | {v.least:.2f} | {number(v.plain)} | {number(v.best)} | {word} |"
        )
    return [*lines, ""]


def workload_table(workload):
    many = workload.files > 1
    ours = workload.best("ours", plain=True)
    head = ["program", "seconds", "MiB/s", *(["files/s"] if many else []), "CPU s", "CPU s/GB", "ratio"]
    lines = [f"## {workload.title[0].upper()}{workload.title[1:]}\n"]
    lines += ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    ran = sorted((cell for cell in workload.cells if cell.samples), key=lambda cell: cell.wall)
    for cell in ran:
        row = [
            (f"**{cell.label}**" if cell.group == "ours" else cell.label)
            + (" (except a failed round)" if cell.failure else ""),
            f"{cell.wall:.2f}",
            f"{workload.size / 2**20 / cell.wall:.0f}",
            *([f"{workload.files / cell.wall:.0f}"] if many else []),
            f"{cell.cpu:.2f}",
            f"{cell.cpu / workload.size * 1e9:.2f}",
            number(cell.wall / ours.wall if ours else None),
        ]
        lines.append("| " + " | ".join(row) + " |")
    for cell in workload.cells:
        if cell.failure and not cell.samples:
            lines.append(f"| {cell.label} | failed |" + " |" * (len(head) - 2))
    return [*lines, ""]


def number(value):
    return "" if value is None else f"{value:.2f}"
