"""A `hotset serve` for a test, and plain ways to talk to it: over http.client for what is well formed,
over a socket for what is not.
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from cli_fixture import BINARY, DEMO, TIMEOUT_S, environment

SIGNS_OF_A_BUG = (b"GGML_ASSERT", b"terminate called", b"Sanitizer", b"runtime error", b"unexpected failure")


class Server:
    """Started with the demo model on a free port; `stop()` ends it as systemd would."""

    def __init__(self, *arguments, model=DEMO, env=None, loaded=True):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [BINARY, "serve", "-m", str(model), "--port", "0", "-t", "1", *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
            env=environment(**(env or {})))
        self.port = self.wait_for_port() if loaded else None

    def said(self):
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0)

    def wait_for_port(self):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = re.search(rb"serving at http://\S+:(\d+)", self.said())
            if found:
                return int(found.group(1))
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(self.said().decode(errors="replace"))
            time.sleep(0.02)

    def request(self, method, path, body=None, headers=None, timeout=TIMEOUT_S):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path, **options):
        status, _, body = self.request("GET", path, **options)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def post(self, path, body, **options):
        status, _, answer = self.request("POST", path, body, **options)
        assert status == 200, (path, status, answer)
        return json.loads(answer)

    def error(self, path, body, **options):
        """Status and the error object of what must fail."""
        status, _, answer = self.request("POST", path, body, **options)
        assert status >= 400, (path, status, answer)
        return status, json.loads(answer)["error"]

    def stream(self, path, body):
        """The objects of a streamed answer, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["Content-Type"] == "text/event-stream", answer.headers
            for line in answer:
                line = line.rstrip(b"\r\n")
                if not line.startswith(b"data: "):
                    assert line == b"" or line.startswith(b":"), line
                    continue
                if line == b"data: [DONE]":
                    return
                yield json.loads(line[6:])
        finally:
            connection.close()

    def raw(self, data, timeout=TIMEOUT_S, then_close=False):
        """All that comes back for these bytes until the server closes, b"" for nothing."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            received = b""
            try:
                s.sendall(data)
                if then_close:
                    return b""
                while piece := s.recv(1 << 16):
                    received += piece
            except (ConnectionResetError, BrokenPipeError):
                pass
            return received

    def rss_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))

    def idle(self):
        return not any(slot["is_processing"] for slot in self.get("/slots"))

    def stop(self, expect_status=0, number=signal.SIGTERM):
        """Ends it and checks how it ended. Returns what it had said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
        said = self.said()
        self.log.close()
        for sign in SIGNS_OF_A_BUG:
            assert sign not in said, said.decode(errors="replace")
        assert status == expect_status, (status, said.decode(errors="replace"))
        return said


class ServerFixture(unittest.TestCase):
    FLAGS = ()
    ENV = {}

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS, env=cls.ENV)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def own_server(self, *arguments, **options):
        """One that ends with the test at the latest."""
        server = Server(*arguments, **options)

        def end():
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()
            server.process.stdout.close()

        self.addCleanup(end)
        return server

    def eventually(self, condition, what):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)


def in_threads(works):
    """Runs functions at once and returns what they returned; the first exception is raised."""
    results = [None] * len(works)
    errors = []

    def run(i):
        try:
            results[i] = works[i]()
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class SingleAnswers:
    """What the server answers when it is asked one thing at a time, with how close its best two tokens
    were, so that answers of busy times can be judged: kernels add in another order where more tokens are
    computed together, so two tokens that nearly tie may change places.
    """
    CLOSE = 1e-3

    def __init__(self, server, n_tokens):
        self.server = server
        self.n_tokens = n_tokens
        self.known = {}

    def body(self, prompt):
        return {"prompt": prompt, "n_predict": self.n_tokens, "temperature": 0, "return_tokens": True,
                "ignore_eos": True}

    def learn(self, prompts):
        for prompt in prompts:
            # Nothing of it computed in another batch before.
            answer = self.server.post("/completion", {**self.body(prompt), "n_probs": 2, "cache_prompt": False})
            gaps = []
            for token in answer["completion_probabilities"]:
                best, second = token["top_logprobs"][:2]
                gaps.append(best["logprob"] - second["logprob"])
            self.known[prompt] = (answer["tokens"], gaps)

    def check(self, prompt, tokens):
        """Whether they are the same up to a near tie; how many of them are the same."""
        expected, gaps = self.known[prompt]
        assert len(tokens) == len(expected), (prompt, tokens)
        for i, (a, b) in enumerate(zip(tokens, expected)):
            if a != b:
                assert gaps[i] < self.CLOSE, (prompt, i, gaps[i], tokens, expected)
                return i
        return len(tokens)
