import unittest

from rig import pieces
from rig.measure import Cell, Sample, Workload

ABOUT = {
    "cpu": "CPU", "cores": 2, "memory_gib": 4, "programs": {"curl": "8"}, "missing": [], "rounds": 3, "kernel": "6",
    "congestion": "cubic", "disk": "ext4", "date": "2026-01-31", "load": 0.5,
}
PAGE = f"""# Title

By hand.

{pieces.BEGIN}
## Targets

Old.

## One

| old |

## Two

| kept |

{pieces.END}
By hand, too.
"""


def workload(title):
    ours = Cell("ours", "ropewalk", None, plain=True, checksums=False)
    ours.samples = [Sample(2.0, 0.5, 0.5)]
    return Workload("key", title, 1 << 20, 1, [ours], None, None)


class Update(unittest.TestCase):
    def test_complete_run_replaces_the_text_between_the_markers_only(self):
        page = pieces.update(PAGE, ABOUT, [workload("one")], [], True)
        self.assertTrue(page.startswith("# Title\n\nBy hand.\n\n" + pieces.BEGIN))
        self.assertTrue(page.endswith(pieces.END + "\nBy hand, too.\n"))
        self.assertIn("| **ropewalk** | 2.00 |", page)
        self.assertNotIn("Old.", page)
        self.assertNotIn("kept", page)

    def test_parts_keep_the_other_tables(self):
        page = pieces.update(PAGE, ABOUT, [workload("one")], [], False)
        self.assertIn("| kept |", page)
        self.assertNotIn("| old |", page)
        self.assertIn("Measured 2026-01-31", page)
        self.assertTrue(page.endswith(pieces.END + "\nBy hand, too.\n"))

    def test_new_workload_is_added_before_the_end_marker(self):
        page = pieces.update(PAGE, ABOUT, [workload("three")], [], False)
        self.assertLess(page.index("## Three"), page.index(pieces.END))

    def test_page_without_markers_is_refused(self):
        with self.assertRaises(ValueError):
            pieces.update("# Title\n", ABOUT, [], [], True)


if __name__ == "__main__":
    unittest.main()
