"""The rules of words that can be checked: pages of the guide, READMEs, comments, docstrings and help.

    words_test.py            # as a test
    words_test.py --count    # comments with flaws, by folder
"""

import collections
import io
import os
import re
import sys
import tokenize
import unittest

import markdown as md

SENTENCE, CELL, COLUMNS, PAGE, README, OPTION = 30, 120, 5, 150, 120, 12
FIRST = ("What", "Of", "Where", "Those", "Who", "By", "As", "Such", "Nothing")
# Files without an ending that have comments.
SCRIPTS = (".ci/run",)


def pages():
    return [p for p in md.files(".md") if p == "README.md" or p.startswith("tools/guide/") or
            os.path.basename(p) == "README.md"]


def flaws(path):
    text = md.read(path)
    guide = path.startswith("tools/guide/")
    made = path.startswith("tools/guide/reference/commands")
    lines = text.count("\n")
    most = README if path == "README.md" else PAGE if guide else 0
    if most and lines > most:
        yield f"{path}: {lines} lines, at most {most}"
    for kind, number, block in md.blocks(text):
        where = f"{path}:{number}"
        if kind == "row":
            cells = md.cells(block)
            if (guide or path == "README.md") and len(cells) > COLUMNS:
                yield f"{where}: {len(cells)} columns, at most {COLUMNS}"
            for cell in cells:
                if len(md.visible(cell)) > CELL:
                    yield f"{where}: a cell of {len(md.visible(cell))} characters, at most {CELL}: {cell[:60]}"
            texts = cells
        else:
            texts = [block]
        if made:
            continue
        for part in texts:
            for sentence in md.sentences(part):
                count = len(md.words(sentence))
                if count > SENTENCE:
                    yield f"{where}: a sentence of {count} words, at most {SENTENCE}: {sentence[:80]}"
                if re.search(r"\bbehind\b", sentence, re.I):
                    yield f"{where}: \"behind\": say \"after\": {sentence[:80]}"


def cpp_comments(text):
    """(line, text) of each comment; lines of // below each other are one."""
    pattern = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/'
    found = [(m.start(), m[0]) for m in re.finditer(pattern, text) if m[0].startswith("/")]
    lines = []
    for start, comment in found:
        alone = not text[text.rfind("\n", 0, start) + 1:start].strip()
        shown = "\n".join(re.sub(r"^\s*(///?<?|/\*+|\*(?!/))\s?|\s*\*/$", "", line) for line in comment.split("\n"))
        lines.append((text.count("\n", 0, start), alone and comment.startswith("//"), shown))
    yield from joined(lines)


def joined(lines):
    """(line from 1, text) of comments, given (line, may be joined, text)."""
    begin, last, parts = 0, -2, []
    for line, joins, text in lines:
        if parts and not (joins and last == line - 1):
            yield begin + 1, "\n".join(parts)
            parts = []
        if not parts:
            begin = line
        parts.append(text)
        last = line if joins else -2
    if parts:
        yield begin + 1, "\n".join(parts)


def python_comments(text):
    """(line, text) of each comment and docstring."""
    lines, before = [], None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0] - 1
        if token.type == tokenize.COMMENT:
            lines.append((line, not token.line[:token.start[1]].strip(), token.string.lstrip("#! ")))
        elif token.type == tokenize.STRING and before in (None, tokenize.INDENT, tokenize.NEWLINE):
            lines.append((line, False, token.string.lstrip("rbuRBU").strip("\"' \n")))
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.DEDENT):
            before = token.type
    yield from joined(lines)


def shell_comments(text):
    """(line, text) of each comment of a shell script or a CMake file that has its line to itself."""
    found = [(line, re.match(r"\s*#+(?!!)\s?(.*)", content)) for line, content in enumerate(text.split("\n"))]
    yield from joined([(line, True, match[1]) for line, match in found if match])


PARSERS = (((".cc", ".h", ".cu", ".cuh", ".js"), cpp_comments), ((".py",), python_comments),
           ((".sh", ".cmake", "CMakeLists.txt"), shell_comments))


def all_comments():
    """(folder, place, text) of each comment and docstring."""
    for endings, parse in PARSERS + ((SCRIPTS, shell_comments),):
        for path in SCRIPTS if endings == SCRIPTS else md.files(*endings):
            for line, comment in parse(md.read(path)):
                yield os.path.dirname(path), f"{path}:{line}", comment


