# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium and one page in it, over the pipe that --remote-debugging-pipe opens: JSON with a NUL behind each."""
import base64
import collections
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import zlib


def find():
    """The program, or None."""
    return next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class Browser:
    """Use as a context. `errors` collects what the console and the network say that a page should not cause."""

    def __init__(self, program, seconds=60):
        self.seconds, self.errors, self.requests, self.buffer, self.last = seconds, [], [], b"", 0
        self.folder = tempfile.mkdtemp(prefix="ckv_browser_")
        commands, self.to = os.pipe()
        self.answers, results = os.pipe()
        arguments = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--no-first-run", "--disable-background-networking", f"--user-data-dir={self.folder}",
                     "--remote-debugging-pipe", "about:blank"]
        shell = ["/bin/sh", "-c", f'exec "$@" 3<&{commands} 4>&{results}', "sh", *arguments]
        self.process = subprocess.Popen(shell, pass_fds=(commands, results), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(results)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = None
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        except BaseException:
            self.close()
            raise

    session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self.answers, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer" if not ready else "the browser has ended")
            self.buffer += data
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(str(about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return method

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data, deadline = json.dumps(message).encode() + b"\0", time.monotonic() + self.seconds
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self._read(deadline)
            self._note(answer)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, url, width=1240, height=900, dark=False, script=True):
        """Load a page anew and wait until it has been drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + self.seconds
        while self._note(self._read(deadline)) != "Page.loadEventFired":
            pass
        if script:
            self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def press(self, key):
        """A key as a person presses it, where the focus is."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9, "Home": 36}
        code = codes.get(key, ord(key[0].upper()))
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **(text if kind == "keyDown" else {}))

    def screenshot(self, path, box=None):
        """The whole page, or x, y, width and height of it, as a PNG."""
        if box is None:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            box = (0, 0, size["width"], min(size["height"], 8000))
        clip = dict(zip(("x", "y", "width", "height", "scale"), (*box, 1)))
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip, optimizeForSpeed=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


class Picture:
    """A PNG of 8 bits a channel, RGB or RGBA, without interlacing: what a screenshot is."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if data[:8] != b"\x89PNG\r\n\x1a\n":
            raise ValueError(f"{path}: not a PNG")
        at, packed = 8, b""
        while at < len(data):
            length, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
            body = data[at + 8:at + 8 + length]
            if kind == b"IHDR":
                self.width, self.height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
                if body[8] != 8 or body[9] not in (2, 6) or body[12] != 0:
                    raise ValueError(f"{path}: another kind of PNG")
                self.channels = 3 if body[9] == 2 else 4
            elif kind == b"IDAT":
                packed += body
            at += 12 + length
        self.lines = self._unfilter(zlib.decompress(packed))

    def _unfilter(self, data):
        size, step = self.width * self.channels, self.channels
        lines, above = [], bytes(size)
        for y in range(self.height):
            kind, line = data[y * (size + 1)], bytearray(data[y * (size + 1) + 1:(y + 1) * (size + 1)])
            if kind == 1:  # each channel adds up
                for channel in range(step):
                    line[channel::step] = bytes(x & 255 for x in itertools.accumulate(line[channel::step]))
            elif kind == 2:
                line = bytearray((x + up) & 255 for x, up in zip(line, above))
            elif kind in (3, 4):
                for i in range(size):
                    left, corner = (line[i - step], above[i - step]) if i >= step else (0, 0)
                    apart = [abs(above[i] - corner), abs(left - corner), abs(left + above[i] - 2 * corner)]
                    nearest = (left, above[i], corner)[apart.index(min(apart))]
                    line[i] = (line[i] + (nearest if kind == 4 else (left + above[i]) // 2)) & 255
            lines.append(line)
            above = line
        return lines

    def colours(self, x=0, y=0, width=None, height=None):
        """How often each colour is in a rectangle, by default everywhere."""
        counts, first = collections.Counter(), max(int(x), 0)
        end = min(int(x + (self.width if width is None else width)), self.width)
        for line in self.lines[max(int(y), 0):int(y + (self.height if height is None else height))]:
            channels = (line[channel::self.channels][first:end] for channel in range(3))
            counts.update(zip(*channels))
        return counts
