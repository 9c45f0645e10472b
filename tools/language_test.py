#!/usr/bin/env python3
"""tools/language refuses what CONTRIBUTING.md says, in each kind of file, and nothing else. That the tree itself passes
is checked by `tools/lint --fast`, which tools/test runs."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import tempfile
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "language"))
LOADER = importlib.machinery.SourceFileLoader("language", TOOL)
language = importlib.util.module_from_spec(importlib.util.spec_from_loader("language", LOADER))
LOADER.exec_module(language)

# One sentence for each rule, and the words that the refusal quotes.
REFUSED = [
    ("The rank sends when he is ready.", "he"),
    ("The worker and its peer: she waits for her.", "her"),
    ("It waits for ever.", "for ever"),
    ("It waits forever.", "forever"),
    ("The worker sent a Mark that is none.", "that is none"),
    ("Returns 0 if there is none.", "there is none"),
    ("This is no envelope.", "is no envelope"),
    ("These were no workers.", "were no workers"),
    ("The thread looks at the ring.", "looks"),
    ("Looking twice is cheap.", "Looking"),
    ("The agent hears of the end.", "hears"),
    ("Each worker tells the others.", "tells"),
    ("The others were told.", "told"),
    ("The rest is no matter.", "no matter"),
    ("Whoever waits is woken.", "Whoever"),
    ("Workers came and went.", "came and went"),
    ("The values are those of tests alone.", "are those of tests alone"),
    ("After its patience it gives up.", "patience"),
    ("The receiver is patient.", "patient"),
    ("A departure is not mourned.", "mourned"),
    ("The group buries its dead.", "buries"),
    ("The page is heated.", "heated"),
]
ACCEPTED = [
    "The name is looked up in the table.",
    "The worker is no longer in the view.",
    "The value is no larger than the limit.",
    "There are no workers.",
    "The header there heads the list.",
    "The heart of the matter, theory and others.",
    "A snooze of 10 ms, a foretaste, a tale.",
]


class Language(unittest.TestCase):
    def refusals(self, path, text):
        """The numbers of the lines that are refused."""
        return sorted({number for number, _ in language.check(path, text)})

    def test_each_word_is_refused(self):
        for sentence, words in REFUSED:
            found = [what for _, what in language.check("a.h", f"// {sentence}\n")]
            with self.subTest(sentence):
                self.assertTrue(any(what.startswith(f'"{words}": write ') for what in found), found)

    def test_each_rule_has_a_sentence(self):
        for pattern, _ in language.WORDS:
            self.assertTrue(any(pattern.search(sentence) for sentence, _ in REFUSED), pattern.pattern)

    def test_plain_sentences_are_accepted(self):
        for sentence in ACCEPTED:
            with self.subTest(sentence):
                self.assertEqual(language.check("a.h", f"// {sentence}\n"), [])

    def test_a_comment_that_opens_without_its_noun(self):
        for word in ("Of", "Which", "Whose", "Whom", "Who", "What"):
            self.assertEqual(language.check("a.h", f"int a;  // {word} the peer sent.\n"),
                             [(1, f'comment opens with "{word}": name its subject first')])

    def test_openings_behind_a_bullet_an_empty_line_and_a_field(self):
        self.assertEqual(self.refusals("a.h", "// - Of the peer.\n"), [1])
        self.assertEqual(self.refusals("a.h", "// The peer.\n//\n// Of the peer.\n"), [3])
        self.assertEqual(self.refusals("a.h", "int a;    // The peer.\nint bc;  // Of the peer.\n"), [2])
        self.assertEqual(self.refusals("a.h", "int a;  // The peer.\nint b;  // Of the peer.\n"), [2])
        self.assertEqual(self.refusals("a.h", "int a;  // The peer.\n// Of the peer.\n"), [2])

    def test_a_continuation_is_not_an_opening(self):
        self.assertEqual(self.refusals("a.h", "// The state of the peer.\n// Of it nothing is kept.\n"), [])
        self.assertEqual(self.refusals("a.h", "int a;  // The state\n        // Of it nothing is kept.\n"), [])

    def test_a_question_and_a_lower_case_word_may_open(self):
        self.assertEqual(self.refusals("a.h", "// Which ranks are here?\n"), [])
        self.assertEqual(self.refusals("a.h", "// Which ranks are\n// here? Those in the view.\n"), [])
        self.assertEqual(self.refusals("a.h", "// Which ranks are here. Is that so?\n"), [1])
        self.assertEqual(self.refusals("a.h", "int a;  // of the peer\n"), [])

    def test_an_opening_counts_in_comments_alone(self):
        self.assertEqual(self.refusals("a.cc", 'f("What the peer sent");\n'), [])
        self.assertEqual(self.refusals("a.md", "What a header costs.\n"), [])

    def test_a_phrase_over_two_lines(self):
        self.assertEqual(self.refusals("a.h", "// It waits for\n// ever.\n"), [1])
        self.assertEqual(self.refusals("a.cc", 'f("It waits for "\n  "ever.");\n'), [1])
        self.assertEqual(self.refusals("a.md", "It waits for\never.\n"), [1])
        self.assertEqual(self.refusals("a.md", "It waits for\n\never.\n"), [])
        self.assertEqual(self.refusals("a.h", "// It waits for\n\n// ever.\n"), [])

    def test_code_is_not_read(self):
        self.assertEqual(self.refusals("a.h", "// Calls `look()` and `he`.\nbool look(int her);\n"), [])
        self.assertEqual(self.refusals("a.cc", '#include "gradwire/base/patience.h"\n'), [])
        self.assertEqual(self.refusals("a.proto", 'import "gradwire/proto/patience.proto";\n'), [])
        self.assertEqual(self.refusals("a.h", "int is_no_matter_of_his_look = 0;  // A number.\n"), [])

    def test_a_quotation(self):
        self.assertEqual(self.refusals("a.h", "// It told us.  language: quoted\n// It told us.\n"), [2])
        self.assertEqual(self.refusals("a.md", "It told us. <!-- language: quoted -->\n"), [])

    def test_cpp(self):
        for path in ("a.h", "a.cc", "a.cu", "a.c", "a.inc", "a.proto"):
            text = 'int a;  // told\n/* one\n * told */\nf("told", R"(one\ntold)", \'t\', 1\'000);  // don\'t: told\n'
            self.assertEqual(self.refusals(path, text), [1, 3, 4, 5], path)

    def test_python(self):
        text = ('#!/usr/bin/env python3\n"""Says what is\ntold."""\nx = "told"\n# told\n'
                'def f():\n    """What it does."""\n    g("it is", "it is told", x)  # told\n')
        for path in ("a.py", "a"):
            self.assertEqual(self.refusals(path, text), [3, 5, 7, 8], path)

    def test_shell(self):
        text = ("#!/usr/bin/env bash\n# told\nlook\necho 'it is told'\n"
                "cat <<'EOF'\nIt waits for\never.\nEOF\nlook \"$her\"  # told\n")
        for path in ("a.sh", "a"):
            self.assertEqual(self.refusals(path, text), [2, 4, 6, 9], path)

    def test_bazel(self):
        text = '# told\ndef f(look):\n    """A rule.\n\n    It is told.\n    """\n    g(name = "he told her")  # told\n'
        for path in ("a.bzl", "a/BUILD.bazel", "a.BUILD", "WORKSPACE"):
            self.assertEqual(self.refusals(path, text), [1, 5, 7], path)

    def test_comments_of_settings(self):
        for path in ("a.yaml", "a.yml", ".bazelrc", ".clang-format"):
            self.assertEqual(self.refusals(path, "# told\nlook: told\nx: 1  # What it is.\n"), [1, 3], path)

    def test_markdown(self):
        text = "# It told\n\nA `look` is told.\n- no\n- matter\n\n```\ntold\n```\n| a | told |\n"
        self.assertEqual(self.refusals("a.md", text), [1, 3, 10])

    def test_other_files_are_not_read(self):
        self.assertEqual(self.refusals("a.json", "// told\n"), [])
        self.assertEqual(self.refusals("a", "told\n"), [])

    def main(self, *arguments):
        """The exit status and the output of the program."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
            return language.main(list(arguments)), out.getvalue() + errors.getvalue()

    def test_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            good, bad, data = (os.path.join(folder, name) for name in ("good.h", "bad.h", "data.h"))
            for path, content in ((good, b"// A rank.\n"), (bad, b"// A rank.\n// It told.\n"), (data, b"// \x8b told\n")):
                with open(path, "wb") as file:
                    file.write(content)
            self.assertEqual(self.main(good, data), (0, ""))
            status, output = self.main(good, bad)
            self.assertEqual(status, 1)
            self.assertIn('bad.h:2: "told": write "reports"', output)
            self.assertIn("language: 1 places to rewrite", output)
            self.assertEqual(self.main(os.path.join(folder, "none.h"))[0], 2)
        self.assertEqual(self.main("--no-such-option")[0], 2)
        self.assertEqual(self.main("--help")[0], 0)


if __name__ == "__main__":
    unittest.main()
