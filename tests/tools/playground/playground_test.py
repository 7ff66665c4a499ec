"""The playground in a real browser: playground_test.py CONTRAFLOW PAGE FOLDER

Opens 20 questions by their links, from a file. Every command line that the page shows is then run with the
native program, and has to give the same output, the same exit code and the same files. Prints how soon the
page gave its first answer. Screenshots stay in FOLDER. Skipped (77) without Chromium or the page.
"""

import base64
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zlib

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "tools" / "page"))

from browser import Browser, find_chromium  # noqa: E402

MOST_BYTES = 6_000_000
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"


def text_of(name):
    return (TESTS / name).read_text(encoding="utf-8")


def model(name, **others):
    return {"source": "model", "config": text_of(f"tools/profile/configs/{name}.json"), **others}


QUESTIONS = [
    {},
    {"ranks": "8", "microbatches": "24", "f": "18.5ms", "b": "18.1ms", "w": "9.3ms", "comm": "1ms", "limit": "none"},
    {"schedule": "zb-v"},
    {"schedule": "dualpipe", "ranks": "4", "microbatches": "12", "comm": "0.1"},
    {"schedule": "auto", "ranks": "4", "microbatches": "10", "limit": "0.6x", "w": "0.7",
     "search": "thorough"},
    {"schedule": "interleaved-1f1b", "ranks": "6", "microbatches": "18", "b": "1.25", "w": "0.75"},
    {"schedule": "gpipe", "limit": "1x"},
    {"ranks": "none"},
    {"ranks": "16", "microbatches": "64", "f": "1e-3s", "b": ".0011s", "w": "0.9ms"},
    {"source": "profile", "profile": "mixtral-8x7b-pp8", "ranks": "8", "microbatches": "16"},
    {"source": "profile", "profile": "deepseek-v3-h800", "ranks": "4", "microbatches": "10", "schedule": "dualpipe"},
    {"source": "profile", "profile": "llama-3-405b-pp16", "ranks": "16", "microbatches": "32", "schedule": "zb-1p"},
    {"source": "profile", "profile": "moe-unit", "ranks": "4", "microbatches": "8"},
    {"source": "profile", "profile": "gemma-2-9b-pp8", "ranks": "8", "microbatches": "16", "limit": "0.8x",
     "schedule": "auto"},
    model("llama-3.1-8b"),
    model("mixtral-8x7b", gpu="h200", gpus="32", batch="128", limit="120GB"),
    {"source": "model", "config": '{"model_type": "unheard-of"}'},
    {"source": "file", "file": text_of("reference/torch_DualPipeV.csv"), "comm": "0.05"},
    {"source": "file", "file": DEADLOCK},
    {"source": "file", "file": text_of("golden/auto_p4_m8.plan.json")},
]


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(str, what)))


def link_of(question):
    """The link of a question, as the page makes it."""
    fields = {"source": "times", **question}
    for name in ("config", "file"):
        if name in fields:
            pack = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = pack.compress(fields[name].encode()) + pack.flush()
            fields[name] = base64.urlsafe_b64encode(packed).decode().rstrip("=")
    return "#" + urllib.parse.urlencode(fields)


def ask(browser, page, question):
    """Opens the question in a fresh page and returns its answers, by tab."""
    browser.call("Page.navigate", url="about:blank")
    browser.wait_for("location.href === 'about:blank'")
    browser.call("Page.navigate", url=page.as_uri() + link_of(question))
    browser.wait_for("window.playground && playground.done", 120)
    return browser.evaluate("playground.answers.map(({name, steps}) => ({name, steps}))")


def native(tool, folder, line):
    program, *words = shlex.split(line)
    check(program == "contraflow", line)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    done = subprocess.run([tool, *words], cwd=folder, capture_output=True, text=True, env=environment,
                          stdin=subprocess.DEVNULL)
    return {"code": done.returncode, "output": done.stdout, "errors": done.stderr}


def differences(tool, question, answers):
    """Says where the page answers differently; empty if it does not. And the native program's seconds."""
    found, seconds = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if "config" in question:
            (folder / "config.json").write_text(question["config"], encoding="utf-8")
        if "file" in question:
            kind = "plan.json" if question["file"].lstrip().startswith("{") else "schedule.csv"
            (folder / kind).write_text(question["file"], encoding="utf-8")
        for answer in answers:
            for step in answer["steps"]:
                began = time.monotonic()
                told = native(tool, folder, step["line"])
                seconds += time.monotonic() - began
                for part in ("code", "output", "errors"):
                    if told[part] != step[part]:
                        found.append(f"{step['line']}: {part}:\n--- native\n{told[part]}\n--- page\n{step[part]}")
                for made, content in step["files"].items():
                    there = folder / made
                    if not there.exists() or there.read_bytes().decode() != content:
                        found.append(f"{step['line']}: file {made} differs")
    return found, seconds


