"""Markdown files of the source, cut into what a reader sees: paragraphs, items, cells, headings, links."""

import os
import re

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def files(*endings):
    """Files of the source below the root, without builds and hidden folders."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not f.startswith("build") and
                            f not in ("__pycache__", "node_modules") and not os.path.exists(os.path.join(folder, f, "pyvenv.cfg")))
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def lines_outside_code(text):
    """(number, line) of each line that is no code: neither fenced nor indented."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def blocks(text):
    """(kind, number of the first line, text) with kind "heading", "text", "item" or "row"."""
    kind, begin, parts = "", 0, []
    after = 0
    for number, line in list(lines_outside_code(text)) + [(len(text), "")]:
        row = line.startswith("|")
        head = line.startswith("#")
        item = re.match(r"\s{0,3}([*-]|\d+\.)\s", line)
        new = not line.strip() or row or head or item or number != after + 1 or kind in ("row", "heading")
        if new and parts:
            yield kind, begin, " ".join(parts)
            parts = []
        if line.strip():
            if not parts:
                kind = "row" if row else "heading" if head else "item" if item else "text"
                begin = number
                line = line[item.end():] if item else line
            parts.append(line.strip())
        after = number


def visible(text):
    """The text as it is read: links by their words."""
    return re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)


def cells(row):
    """The cells of a row, or none if it is the line below the head."""
    parts = [c.strip() for c in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
    return [] if all(re.fullmatch(r":?-+:?", c) for c in parts) else parts


def sentences(text):
    text = re.sub(r"``[^`]+``|`[^`]+`", "code", visible(text))
    return [s for s in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*\"(\[$]|code)", text) if s.strip()]


def words(sentence):
    return [w for w in re.split(r"\s+", sentence) if re.search(r"\w", w)]


def anchors(text):
    """The anchors of a page, as GitHub and mkdocs name its headings."""
    found = {}
    names = set()
    for kind, _, heading in blocks(text):
        if kind != "heading":
            continue
        plain = re.sub(r"[`*]", "", visible(heading.lstrip("#").strip())).lower()
        name = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain))
        count = found.get(name, -1) + 1
        found[name] = count
        names.add(name if count == 0 else f"{name}-{count}")
    return names
