#!/usr/bin/env python3
"""The server's page in headless Chromium, driven over its debugging pipe: a chat by keyboard that streams and
stops, figures that move, phone and dark. Skips (77) where there is no Chromium. With HOTSET_SCREENSHOTS=FOLDER
it leaves pictures to look at.
"""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from cli_fixture import TIMEOUT_S
from server_fixture import Server

CHROMIUM = next(filter(None, map(shutil.which, (
    "chromium", "chromium-browser", "chromium-headless-shell", "google-chrome"))), None)


class Browser:
    """One page, by Chromium's DevTools protocol: JSON texts that end with a null byte."""

    def __init__(self):
        # Processes of the browser may still write there when it has ended.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        in_read, self.to = os.pipe()
        self.back, out_write = os.pipe()

        def give_pipes():
            # Not onto each other: the numbers may be 3 and 4 already.
            a, b = os.dup(in_read), os.dup(out_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=give_pipes)
        os.close(in_read)
        os.close(out_write)
        self.rest = b""
        self.n_sent = 0
        self.problems = []
        self.requests = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], TIMEOUT_S)[0]:
                raise AssertionError("Chromium does not answer")
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise AssertionError("Chromium has ended")
            self.rest += piece
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        self.n_sent += 1
        message = {"id": self.n_sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(answer["params"])
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == self.n_sent:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression, what):
        deadline = time.monotonic() + TIMEOUT_S
        # While a page loads, some of it is not there yet.
        while not self.value("(() => { try { return Boolean(" + expression + "); } catch { return false; } })()"):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: {expression}")
            time.sleep(0.05)

    def key(self, key, text=None, modifiers=0):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def look(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                  mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, name):
        folder = os.environ.get("HOTSET_SCREENSHOTS")
        if folder:
            data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (pathlib.Path(folder) / (name + ".png")).write_bytes(base64.b64decode(data))

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()


class WebPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--moe-cache-mib", "8", "-n", "300", env={"HOTSET_DEVICE": "emu:clock=virtual,us=1,mib=256"})
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.end()
        cls.server.stop()

    def test_the_page(self):
        b = self.browser
        origin = f"http://127.0.0.1:{self.server.port}/"
        b.look(1280, 900)
        b.call("Page.navigate", url=origin)
        b.until("document.getElementById('model').textContent.includes('demo')", "the model's name")
        b.until("document.getElementById('verdict').textContent.startsWith('expert cache on')", "the verdict")
        # A message by keyboard; the field has the focus.
        b.until("document.activeElement.id === 'text'", "the focus")
        b.call("Input.insertText", text="Tell me of the sea.")
        b.key("Enter", "\r")
        b.until("document.querySelectorAll('.user').length === 1", "the message")
        b.until("document.querySelector('.assistant').textContent.length > 20", "the reply")
        b.until("document.getElementById('send').textContent === 'Send'", "the end of the reply")
        b.until("[...document.querySelectorAll('.note')].some(n => n.textContent.includes('tokens/s'))", "its figures")
        # Another one, stopped by Escape: it streams, so it has begun before it ends.
        b.call("Input.insertText", text="And the captain?")
        b.key("Enter", "\r")
        b.until("document.querySelectorAll('.assistant').length === 2 && "
                "document.querySelectorAll('.assistant')[1].textContent.length > 5", "the second reply")
        b.key("Escape")
        b.until("document.getElementById('send').textContent === 'Send'", "the stop")
        # Figures.
        for part in ("heat", "lanes", "plan"):
            b.until(f"!document.getElementById('{part}').hidden", part)
        b.until("document.getElementById('map').width > 0 && document.getElementById('map').getAttribute('aria-label')"
                ".includes('8 layers of 64 experts')", "the map")
        self.assertIn("auto", b.value("document.getElementById('split').textContent"))
        b.screenshot("light")
        b.look(1280, 900, dark=True)
        b.screenshot("dark")
        light = b.value("getComputedStyle(document.body).backgroundColor")
        b.look(390, 844, dark=True, phone=True)
        # Nothing sticks out of a phone's screen.
        self.assertLessEqual(b.value("document.documentElement.scrollWidth"), 390)
        b.screenshot("phone")
        b.look(1280, 900)
        self.assertNotEqual(light, b.value("getComputedStyle(document.body).backgroundColor"))
        # Everything that can be used has a name and can be reached by Tab.
        self.assertTrue(b.value("[...document.querySelectorAll('button, input, textarea')].every(e => "
                                "e.textContent.trim() || e.getAttribute('aria-label') || e.labels.length)"))
        reached = set()
        for _ in range(10):
            b.key("Tab")
            reached.add(b.value("document.activeElement.id"))
        self.assertLessEqual({"text", "send", "clear", "temperature", "most"}, reached)
        b.value("document.getElementById('clear').click()")
        b.until("document.querySelectorAll('.message').length === 0", "a new chat")
        # An error is shown, and the message is not kept.
        b.value("document.getElementById('temperature').value = '-5'")
        b.value("document.getElementById('form').noValidate = true")
        b.value("document.getElementById('text').value = 'Hello'; document.getElementById('form').requestSubmit()")
        b.until("document.querySelector('.error')?.textContent.includes('temperature: found -5')", "the error")
        self.assertEqual(b.value("messages.length"), 0)
        # Nothing failed but what should, and nobody else was asked.
        unexpected = [p for p in b.problems if "status of 400" not in json.dumps(p)]
        self.assertEqual(unexpected, [])
        strangers = [u for u in b.requests if not u.startswith((origin, "data:", "about:"))]
        self.assertEqual(strangers, [])


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: there is no Chromium here")
        sys.exit(77)
    unittest.main(verbosity=2)
