"""A headless Chromium spoken to over a pipe, with nothing to install but the browser itself."""

import json
import os
import select
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE = 30  # seconds for an answer


def find_browser():
    """The path of a Chromium or Chrome, from `RHEOBASE_BROWSER` or the search path; None if there is none."""
    given = os.environ.get("RHEOBASE_BROWSER")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one empty page; use it in a `with` statement."""

    def __init__(self, path, folder):
        self.path, self.folder = path, Path(folder)
        self.last, self.buffer, self.events = 0, b"", []

    def __enter__(self):
        reads, self.write_to = os.pipe()
        self.read_from, writes = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        wrapper = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--remote-debugging-pipe",
        ]
        profile = f"--user-data-dir={self.folder / 'profile'}"
        self.process = subprocess.Popen(
            ["bash", "-c", wrapper, "bash", str(reads), str(writes), self.path, *flags, profile],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.send("Browser.close")
        except (OSError, RuntimeError):
            self.process.kill()
        finally:
            self.process.wait(_PATIENCE)
            os.close(self.write_to)
            os.close(self.read_from)

    def send(self, method, **parameters):
        """Call a method of the browser and wait for its answer; what happens meanwhile goes to `events`."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, *, width, scheme):
        """Show a file in a window of some width and colour scheme; what happened until it was loaded."""
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return list(self.events)

    def evaluate(self, expression):
        """The value of an expression of JavaScript in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def photograph(self):
        """The whole page as the bytes of a PNG, in base64."""
        return self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]

    def _receive(self):
        while b"\0" not in self.buffer:
            if not select.select([self.read_from], [], [], _PATIENCE)[0]:
                raise RuntimeError(f"the browser has not answered for {_PATIENCE} s")
            part = os.read(self.read_from, 1 << 16)
            if not part:
                raise RuntimeError("the browser is gone")
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)
