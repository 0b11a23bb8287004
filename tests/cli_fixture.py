"""What the tests that start `hotset` share: where it is, how it is started, and what every end of it
must be like.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BINARY = os.environ.get("HOTSET_BINARY", "")
DEMO = pathlib.Path(os.environ.get("HOTSET_ASSETS_DIR", "assets")) / "demo-54m-moe.gguf"

# The suite runs beside others and under sanitizers. A hang must fail, slowness must not.
TIMEOUT_S = 240

TINY = ["--layers", "1", "--embd", "32", "--heads", "2", "--kv-heads", "1", "--head-dim", "32",
        "--experts", "4", "--experts-used", "2", "--expert-width", "32", "--vocab", "64",
        "--ctx-train", "1000000"]


def environment(**changes):
    # No variable of the caller's but what the sanitizers need, and no GPU: results are the CPU's.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTSET_")}
    return {**kept, "HOTSET_DEVICE": "none", **{k: v for k, v in changes.items() if v is not None}}


def is_sanitized():
    """Whether the program needs the addresses and the memory of a sanitizer."""
    content = pathlib.Path(BINARY).read_bytes()
    return b"__asan_init" in content or b"__tsan_init" in content


def catches(signal_number, pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False


class CliFixture(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hotset-cli-"))
        cls.tiny = cls.folder / "tiny.gguf"
        subprocess.run([BINARY, "model", "random", *TINY, "-o", cls.tiny], check=True,
                       timeout=TIMEOUT_S, env=environment())
        cls.logit_bytes = 64 * 4  # of a position of the tiny model

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def hotset(self, *arguments, stdin=b"", env=None):
        done = subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True,
                              timeout=TIMEOUT_S, env=environment(**(env or {})))
        self.check_end(done.returncode, done.stderr)
        return done

    def check_end(self, status, stderr):
        self.assertIn(status, (0, 1, 2), stderr.decode(errors="replace"))
        for sign in (b"GGML_ASSERT", b"terminate called", b"Sanitizer", b"runtime error"):
            self.assertNotIn(sign, stderr)

    def ok(self, *arguments, **options):
        done = self.hotset(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        self.assertNotIn(b"hotset: error", done.stderr)
        return done.stdout

    def ok_json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, "--json", **options).decode("utf-8"))

    def fails(self, status, parts, *arguments, **options):
        """That it fails with this status, and one line that has all `parts`."""
        with self.subTest(arguments=arguments):
            done = self.hotset(*arguments, **options)
            stderr = done.stderr.decode(errors="replace")
            self.assertEqual(done.returncode, status, stderr)
            self.assertEqual(done.stdout, b"")
            errors = [line for line in stderr.splitlines()
                      if not line.startswith(("hotset: info: ", "hotset: warning: "))]
            self.assertEqual(len(errors), 1, stderr)
            self.assertTrue(errors[0].startswith("hotset: error: "), stderr)
            for part in parts:
                self.assertIn(part, errors[0])

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def start(self, *arguments, **options):
        """A process that ends with the test at the latest."""
        process = subprocess.Popen([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment(), **options)

        def end():
            if process.poll() is None:
                process.kill()
                process.wait(TIMEOUT_S)
            for stream in (process.stdout, process.stderr):
                stream.close()

        self.addCleanup(end)
        return process

    def wait_until_it_catches(self, signal_number, process):
        deadline = time.monotonic() + TIMEOUT_S
        while not catches(signal_number, process.pid):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.01)

    def interrupt_when_generating(self, process):
        self.wait_until_it_catches(signal.SIGINT, process)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.check_end(process.returncode, stderr)
        self.assertEqual(process.returncode, 0, stderr)
        return stdout, stderr


def main():
    if not os.access(BINARY, os.X_OK) or not DEMO.is_file():
        raise SystemExit(f"HOTSET_BINARY='{BINARY}' and the demo model '{DEMO}' must exist")
    unittest.main(verbosity=2)
