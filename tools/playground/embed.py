"""Makes the page of its parts: embed.py contraflow.js PAGE page.html PART... PROFILE.json...

{{NAME}} in page.html becomes the content of the part NAME; {{wasm}} is packed, {{profiles}} is JSON.
"""

import base64
import gzip
import json
import pathlib
import re
import sys


def main(program, page, frame, *parts):
    script = pathlib.Path(program)
    packed = gzip.compress(script.with_suffix(".wasm").read_bytes(), 9, mtime=0)
    texts = {"wasm": base64.b64encode(packed).decode(), "contraflow.js": script.read_text(encoding="utf-8")}
    profiles = {}
    for part in map(pathlib.Path, parts):
        kept = profiles if part.suffix == ".json" else texts
        kept[part.name] = part.read_text(encoding="utf-8")
    texts["profiles"] = json.dumps(profiles)
    # An end tag within a text would end the element that holds it.
    texts = {name: re.sub("</(?=script|style)", r"<\\/", text) for name, text in texts.items()}
    whole = re.sub(r"\{\{([\w.]+)\}\}", lambda found: texts[found[1]],
                   pathlib.Path(frame).read_text(encoding="utf-8"))
    pathlib.Path(page).write_text(whole, encoding="utf-8")


main(*sys.argv[1:])
