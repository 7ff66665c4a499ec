#!/usr/bin/env python3
"""Draws the folders of the source and the arrows between them, from the includes: rooms.py ROOT >rooms.svg.

An arrow means "includes". Arrows that follow from others are left out, so the picture is the order of the layers.
"""

import collections
import os
import re
import sys

LEFT_OUT = {"runtime", "runtime/stages/example", "tools/bench"}
COLOURS = {"compiler": "#cfe3f7", "schedules": "#d8efd0", "kernels": "#f7e3c4", "runtime": "#f3d3d9", "tools": "#e2dcf2"}
BOX, HEIGHT, GAP, ROW = 132, 30, 18, 74


def includes(root):
    """For each folder with C++ sources, the folders that it includes."""
    found = collections.defaultdict(set)
    for room in sorted(COLOURS):
        for folder, _, files in os.walk(os.path.join(root, room)):
            name = os.path.relpath(folder, root)
            for file in files:
                if not re.search(r"\.(h|cc|cu|cuh)$", file):
                    continue
                with open(os.path.join(folder, file), encoding="utf-8") as source:
                    for other in re.findall(r'^#include "([^"]*)/[^/"]+"', source.read(), re.M):
                        found[name].add(other)
    rooms = {name for name in found if name not in LEFT_OUT}
    return {name: {o for o in found.get(name, ()) if o in rooms and o != name}
            for name in sorted(rooms | {o for others in found.values() for o in others
                                        if o.split("/")[0] in COLOURS and o not in LEFT_OUT})}


def reduce(graph):
    """Drops each arrow that a longer way implies."""
    reach = {}

    def reached(room):
        if room not in reach:
            reach[room] = set()
            for other in graph[room]:
                reach[room] |= {other} | reached(other)
        return reach[room]

    return {room: sorted(o for o in others if not any(o in reached(x) for x in others)) for room, others in graph.items()}


def layers(graph):
    """The row of each folder: above everything that it includes."""
    row = {}

    def of(room):
        if room not in row:
            row[room] = 1 + max((of(o) for o in graph[room]), default=-1)
        return row[room]

    for room in graph:
        of(room)
    return row


def place(graph, row):
    """Rows of folders and of bends of long arrows, ordered so that few arrows cross; the bends of each arrow."""
    rows, edges, bends = collections.defaultdict(list), collections.defaultdict(set), {}
    for room in sorted(graph):
        rows[row[room]].append(room)
    for room in sorted(graph):
        for other in graph[room]:
            way = [room]
            for level in range(row[room] - 1, row[other], -1):
                bend = (room, other, level)
                rows[level].append(bend)
                way.append(bend)
            way.append(other)
            bends[room, other] = way
            for a, b in zip(way, way[1:]):
                edges[a].add(b)
                edges[b].add(a)
    level_of = {node: level for level, nodes in rows.items() for node in nodes}
    for sweep in range(40):
        down = sweep % 2 == 0
        for level in sorted(rows, reverse=down):
            beside = level + (1 if down else -1)
            if beside not in rows:
                continue
            at = {node: (i + 0.5) / len(rows[beside]) for i, node in enumerate(rows[beside])}
            now = {node: (i + 0.5) / len(rows[level]) for i, node in enumerate(rows[level])}

            def middle(node):
                near = sorted(at[o] for o in edges[node] if level_of[o] == beside)  # sums round alike
                return sum(near) / len(near) if near else now[node]

            rows[level].sort(key=lambda node: (middle(node), str(node)))
    return rows, bends


def draw(graph):
    row = layers(graph)
    rows, bends = place(graph, row)
    wide = {level: sum((BOX if isinstance(n, str) else 0) + GAP for n in nodes) for level, nodes in rows.items()}
    width, top = max(wide.values()) + GAP, max(rows)
    spot = {}
    for level, nodes in rows.items():
        space = (width - wide[level]) / (len(nodes) + 1)
        x = space
        for node in nodes:
            size = BOX if isinstance(node, str) else 0
            spot[node] = (x + size / 2, 24 + (top - level) * ROW)
            x += size + GAP + space
    height = 24 + top * ROW + HEIGHT + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
           f'height="{height}" font-family="sans-serif" font-size="12">',
           '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
           f'<rect width="{width:.0f}" height="{height}" fill="#fff"/>']
    for way in bends.values():
        points = []
        for node in way:  # a bend passes its row upright, between the boxes
            x, y = spot[node]
            points += [(x, y), (x, y + HEIGHT)]
        points = points[1:-1]
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="#889" marker-end="url(#end)"/>')
    for node, (x, y) in sorted((n, p) for n, p in spot.items() if isinstance(n, str)):
        out.append(f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="5" '
                   f'fill="{COLOURS[node.split("/")[0]]}" stroke="#889"/>'
                   f'<text x="{x:.0f}" y="{y + 19:.0f}" text-anchor="middle" fill="#223">{node}</text>')
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(draw(reduce(includes(sys.argv[1]))))