def comment_flaws(comment):
    """The flaws of a comment or docstring: (kind, sentence)."""
    # Pictures and formulas are indented.
    prose = " ".join(line for line in comment.split("\n") if not line.startswith("   "))
    for number, sentence in enumerate(re.split(r"(?<=[.!?])\s+(?=[A-Z`\"(])", prose.strip())):
        if re.match(rf"({'|'.join(FIRST)})\b", sentence) or (number == 0 and re.match(r"(what|who)\b", sentence)):
            yield "first word", sentence
        if re.search(r"[;.] what (?!(is|are|was|were|the|a|an)\b.*\?)", sentence):
            yield "subject", sentence
        if re.search(r"\bbehind\b", re.sub(r"`[^`]*`", "", sentence), re.I):
            yield "behind", sentence
        if re.search(r"\bso many\b(?!.*\bthat\b)", sentence, re.I):
            yield "so many", sentence


class WordsTest(unittest.TestCase):
    def test_pages(self):
        found = [flaw for path in pages() for flaw in flaws(path)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_comments(self):
        found, count = [], 0
        for _, place, comment in all_comments():
            count += 1
            found += [f"{place}: {kind}: {sentence[:90]}" for kind, sentence in comment_flaws(comment)]
        self.assertEqual(found, [], "\n" + "\n".join(found))
        self.assertGreater(count, 5000)

    def test_help(self):
        """An option takes at most twelve lines of --help, and none lists the profiles."""
        profiles = [os.path.basename(p)[:-5] for p in md.files(".json") if os.path.dirname(p) == "tools/profiles"]
        self.assertGreater(len(profiles), 5)
        options = 0
        for path in md.files(".md"):
            if not path.startswith("tools/guide/reference/commands/"):
                continue
            for option in re.findall(r"^  -\S.*\n(?: {10,}.*\n)*", md.read(path), re.M):
                options += 1
                with self.subTest(page=path, option=option.split("\n")[0].strip()):
                    self.assertLessEqual(option.count("\n"), OPTION)
                    self.assertLessEqual(sum(p in option for p in profiles), 1)
        self.assertGreater(options, 150)

    def test_rules_find_flaws(self):
        """The test itself: one flaw of each kind is found."""
        long = "word " * 31 + "."
        self.assertEqual(len(md.words(md.sentences(long)[0])), 31)
        self.assertEqual(list(cpp_comments("int a;  // What it is\n// Of two\n// lines\n")),
                         [(1, "What it is"), (2, "Of two\nlines")])
        self.assertEqual(list(python_comments('"""Who\nknows."""\nx = "#"  # As is\n')), [(1, "Who\nknows."), (3, "As is")])
        self.assertEqual(list(shell_comments("#!/bin/sh\n# Nothing\n# more\necho\n")), [(2, "Nothing\nmore")])
        for comment, kind in (("What fits.", "first word"), ("what it is", "first word"), ("One. Of two.", "first word"),
                              ("All run; what fits runs first.", "subject"), ("It runs behind\nthe other.", "behind"),
                              ("Waits for so many of them.", "so many")):
            with self.subTest(comment=comment):
                self.assertEqual([k for k, _ in comment_flaws(comment)], [kind])
        for comment in ("Distance from the end, `behind`.", "It has so many rows that it waits.", "Whatever it is.",
                        "A picture:\n    F0 Of What"):
            with self.subTest(comment=comment):
                self.assertEqual(list(comment_flaws(comment)), [])
        self.assertEqual(md.cells("| a \\| b | c |"), ["a \\| b", "c"])
        self.assertEqual(len(md.sentences("One `a.b` is. Two is (so). Three")), 3)


if __name__ == "__main__":
    if "--count" in sys.argv:
        bad, every = collections.Counter(), collections.Counter()
        for name, _, text in all_comments():
            every[name] += 1
            bad[name] += bool(list(comment_flaws(text)))
        for name in sorted(bad):
            if bad[name]:
                print(f"{bad[name]:5} of {every[name]:5}  {name}")
        print(f"{sum(bad.values()):5} of {sum(every.values()):5}  in all")
        sys.exit(0)
    unittest.main()