def test_form(browser, page):
    """The link fills the form; the form makes the link; a click on a row takes its schedule."""
    ask(browser, page, {"ranks": "6", "microbatches": "12", "w": "0.5"})
    shown = browser.evaluate("playground.question()")
    check((shown["ranks"], shown["w"], shown["f"]) == ("6", "0.5", "1"), shown)
    check(browser.evaluate("location.hash") == "#source=times&w=0.5&ranks=6&microbatches=12",
          browser.evaluate("location.hash"))
    browser.evaluate("[...document.querySelectorAll('.take')].find((row) => row.textContent === 'zb-1p').click()")
    browser.wait_for("playground.done && playground.answers.some(({name}) => name === 'compile')")
    check("schedule=zb-1p" in browser.evaluate("location.hash"))
    check(browser.evaluate("document.querySelector('iframe').srcdoc.length > 10000"))
    # A text goes through its link unchanged.
    told = browser.evaluate("""(async () => {
      const question = {...playground.question(), source: "file", file: "0F0 \\u00e9\\n"};
      location.hash = await playground.linkOf(question);
      await new Promise((resolve) => setTimeout(resolve, 300));
      return playground.question().file;
    })()""")
    check(told == "0F0 \u00e9\n", repr(told))


def test_choices(browser, tool):
    """The form offers every schedule and every GPU that the program knows."""
    def offered(field):
        return set(browser.evaluate(
            f"[...playground.form.elements.{field}.options].map(({{value}}) => value).filter((value) => value)"))
    listed = subprocess.run([tool, "list", "--json"], check=True, capture_output=True, text=True).stdout
    known = {schedule["name"] for schedule in json.loads(listed)["schedules"]}
    check(offered("schedule") == known, offered("schedule") ^ known)
    config = TESTS / "tools" / "profile" / "configs" / "llama-3.1-8b.json"
    refused = subprocess.run([tool, "costs", "init", "--hf", config, "--gpu", "none"], capture_output=True, text=True)
    gpus = set(re.search("known are: ([^;]*);", refused.stderr)[1].split(", "))
    check(offered("gpu") == gpus, offered("gpu") ^ gpus)


def test_looks(browser, page, folder):
    """No page is wider than its window. Leaves pictures."""
    for tab, question in (("compare", {"ranks": "8", "microbatches": "24"}), ("timeline", {"schedule": "zb-v"}),
                          ("plan", QUESTIONS[14])):
        ask(browser, page, question)
        browser.evaluate(f"playground.chosen = '{tab}', playground.showTabs()")
        for width, height in ((1280, 900), (390, 844)):
            browser.resize(width, height)
            for dark in (False, True):
                browser.set_media(dark)
                browser.evaluate(f"playground.setTheme({str(dark).lower()})")
                browser.evaluate("new Promise((resolve) => setTimeout(resolve, 500))")
                browser.screenshot(folder / f"{tab}_{width}{'_dark' if dark else ''}.png")
                check(browser.evaluate("document.documentElement.scrollWidth") <= width, tab, "is wider than", width)


def main(tool, page, folder):
    tool, page, folder = os.path.abspath(tool), pathlib.Path(page).resolve(), pathlib.Path(folder)
    if not find_chromium() or not page.exists():
        print("skipped: no", page if find_chromium() else "Chromium")
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    size = page.stat().st_size
    print(f"the page has {size / 1e6:.2f} MB")
    check(size < MOST_BYTES, "the page has", size, "bytes")
    check("default-src 'none'" in page.read_text(encoding="utf-8"))
    firsts, equal = [], 0
    with Browser(1280, 900) as browser:
        for number, question in enumerate(QUESTIONS, 1):
            answers = ask(browser, page, question)
            check(any(answer["steps"] for answer in answers), "no answer to", question)
            found, seconds = differences(tool, question, answers)
            equal += not found
            first = browser.evaluate("playground.first")
            firsts.append(first)
            steps = [step for answer in answers for step in answer["steps"]]
            print(f"{number:2} {'equal' if not found else 'DIFFERS'}  {len(steps)} commands, first answer "
                  f"{first:5.0f} ms, page {sum(step['milliseconds'] for step in steps):6.0f} ms, "
                  f"native {seconds * 1000:6.0f} ms  {steps[0]['line']}",
                  flush=True)
            for difference in found:
                print(difference)
        print(f"{equal} of {len(QUESTIONS)} equal; first answer of the page as it opens: {firsts[0]:.0f} ms, "
              f"median {statistics.median(firsts):.0f} ms")
        test_form(browser, page)
        test_choices(browser, tool)
        test_looks(browser, page, folder)
        outside = [url for url in browser.requests
                   if not url.startswith((page.as_uri(), "blob:", "data:", "about:"))]
        check(not outside, "requests leave the page:", outside)
        check(not browser.complaints, "complaints:", browser.complaints)
    check(equal == len(QUESTIONS), equal, "of", len(QUESTIONS), "are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
