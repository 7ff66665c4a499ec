"""The package's README and pages are true: their examples run as in a notebook, each in a fresh folder."""

import doctest
import os
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
PAGES = (("python", "README.md"), ("guide", "how-to", "plan-in-python.md"), ("guide", "reference", "python.md"))


class ReadmeTest(unittest.TestCase):
    def test_examples(self):
        for page in PAGES:
            with self.subTest(page=page[-1]), tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                try:
                    failed, tried = doctest.testfile(
                        os.path.join(TOOLS, *page), module_relative=False, optionflags=doctest.ELLIPSIS
                    )
                finally:
                    os.chdir("/")
                self.assertGreater(tried, 4)
                self.assertEqual(failed, 0)


if __name__ == "__main__":
    unittest.main()
