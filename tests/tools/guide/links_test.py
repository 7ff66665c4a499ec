"""Every relative link of every Markdown file leads to a file and a heading that are there."""

import os
import re
import unittest

import markdown as md


class LinksTest(unittest.TestCase):
    def test_links(self):
        links = 0
        for path in md.files(".md"):
            text = "\n".join(line for _, line in md.lines_outside_code(md.read(path)))
            text = re.sub(r"``[^`]+``|`[^`]+`", "", text)
            for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", text):
                if "://" in target or target.startswith("mailto:"):
                    continue
                links += 1
                file, _, anchor = target.partition("#")
                to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                with self.subTest(page=path, link=target):
                    self.assertTrue(os.path.exists(os.path.join(md.ROOT, to)), "no such file")
                    if anchor:
                        self.assertIn(anchor, md.anchors(md.read(to)))
                    if path.startswith("tools/guide/") and path != "tools/guide/README.md":
                        self.assertTrue(to.startswith("tools/guide/"), "the site does not have this file: name it in backticks")
        self.assertGreater(links, 200)

    def test_index(self):
        """Each page of the guide is reached from its index."""
        listed = set()
        for page in ("index.md", "reference/commands.md"):
            for target in re.findall(r"\]\(([^)#]+\.md)[^)]*\)", md.read("tools/guide/" + page)):
                listed.add(os.path.normpath(os.path.join("tools/guide", os.path.dirname(page), target)))
        pages = {p for p in md.files(".md") if p.startswith("tools/guide/")}
        self.assertEqual(pages - listed, {"tools/guide/index.md", "tools/guide/README.md"})


if __name__ == "__main__":
    unittest.main()
