"""The guide is a site without warnings; skipped (77) without mkdocs 1.6. CONTRAFLOW_MKDOCS may name the program."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import markdown as md

mkdocs = os.environ.get("CONTRAFLOW_MKDOCS") or shutil.which("mkdocs")
if not mkdocs:
    print("skipped: there is no mkdocs (pip install mkdocs)")
    sys.exit(77)
version = re.search(r"(\d+)\.(\d+)", subprocess.run([mkdocs, "--version"], capture_output=True, text=True, check=True).stdout)
if not version or (int(version[1]), int(version[2])) < (1, 6):
    print("skipped: mkdocs is older than 1.6")
    sys.exit(77)
with tempfile.TemporaryDirectory() as site:
    subprocess.run([mkdocs, "build", "--strict", "-q", "-f", os.path.join(md.ROOT, "tools", "mkdocs.yml"), "-d", site],
                   check=True)
    pages = sum(name.endswith(".html") for _, _, names in os.walk(site) for name in names)
    assert pages > 50, pages
    for _, _, names in os.walk(site):
        assert not [name for name in names if name.endswith((".py", ".sh"))], names
print(f"{pages} pages")
