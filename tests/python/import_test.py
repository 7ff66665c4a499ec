"""Message of `import contraflow` where its compiled half is missing or of another Python."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import contraflow as cf

PACKAGE = os.path.dirname(os.path.abspath(cf.__file__))


def said(folder):
    """The last line of `import contraflow` with the package there."""
    done = subprocess.run([sys.executable, "-c", "import contraflow"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": folder})
    return done.stderr.splitlines()[-1] if done.returncode else "imported"


class ImportTest(unittest.TestCase):
    def test_no_module(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "contraflow")
            shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("_core.*.*"))
            self.assertRegex(said(folder), "^ImportError: contraflow is not built in .*contraflow: cmake --build "
                                           "--preset release --target contraflow_python")
            for name in ("_core.cpython-38-x86_64-linux-gnu.so", "_core.cp38-win_amd64.pyd"):
                path = os.path.join(package, name)
                open(path, "w").close()
                self.assertRegex(said(folder), f"^ImportError: contraflow was built for another Python: it has {name},"
                                               " and this one takes _core.*build it with this one")
                os.remove(path)


if __name__ == "__main__":
    unittest.main()
