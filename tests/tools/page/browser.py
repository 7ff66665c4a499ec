"""Chromium without a window, driven over its DevTools protocol through a pipe."""

import base64
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    """Its path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page at a time. Everything that it requests or complains of is kept."""

    def __init__(self, width=1400, height=900, scale=1, dark=False):
        self.profile = tempfile.TemporaryDirectory()
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                 "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                 "--disable-background-networking", "--disable-extensions", "--mute-audio",
                 f"--user-data-dir={self.profile.name}", "about:blank"]
        # The protocol is spoken on descriptors 3 and 4.
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', find_chromium(), *flags],
            pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.requests, self.complaints = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.resize(width, height, scale)
        self.set_media(dark)

    def close(self):
        os.close(self.write_end)
        os.close(self.read_end)
        # Its helpers, too: they write into the profile until they end.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for _ in range(50):
            try:
                return self.profile.cleanup()
            except OSError:
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data):]
        while True:
            answer = self.receive(120)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def receive(self, seconds):
        """The next message; events are noted on the way."""
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], seconds)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.read_end, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, event, params):
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        if event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(arg.get("value")) for arg in params["args"]))
        if event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])

    def open(self, path, ready):
        """Waits until the expression `ready` holds."""
        self.requests.clear()
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        self.wait_for(ready)

    def wait_for(self, expression, seconds=60):
        until = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}; {self.complaints}")
            time.sleep(0.02)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def resize(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)

    def set_media(self, dark=False, media=""):
        self.call("Emulation.setEmulatedMedia", media=media, features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def mouse(self, kind, x, y, **params):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, x, y, dx, dy, steps=5):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for k in range(1, steps + 1):
            self.mouse("mouseMoved", x + dx * k / steps, y + dy * k / steps, button="left", buttons=1)
        self.mouse("mouseReleased", x + dx, y + dy, button="left", clickCount=1)

    def wheel(self, x, y, dy=0, dx=0, modifiers=0):
        self.mouse("mouseWheel", x, y, deltaX=dx, deltaY=dy, modifiers=modifiers)

    def key(self, key):
        """One key, as named by KeyboardEvent.key."""
        params = {"key": key}
        if len(key) == 1:
            params["text"] = key
        self.call("Input.dispatchKeyEvent", type="keyDown", **params)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def pdf(self, path):
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
