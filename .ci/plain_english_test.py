"""Tests of plain_english.py. Run with `python3 -m unittest discover -s .ci -p '*_test.py'`."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import plain_english


def found(name, text):
    return [(number, rule.split(":")[0]) for number, rule, _ in plain_english.findings(pathlib.Path(name), text)]


class Rules(unittest.TestCase):
    def test_comment_that_begins_with_who_is_found(self):
        self.assertEqual(found("a.rs", "let a = 1;\n/// Who waits\n/// is served.\n"), [(2, "sentence begins with 'Who'")])

    def test_second_sentence_is_checked(self):
        self.assertEqual(len(found("a.rs", "// Fine. What came is kept.\n")), 1)

    def test_question_is_allowed(self):
        self.assertEqual(found("a.md", "What is it for?\n"), [])

    def test_blocks_of_different_markers_are_apart(self):
        self.assertEqual(found("a.rs", "//! A module of\n\n// What is here.\n"), [(3, "sentence begins with 'What'")])

    def test_banned_words_are_found_in_comments_and_not_in_code(self):
        self.assertEqual(len(found("a.rs", "// It starts anew.\nlet anew = \"nobody\";\n")), 1)

    def test_code_spans_quotes_and_fences_are_not_prose(self):
        self.assertEqual(found("a.md", "The name `nobody` and \"What now\".\n\n```\nWho is nobody\n```\n"), [])
        self.assertEqual(found("a.rs", "/// ```\n/// let anew = 1;\n/// ```\n"), [])

    def test_items_of_a_list_are_sentences_of_their_own(self):
        self.assertEqual(len(found("a.md", "- One thing\n- Who else\n")), 1)

    def test_long_comments_are_found_and_long_code_tables_and_links_are_not(self):
        long = "x" * 101
        self.assertEqual(len(found("a.rs", f"// {long}\n")), 1)
        self.assertEqual(found("a.rs", f"let a = \"{long}\";\n"), [])
        self.assertEqual(found("a.md", f"| {long} |\n\nSee https://example.org/{long}.\n"), [])

    def test_hash_comments_of_scripts_are_checked(self):
        self.assertEqual(len(found("a.sh", "# Who comes\n")), 1)


if __name__ == "__main__":
    unittest.main()
