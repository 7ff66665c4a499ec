"""Pages of plans in a real browser: page_test.py CONTRAFLOW FOLDER

Drives what a user would: wheel, drag, keys, hover, click, search. Fails where a page complains or asks
for anything but itself. Prints how fast the first picture was and how many frames a second there are;
CONTRAFLOW_PAGE_LARGE=1 does the same for 64 x 512 and 256 x 2048. Screenshots stay in FOLDER. Skipped
(77) without Chromium.
"""

import json
import os
import pathlib
import subprocess
import sys

from browser import Browser, find_chromium

READY = "window.contraflow !== undefined"
COSTS = ["--costs", "deepseek-v3-h800"]
UNEVEN = ["--f", "1", "--b", "1.2", "--w", "0.8", "--comm", "0.1"]


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(str, what)))


class Pages:
    def __init__(self, tool, folder):
        self.tool = tool
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, *words):
        done = subprocess.run([self.tool, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        check(done.returncode == 0, words, done.stderr)
        return done.stdout

    def compile(self, name, schedule, ranks, microbatches, *words):
        self.run("compile", "--schedule", schedule, "--ranks", ranks, "--microbatches", microbatches,
                 *words, "-o", name)

    def show(self, page, *words, most=None):
        """Makes a page; its size in bytes is at most `most`."""
        self.run("show", *words, "--format", "html", "-o", page)
        size = (self.folder / page).stat().st_size
        check(most is None or size <= most, page, "has", size, "bytes")
        return size

    def open(self, browser, page):
        """Opens it and waits for its picture: milliseconds since the page was asked for."""
        browser.open(self.folder / page, READY)
        return browser.evaluate("contraflow.frames.first")

    def shoot(self, browser, name):
        browser.screenshot(self.folder / (name + ".png"))


def settle(browser):
    """Until what glides has arrived and is drawn."""
    browser.wait_for("!contraflow.asked && !contraflow.view.target")


def view(browser):
    return browser.evaluate("({from: contraflow.view.from, to: contraflow.view.to, "
                            "longest: contraflow.view.longest, scroll: contraflow.view.scroll})")


def place(browser, instruction, plan=0):
    """Middle of a box in the window, and its id."""
    return browser.evaluate("""(() => {
      const page = contraflow, plan = page.plans[%d];
      for (let id = 0; id < plan.count; ++id) {
        if (plan.text(id) !== %s) continue;
        const row = page.rowOf(%d, id), box = page.stage.getBoundingClientRect();
        const time = plan.start[id] + (plan.end[id] - plan.start[id]) / 4;
        return {id, x: box.left + 1 + page.painter.left + page.view.x(time),
                y: box.top + 1 + 24 + row.y - page.view.scroll + row.height / 2};
      }
    })()""" % (plan, json.dumps(instruction), plan))


def pixel(browser, x, y):
    """Picture, as the window shows it: [red, green, blue]."""
    return browser.evaluate("""(() => {
      const box = contraflow.stage.getBoundingClientRect(), canvas = document.getElementById("picture");
      const at = [%f - box.left - 1, %f - box.top - 1].map((v) => Math.round(v * contraflow.painter.scale));
      return [...canvas.getContext("2d").getImageData(at[0], at[1], 1, 1).data].slice(0, 3);
    })()""" % (x, y))


def move_about(browser):
    """Zooms and drags as a hand would, and returns the frames a second that the page counted."""
    browser.evaluate("contraflow.frames.reset()")
    for k in range(24):
        browser.wheel(700, 300, dy=-120 if k < 12 else 120)
    browser.drag(800, 300, -300, 0, steps=20)
    browser.drag(500, 300, 300, 0, steps=20)
    settle(browser)
    rate = browser.evaluate("contraflow.frames.rate()")
    browser.key("0")
    settle(browser)
    return rate


def report(pages, browser, name, page, size):
    first = pages.open(browser, page)
    pages.shoot(browser, name)
    print(f"{name:22} {size / 1e6:7.2f} MB  first picture {first:5.0f} ms  "
          f"{move_about(browser):3.0f} frames a second", flush=True)


def test_figures(pages, browser, plan):
    """The page decodes the figures of simulate."""
    told = json.loads(pages.run("simulate", plan, "--json"))
    ticks = browser.evaluate("contraflow.plans[0].ticks")
    for rank in told["ranks"]:
        r = rank["rank"]
        shown = browser.evaluate(f"contraflow.figures(0, {r})")
        check(shown["busy"] == round(rank["busy"] * ticks), "busy of rank", r, shown, rank)
        check(shown["held"] == rank["peak_bytes"] > 0, "peak of rank", r, shown, rank)
    makespan = browser.evaluate("contraflow.plans[0].makespan")
    check(makespan == round(told["makespan"] * ticks), "makespan", makespan, told["makespan"])


def test_path(browser):
    """The critical path is one chain of waits from 0 to the makespan."""
    chain = browser.evaluate("""contraflow.criticalPath(0).map((id) => {
      const plan = contraflow.plans[0];
      return [plan.start[id], plan.end[id]];
    })""")
    check(chain[0][0] == 0, "the path begins at", chain[0])
    check(chain[-1][1] == browser.evaluate("contraflow.plans[0].makespan"), "the path ends at", chain[-1])
    for before, after in zip(chain, chain[1:]):
        check(before[1] == after[0], "the path is torn at", before, after)


def test_waits(browser):
    """Every instruction starts when the one that it waited for last ends, or at 0."""
    torn = browser.evaluate("""(() => {
      const plan = contraflow.plans[0], on = contraflow.waits(0), torn = [];
      for (let id = 0; id < plan.count; ++id) {
        const at = plan.text(id).startsWith("RECV") ? plan.start[on[id]] : on[id] < 0 ? 0 : plan.end[on[id]];
        if (at !== plan.start[id]) torn.push(plan.text(id));
      }
      return torn;
    })()""")
    check(torn == [], "other waits than the simulator's:", torn[:5], len(torn))


def test_view(browser):
    """Wheel, drag and keys move the view as they should."""
    whole = view(browser)
    check(whole["from"] <= 0 and whole["to"] >= whole["longest"], "does not open whole", whole)
    at = place(browser, "F s3 m2")
    browser.wheel(at["x"], at["y"], dy=-300)
    settle(browser)
    near = view(browser)
    check(near["to"] - near["from"] < 0.8 * (whole["to"] - whole["from"]), "does not zoom", near)
    again = place(browser, "F s3 m2")
    check(abs(at["x"] - again["x"]) < 1.5, "what is under the pointer moves", at, again)
    browser.drag(at["x"], at["y"], -120, 0)
    settle(browser)
    moved = place(browser, "F s3 m2")
    check(abs(again["x"] - 120 - moved["x"]) < 2, "does not follow the drag", again, moved)
    before = view(browser)
    browser.key("ArrowRight")
    settle(browser)
    check(view(browser)["from"] > before["from"], "the arrow key does not move it")
    browser.key("+")
    settle(browser)
    check(view(browser)["to"] - view(browser)["from"] < 0.6 * (before["to"] - before["from"]), "+ does not zoom")
    browser.key("0")
    settle(browser)
    check(view(browser)["to"] >= whole["longest"], "0 does not fit")
    browser.evaluate("contraflow.view.show(0, contraflow.view.longest / 10)")
    settle(browser)
    box = browser.evaluate("(({left, top, width, height}) => ({left, top, width, height}))"
                           "(document.getElementById('minimap').getBoundingClientRect())")
    browser.drag(box["left"] + 0.05 * box["width"], box["top"] + 20, 0.4 * box["width"], 0)
    settle(browser)
    middle = (view(browser)["from"] + view(browser)["to"]) / 2 / whole["longest"]
    check(0.4 < middle < 0.5, "the frame of the minimap is not dragged", middle)
    browser.key("0")
    settle(browser)


def test_asking(browser):
    """Hover, click, lanes, search, memory and critical path say and show what they should."""
    at = place(browser, "F s3 m2")
    browser.mouse("mouseMoved", at["x"], at["y"])
    settle(browser)
    tooltip = browser.evaluate("document.getElementById('tooltip').textContent")
    check("F s3 m2" in tooltip and "rank 3" in tooltip and " ms" in tooltip and "waited for" in tooltip, tooltip)
    browser.click(at["x"], at["y"])
    settle(browser)
    card = browser.evaluate("document.getElementById('card').textContent")
    check("Idle because" in card and "SEND_F s2 m2 to=3" in card, card)
    wait = browser.evaluate("contraflow.plans[0].text(contraflow.selectedWait)")
    check(wait == "F s4 m11", wait)
    check(browser.evaluate("contraflow.selectedMessages.length") == 2, "its messages are not marked")
    browser.key("b")
    settle(browser)
    check(browser.evaluate("contraflow.selected.id") != at["id"], "B does not go to the cause")
    browser.key("Escape")
    settle(browser)
    check(browser.evaluate("document.getElementById('card').hidden"), "Esc does not close the card")
    rows = browser.evaluate("contraflow.layout.rows.length")
    at = place(browser, "F s3 m2")
    left = browser.evaluate("contraflow.stage.getBoundingClientRect().left")
    browser.click(left + 30, at["y"])
    settle(browser)
    check(browser.evaluate("contraflow.layout.rows.length") > rows + 2, "a click on a rank does not open it")
    browser.click(left + 30, at["y"])
    for key in "cm":
        browser.key(key)
    settle(browser)
    check(browser.evaluate("contraflow.showPath && contraflow.layout.memory"), "C and M do nothing")
    for key in "cm":
        browser.key(key)
    browser.key("/")
    browser.call("Input.insertText", text="s3 m7")
    browser.key("Enter")
    settle(browser)
    text = browser.evaluate("contraflow.plans[0].text(contraflow.selected.id)")
    found = browser.evaluate("document.getElementById('found').textContent")
    check("s3 m7" in text and found.startswith("1 of "), "search found", text, found)
    browser.key("Escape")
    browser.key("Escape")
    browser.key("0")
    settle(browser)


def test_look(pages, browser):
    """Boxes have their colours, light and dark, and print is light."""
    at = place(browser, "F s3 m2")
    light = pixel(browser, at["x"], at["y"] + 9)
    check(light == [0xff, 0xd1, 0x66], "a forward is", light)
    idle = browser.evaluate("contraflow.painter.colors.idle")
    browser.key("t")
    settle(browser)
    check(browser.evaluate("contraflow.painter.colors.idle") != idle, "T does not make it dark")
    pages.shoot(browser, "dark")
    before = view(browser)
    browser.pdf(pages.folder / "print.pdf")
    check((pages.folder / "print.pdf").stat().st_size > 20_000, "nothing is printed")
    settle(browser)
    check(view(browser) == before and browser.evaluate("contraflow.dark"), "printing changes the page")
    browser.key("t")
    settle(browser)


def test_several(pages, browser):
    """Three plans on one axis, and a trace below its plan."""
    pages.show("three.html", "small.json", "zb.json", "1f1b.json")
    pages.open(browser, "three.html")
    heads = browser.evaluate("contraflow.layout.rows.filter((row) => row.kind === 'head').map((row) => row.plan.name)")
    check(heads == ["small: dualpipe", "zb: zb-1p", "1f1b: 1f1b"], heads)
    pages.shoot(browser, "three")
    places = [place(browser, "F s0 m1", plan) for plan in range(3)]
    browser.wheel(places[1]["x"], places[1]["y"], dy=-200)
    settle(browser)
    check(abs(place(browser, "F s0 m1", 2)["x"] - places[2]["x"]) > 1
          or places[1]["x"] == places[2]["x"], "plans do not zoom in step")
    rows = browser.evaluate("contraflow.layout.rows.length")
    box = browser.evaluate("(({left, top}) => ({left, top}))(contraflow.stage.getBoundingClientRect())")
    browser.click(box["left"] + 20, box["top"] + 24 + 20)
    settle(browser)
    check(browser.evaluate("contraflow.layout.rows.length") < rows, "a click on a plan does not fold it")
    pages.run("simulate", "small.json", "--trace", "small.trace.json", "--html", "simulated.html")
    pages.show("traced.html", "small.json", "--trace", "small.trace.json")
    pages.open(browser, "traced.html")
    same = browser.evaluate("(([a, b]) => a.count === b.count && a.start.every((t, id) => t === b.start[id]) && "
                            "a.end.every((t, id) => t === b.end[id]))(contraflow.plans)")
    check(same, "a trace of what was predicted is drawn otherwise")


def test_idle(pages, browser):
    """Every idle time has the cause that explain gives it, and the pointer over one says so."""
    pages.show("idle.html", "small.json")
    pages.open(browser, "idle.html")
    told = [json.loads(pages.run("explain", "small.json", "--rank", str(rank), "--json")) for rank in (0, 3)]
    for document in told:
        rank = document["ranks"][0]
        drawn = browser.evaluate(f"""((page, rank) => {{
          const {{causes, plans: [plan]}} = page, gaps = page.gaps(0), rows = [];
          for (let k = gaps.first[rank]; k < gaps.first[rank + 1]; ++k) {{
            const on = gaps.on[k];
            rows.push([gaps.from[k] / plan.ticks, gaps.to[k] / plan.ticks, causes[gaps.cause[k]].name,
                       on < 0 ? null : [plan.rank[on], plan.index(on)]]);
          }}
          return rows;
        }})(contraflow, {rank["rank"]})""")
        wanted = [[row["start"], row["end"], row["cause"],
                   [row["because"]["rank"], row["because"]["index"]] if "because" in row else None]
                  for row in rank["idle"]]
        check(len(drawn) == len(wanted) > 2, "the page has other idle times than explain")
        for have, want in zip(drawn, wanted):
            same = abs(have[0] - want[0]) < 1e-6 and abs(have[1] - want[1]) < 1e-6
            check(same and have[2:] == want[2:], (have, want))
    first = told[1]["ranks"][0]["idle"][0]
    said = browser.evaluate(f"""(() => {{
      const {{view, painter, plans: [plan]}} = contraflow;
      const x = painter.left + view.x({(first["start"] + first["end"]) / 2} * plan.ticks);
      for (let y = 0; y < 1000 && (contraflow.gap === null || contraflow.gap.rank !== 3); ++y) {{
        contraflow.pointAt({{x, y}});
      }}
      contraflow.render();
      return document.getElementById("tooltip").textContent;
    }})()""")
    check(said.startswith("idle because") and first["cause"] in said, said)


def test_broken(pages, browser):
    """A deadlock is drawn up to where it stands, with its cycle."""
    plan = json.loads((pages.folder / "small.json").read_text())
    program = plan["programs"][1]
    # A receive before the send that it answers: each side waits for the other.
    send = next(k for k in range(len(program)) if program[k].startswith("SEND_F s1 m4"))
    recv = next(k for k in range(send, len(program)) if program[k].startswith("RECV"))
    program.insert(send, program.pop(recv))
    (pages.folder / "broken.json").write_text(json.dumps(plan))
    pages.show("broken.html", "broken.json")
    pages.open(browser, "broken.html")
    pages.shoot(browser, "broken")
    said = browser.evaluate("document.getElementById('findings').textContent")
    check("deadlock" in said and "waits at" in said, said)
    stands = browser.evaluate("""(() => {
      const [plan] = contraflow.plans;
      return {cycle: plan.waits.length, never: [...plan.start].filter(Number.isNaN).length,
              ran: [...plan.start].filter((t) => t >= 0).length};
    })()""")
    check(stands["cycle"] >= 2 and stands["never"] > 0 and stands["ran"] > 20, stands)


def main(tool, folder):
    if find_chromium() is None:
        print("skipped: there is no Chromium")
        return 77
    pages = Pages(tool, folder)
    pages.compile("small.json", "dualpipe", 8, 20, *COSTS)
    pages.compile("zb.json", "zb-1p", 8, 20, *COSTS)
    pages.compile("1f1b.json", "1f1b", 8, 20, *COSTS)
    pages.compile("components.json", "dualpipe", 16, 64, *COSTS, "--level", "component")
    sizes = {"dualpipe 8 x 20": ("small.json", 0.1), "components 16 x 64": ("components.json", 1.5)}
    if os.environ.get("CONTRAFLOW_PAGE_LARGE"):
        pages.compile("large.cbor", "dualpipe", 64, 512, *UNEVEN)
        pages.compile("largest.cbor", "dualpipe", 256, 2048, *UNEVEN)
        sizes |= {"dualpipe 64 x 512": ("large.cbor", 4), "dualpipe 256 x 2048": ("largest.cbor", 30)}
    with Browser() as browser:
        for name, (plan, megabytes) in sizes.items():
            page = plan.split(".")[0] + ".html"
            size = pages.show(page, plan, most=megabytes * 1e6)
            report(pages, browser, name, page, size)
            check(browser.requests == [(pages.folder / page).resolve().as_uri()], browser.requests)
            if megabytes < 4:
                test_figures(pages, browser, plan)
                test_path(browser)
                test_waits(browser)
        pages.open(browser, "small.html")
        test_view(browser)
        test_asking(browser)
        test_look(pages, browser)
        test_several(pages, browser)
        test_idle(pages, browser)
        test_broken(pages, browser)
        check(browser.complaints == [], browser.complaints)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
