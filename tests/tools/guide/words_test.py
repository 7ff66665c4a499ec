"""The rules of words that can be checked: pages of the guide, READMEs, and comments.

    words_test.py            # as a test
    words_test.py --count    # comments with a forbidden first word, by folder
"""

import collections
import io
import os
import re
import sys
import tokenize
import unittest

import markdown as md

SENTENCE, CELL, COLUMNS, PAGE, README = 30, 120, 5, 150, 120
FIRST = ("What", "Of", "Where", "Those", "Who", "By", "As", "Such", "Nothing")

# Folders whose comments still break the rule; the list only shrinks.
PENDING_FOLDERS = ("tools/bench",)
# Rooms whose comments say "after"; the list only grows. Of their folders, these are still to be rewritten.
AFTER = ("compiler", "tools")
AFTER_PENDING = ("tools/bench", "tools/planner", "tools/profile")


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
    last = -2
    for found in re.finditer(pattern, text):
        comment = found[0]
        if not comment.startswith("/"):
            continue
        line = text.count("\n", 0, found.start())
        alone = not text[text.rfind("\n", 0, found.start()) + 1:found.start()].strip()
        if comment.startswith("/*") or not (alone and last == line - 1):
            yield line + 1, comment.lstrip("/*<! \n")
        last = line if alone and comment.startswith("//") else -2


def python_comments(text):
    last = -2
    before = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            alone = not token.line[:token.start[1]].strip()
            if not (alone and last == line - 1):
                yield line, token.string.lstrip("#! ")
            last = line if alone else -2
        elif token.type == tokenize.STRING and before in (None, tokenize.INDENT, tokenize.NEWLINE):
            yield line, token.string.lstrip("rbuRBU").lstrip("\"' \n")
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.DEDENT):
            before = token.type


def shell_comments(text):
    last = -2
    for line, content in enumerate(text.split("\n")):
        found = re.match(r"\s*#+!?\s*(.*)", content)
        if found:
            if last != line - 1:
                yield line + 1, found[1]
            last = line


def all_comments():
    """(folder, place, text) of each comment; of // lines below each other the first alone."""
    for endings, parse in (((".cc", ".h", ".cu", ".cuh"), cpp_comments), ((".py",), python_comments),
                           ((".sh",), shell_comments)):
        for path in md.files(*endings):
            folder = os.path.dirname(path)
            for line, comment in parse(md.read(path)):
                yield folder, f"{path}:{line}", comment


def comments():
    """(folder, place, text) of each comment with a forbidden first word, and the number of comments by folder."""
    found, counts = [], collections.Counter()
    for folder, place, comment in all_comments():
        counts[folder] += 1
        if re.match(rf"({'|'.join(FIRST)})\b", comment):
            found.append((folder, place, comment.split("\n")[0][:80]))
    return found, counts


def behind(path):
    """The lines of a source whose comment says "behind"."""
    for number, line in enumerate(md.read(path).split("\n"), 1):
        found = re.search(r"(//|(^|\s)#\s).*", line)
        if found and re.search(r"\bbehind\b", found[0], re.I):
            yield f"{path}:{number}: {found[0].strip()[:80]}"


class WordsTest(unittest.TestCase):
    def test_pages(self):
        found = [flaw for path in pages() for flaw in flaws(path)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_comments(self):
        found, counts = comments()
        here = [f"{place}: {text}" for folder, place, text in found if folder not in PENDING_FOLDERS]
        self.assertEqual(here, [], "\n" + "\n".join(here))
        self.assertGreater(sum(counts.values()), 5000)

    def test_after(self):
        found = [line for path in md.files(".cc", ".h", ".py", ".sh")
                 if path.startswith(AFTER) and not path.startswith(AFTER_PENDING) for line in behind(path)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_rules_find_flaws(self):
        """The test itself: one flaw of each kind is found."""
        long = "word " * 31 + "."
        self.assertEqual(len(md.words(md.sentences(long)[0])), 31)
        self.assertEqual([c for _, c in cpp_comments("int a;  // What it is\n// Of two\n// lines\n")], ["What it is", "Of two"])
        self.assertEqual([c for _, c in python_comments('"""Who knows."""\nx = "#"  # As is\n')], ['Who knows."""', "As is"])
        self.assertEqual([c for _, c in shell_comments("# Nothing\n# more\necho\n")], ["Nothing"])
        self.assertEqual(md.cells("| a \\| b | c |"), ["a \\| b", "c"])
        self.assertEqual(len(md.sentences("One `a.b` is. Two is (so). Three")), 3)


if __name__ == "__main__":
    if "--count" in sys.argv:
        bad, every = comments()
        by_folder = collections.Counter(folder for folder, _, _ in bad)
        for name, number in sorted(by_folder.items()):
            print(f"{number:5} of {every[name]:5}  {name}")
        print(f"{sum(by_folder.values()):5} of {sum(every.values()):5}  in all")
        sys.exit(0)
    unittest.main()
