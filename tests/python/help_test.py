"""help() of the package: every keyword has its line, with the text of the command line."""

import inspect
import os
import re
import subprocess
import unittest

import contraflow as cf

TIMES = ["f", "b", "w", "bw", "fb", "comm", "split", "host_link", "overlap"]
# Options that the command line alone has, or says so.
FOREIGN = re.compile(r"--\w|`|sweep|standard error|--help|COLUMN")


def lines_of(thing):
    """The text of each keyword that help() lists, broken lines joined."""
    found = {}
    for line in inspect.getdoc(thing).splitlines():
        entry = re.fullmatch(r"  (\w+)  +(\S.*)", line)
        if entry:
            name, found[entry[1]] = entry.groups()
        elif found and re.fullmatch(r" {6,}\S.*", line):
            found[name] += " " + line.strip()
    return found


def options_of(command):
    """The text of each option in --help, by its keyword."""
    shown = subprocess.run([os.environ["CONTRAFLOW"], command, "--help"], check=True, capture_output=True,
                           text=True, env={**os.environ, "COLUMNS": "100"}).stdout
    found = {}
    for line in shown.splitlines():
        entry = re.match(r"  (?:-\w,)?--([\w-]+)(?: .*?)?(?:  +|$)(.*)", line)
        if entry:
            name = entry[1].replace("-", "_")
            found[name] = entry[2]
        elif found:
            found[name] += " " + line.strip()
    return {{"for": "for_"}.get(name, name): text.strip() for name, text in found.items()}


class HelpTest(unittest.TestCase):
    def test_every_keyword_has_its_line(self):
        for function in (cf.compile, cf.compare, cf.plan):
            lines, options = lines_of(function), options_of(function.__name__)
            self.assertEqual(sorted(lines), sorted(inspect.signature(function).parameters))
            for name, text in lines.items():
                self.assertNotRegex(text, FOREIGN, name)
                self.assertLessEqual(max(map(len, inspect.getdoc(function).splitlines())), 97)
                # The words are those of --help, but for names of options and what is left out.
                said = set(re.findall(r"[a-z]{3,}", options[name]))
                here = set(re.findall(r"[a-z]{3,}", text))
                self.assertGreaterEqual(len(said & here), 0.6 * len(said), (name, text, options[name]))
        self.assertIn("memory_limit", lines_of(cf.compile)["offload"])
        self.assertIn("a dict", lines_of(cf.compile)["costs"])

    def test_keywords_of_costs(self):
        for function in (cf.Costs, cf.Plan.simulate, cf.Plan.explain, cf.Plan.from_torch_csv):
            thing = function.__init__ if function is cf.Costs else function
            self.assertEqual(sorted(lines_of(thing)), sorted(TIMES))
            self.assertRegex(lines_of(thing)["comm"], "^a message between neighbouring stages")


if __name__ == "__main__":
    unittest.main()
