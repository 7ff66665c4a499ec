"""The package's README is true: its examples run as in a notebook, in a fresh folder."""

import doctest
import os
import sys
import tempfile
import unittest

README = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "python", "README.md")


class ReadmeTest(unittest.TestCase):
    def test_examples(self):
        readme = os.path.abspath(README)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                failed, tried = doctest.testfile(
                    readme, module_relative=False, optionflags=doctest.ELLIPSIS
                )
            finally:
                os.chdir("/")
        self.assertGreater(tried, 5)
        self.assertEqual(failed, 0)


if __name__ == "__main__":
    unittest.main()
