"""What Ropewalk says: its models and its fluid simulation. Tuners are started by sim/chunks.*."""

import json
import subprocess


class Ours:
    def __init__(self, program: str):
        self.program = program

    def eval(self, entries):
        """[(group, in)] -> [out], by one run of `ropewalk model eval`."""
        lines = "".join(
            json.dumps({"id": str(number), "group": group, "in": given}) + "\n"
            for number, (group, given) in enumerate(entries)
        )
        run = subprocess.run(
            [self.program, "model", "eval"], input=lines, capture_output=True, text=True, check=True, timeout=60
        )
        answers = {entry["id"]: entry["out"] for entry in map(json.loads, run.stdout.splitlines())}
        return [answers[str(number)] for number in range(len(entries))]

    def model(self, rate_bps, packet, window, points):
        """[(N, round trip in ms)] -> [{"goodput", "loss", "physical", "physical_loss", "w"}], packets a millisecond."""
        rate = rate_bps / (8000 * packet)
        entries = []
        for streams, rtt in points:
            given = {"B": rate, "R_ms": rtt, "W_packets": window, "N": streams}
            entries += [("fig2_3", given), ("physical", given)]
        out = self.eval(entries)
        rows = []
        for (streams, rtt), paper, physical in zip(points, out[::2], out[1::2]):
            rows.append(
                {
                    "goodput": paper["goodput"],
                    "loss": paper["loss"],
                    "physical": physical["goodput"],
                    "physical_loss": physical["loss"],
                    "w": min(window, rate * rtt / streams),
                }
            )
        return rows

    def optimum(self, rate_bps, packet, window, rtt):
        """The best number of streams by Eq. (12)."""
        given = {"B": rate_bps / (8000 * packet), "R_ms": rtt, "W_packets": window}
        return self.eval([("optimum", given)])[0]["N_int"]

    def fluid(self, rate_bps, packet, window, rtt, queue, streams, seconds=60):
        """Goodput (packets/ms) and loss of the second half of a fluid run over a drop-tail queue."""
        command = [self.program, "model", "fluid", "-b", f"{rate_bps:.0f}bit/s", "--packet", f"{packet}B"]
        command += ["-g", f"{streams}x{rtt}ms,{window * packet}B", "-q", str(queue), "-t", f"{seconds}s"]
        command += ["--json", "--samples", "600"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        samples = [json.loads(line) for line in run.stdout.splitlines()]
        late = [sample for sample in samples if sample["time_ms"] >= 500 * seconds]
        got = sum(sample["goodput_bps"] for sample in late) / len(late)
        sent = sum(sample["sent_bps"] for sample in late) / len(late)
        lost = sum(sample["loss"] * sample["sent_bps"] for sample in late) / len(late)
        return {"goodput": got / (8000 * packet), "loss": lost / sent}
