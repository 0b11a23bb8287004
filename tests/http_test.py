#!/usr/bin/env python3
"""The server's HTTP, byte by byte over real sockets: who a request may be for, what it must look like, what
is answered before a body is read, and that long bodies keep nobody waiting.
"""
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time

from cli_fixture import BINARY, DEMO, TIMEOUT_S, TINY, environment, main
from server_fixture import Server, ServerFixture

CHAT = "/v1/chat/completions"
# Longer than a test may take: nothing here ends because a client was too slow.
PATIENCE = ("--client-timeout", str(2 * TIMEOUT_S))
PATHS = ["/", "/health", "/v1/health", "/metrics", "/props", "/slots", "/cache", "/v1/models", "/models", "/none",
         "/v1/models/x"]
POST_PATHS = [CHAT, "/chat/completions", "/v1/completions", "/completion", "/completions", "/tokenize", "/detokenize",
              "/apply-template"]


def request(method, target, *fields, body=b"", version="HTTP/1.1", host="localhost"):
    lines = [f"{method} {target} {version}"]
    if host is not None:
        lines.append(f"Host: {host}")
    if body and not any(f.lower().startswith(("content-length", "transfer-encoding")) for f in fields):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, *fields]).encode() + b"\r\n\r\n" + body


def parts(answer):
    """Status, header fields (names in lower case, each once) and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = [tuple(line.split(": ", 1)) for line in lines[1:]]
    named = {name.lower(): value for name, value in fields}
    assert len(named) == len(fields), lines
    return int(lines[0].split()[1]), named, body


class HttpFixture(ServerFixture):
    def status(self, data, server=None):
        status, fields, body = parts((server or self.server).raw(data))
        if status >= 400:
            error = json.loads(body)["error"]
            self.assertTrue(error["message"])
            self.assertEqual(fields["connection"], "close")
        return status

    def ask(self, method, target, *fields, **options):
        return self.status(request(method, target, "Connection: close", *fields, **options))


class HostTest(HttpFixture):
    FLAGS = (*PATIENCE, "--allowed-host", "Box.example", "--allowed-host", "other.example")

    def test_names_of_others_are_refused_on_every_path(self):
        for host in ("evil.example", f"evil.example:{self.server.port}", "localhost.evil.example", ""):
            for path in PATHS:
                self.assertEqual(self.ask("GET", path, host=host), 421, (path, host))
            for path in POST_PATHS:
                # As a page whose name has come to mean this machine sends it.
                self.assertEqual(self.ask("POST", path, f"Origin: http://{host}", body=b"{}", host=host), 421, path)
            self.assertEqual(self.ask("OPTIONS", CHAT, f"Origin: http://{host}", host=host), 421)

    def test_localhost_addresses_and_given_names_are_answered(self):
        for host in ("localhost", "LOCALHOST:1", f"127.0.0.1:{self.server.port}", "[::1]:8080", "192.168.7.9",
                     "box.example", "BOX.example.:80", "other.example"):
            self.assertEqual(self.ask("GET", "/", host=host), 200, host)
            self.assertEqual(self.ask("GET", "/props", f"Origin: http://{host.lower()}", host=host), 200, host)
            self.assertEqual(self.ask("GET", "/props", "Origin: http://evil.example", host=host), 403, host)

    def test_one_host(self):
        self.assertEqual(self.ask("GET", "/health", host=None), 400)
        self.assertEqual(self.ask("GET", "/health", "Host: localhost"), 400)
        self.assertEqual(self.ask("GET", "/health", "host: evil.example"), 400)
        self.assertEqual(self.ask("GET", "/health", host="a b"), 400)
        # No browser speaks HTTP/1.0, and health checks send no Host with it.
        self.assertEqual(self.ask("GET", "/health", host=None, version="HTTP/1.0"), 200)
        self.assertEqual(self.ask("GET", "/health", host="evil.example", version="HTTP/1.0"), 421)

    def test_absolute_targets(self):
        for target in ("http://localhost/health", f"HTTP://127.0.0.1:{self.server.port}/health?a=b", "http://box.example"):
            self.assertEqual(self.ask("GET", target, host="evil.example"), 200, target)
        self.assertEqual(self.ask("GET", "http://evil.example/health"), 421)
        self.assertEqual(self.ask("GET", "http://evil.example/props", "Origin: http://localhost"), 421)
        self.assertEqual(self.ask("GET", "http://localhost/props", "Origin: http://box.example", host="box.example"), 403)
        self.assertEqual(self.ask("GET", "ftp://localhost/health"), 400)

    def test_flags(self):
        server = self.own_server("--api-key", "secret", *PATIENCE)
        for host in ("evil.example", "localhost"):
            data = request("GET", "/props", "X-Api-Key: secret", "Connection: close", host=host)
            self.assertEqual(self.status(data, server), 200)
            self.assertEqual(self.status(request("GET", "/props", "Connection: close", host=host), server), 401)
        server.stop()
        server = self.own_server("--host", "0.0.0.0", *PATIENCE, env={"HOTSET_ALLOWED_HOST": "one.example,two.example"})
        for host, status in (("one.example", 200), ("two.example:80", 200), ("10.0.0.7:8080", 200), ("a.example", 421)):
            self.assertEqual(self.status(request("GET", "/", "Connection: close", host=host), server), status, host)
        server.stop()
        for name in ("http://a", "a:80", "a b", ""):
            done = subprocess.run([BINARY, "serve", "-m", DEMO, "--allowed-host", name], capture_output=True,
                                  timeout=TIMEOUT_S, env=environment())
            self.assertIn(done.returncode, (1, 2), name)
            self.assertIn(b"--allowed-host", done.stderr)


class FramingTest(HttpFixture):
    FLAGS = PATIENCE
    TOKENIZE = b'{"content":"a b"}'

    def test_what_is_no_http_is_answered_at_once(self):
        tls = bytes.fromhex("16030100a5010000a10303") + b"\1" * 150
        for data in (tls, b"GET /health HTTP/1.1\nHost: localhost\n\n", b"\n", b"GET /health HTTP/1.1\r\nX: \0",
                     b"\x80\x2e\x01\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n",
                     request("GET", "/health", "X: a", " b"), request("GET", "/health", "X : a"),
                     request("GET", "/health", "X: " + "a" * 9000), request("GET", "/health", *["X: a"] * 100)):
            self.assertIn(self.status(data), (400, 431, 505), data[:40])
        self.assertIn(b"TLS", self.server.raw(tls))
        self.assertIn(b'hotset_http_responses_total{code="431"} 2', self.server.request("GET", "/metrics")[2])

    def test_chunks_in_any_case(self):
        for coding in ("chunked", "Chunked", "CHUNKED"):
            body = b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(self.TOKENIZE), self.TOKENIZE)
            self.assertEqual(self.ask("POST", "/tokenize", f"Transfer-Encoding: {coding}", body=body), 200, coding)

    def test_only_what_will_be_read_is_asked_for(self):
        expects = ("Expect: 100-continue", "Connection: close")
        refused = [(request("POST", "/tokenize", *expects, "Content-Length: 999999999"), 413),
                   (request("POST", "/none", *expects, "Content-Length: 5"), 404),
                   (request("POST", "/health", *expects, "Content-Length: 5"), 405),
                   (request("POST", "/tokenize", *expects, "Content-Length: 5", host="evil.example"), 421),
                   (request("POST", "/tokenize", *expects, "Content-Length: 5", "Origin: http://evil.example"), 403),
                   (request("POST", "/tokenize", *expects, "Content-Length: 5", "Content-Type: multipart/form-data"), 415),
                   (request("POST", "/tokenize", *expects, "Content-Length: +5"), 400),
                   (request("POST", "/tokenize", "Expect: tea", "Connection: close", "Content-Length: 5"), 417)]
        for data, status in refused:
            self.assertEqual(self.status(data), status, data)
        length = f"Content-Length: {len(self.TOKENIZE)}"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT_S) as s:
            for _ in range(2):
                s.sendall(request("POST", "/tokenize", expects[0], length))
                self.assertEqual(s.recv(1 << 16), b"HTTP/1.1 100 Continue\r\n\r\n")
                s.sendall(self.TOKENIZE)
                answer = b""
                while not answer.endswith(b"]}"):
                    answer += s.recv(1 << 16)
                self.assertEqual(parts(answer)[0], 200)
        # Who sends the body at once is not told.
        self.assertEqual(self.ask("POST", "/tokenize", expects[0], body=self.TOKENIZE), 200)
        server = self.own_server("--api-key", "secret", *PATIENCE)
        self.assertEqual(self.status(request("POST", "/tokenize", *expects, length), server), 401)
        server.stop()

    def test_connections_end_as_they_say(self):
        self.assertEqual(self.status(request("GET", "/health", "Connection: Close")), 200)
        self.assertEqual(self.status(request("GET", "/health", "Connection: TE, close", "TE: trailers")), 200)
        # Several at once, answered in order.
        data = request("GET", "/health") + request("POST", "/tokenize", body=self.TOKENIZE) + b"\r\n" + request("GET", "/x")
        answer = self.server.raw(data)
        self.assertEqual(re.findall(rb"HTTP/1\.1 (\d+)", answer), [b"200", b"200", b"404"])
        # What was refused unread is no request of its own.
        inner = request("GET", "/props")
        for outer in (request("OPTIONS", CHAT, "Origin: http://localhost", body=inner), request("PUT", CHAT, body=inner),
                      request("GET", "/health", body=inner), request("POST", "/none", body=inner)):
            self.assertEqual(len(re.findall(rb"HTTP/1\.1 ", self.server.raw(outer))), 1, outer)

    def test_methods_and_ranges(self):
        status, fields, body = parts(self.server.raw(request("HEAD", "/", "Connection: close")))
        self.assertEqual((status, body), (200, b""))
        self.assertGreater(int(fields["content-length"]), 1000)
        for range_field in ("bytes=0-3", "bytes=9-1", "nonsense"):
            answer = self.server.raw(request("GET", "/health", f"Range: {range_field}", "Connection: close"))
            self.assertEqual(parts(answer)[::2], (200, b'{"status":"ok"}'))
        self.assertEqual(self.ask("BREW", "/health"), 501)
        self.assertEqual(self.ask("DELETE", "/health"), 405)
        self.assertEqual(self.ask("GET", "/%68ealth"), 200)
        for path in ("/%2e%2e/etc/passwd", "/%00", "/health%00", "/%zz", "//health", "/health/"):
            self.assertEqual(self.ask("GET", path), 404, path)

    def test_http_1_0_gets_no_chunks(self):
        body = json.dumps({"prompt": "The", "n_predict": 3, "stream": True, "ignore_eos": True}).encode()
        status, fields, text = parts(self.server.raw(request("POST", "/completion", body=body, version="HTTP/1.0")))
        self.assertEqual(status, 200)
        self.assertNotIn("transfer-encoding", fields)
        self.assertEqual(fields["connection"], "close")
        self.assertTrue(json.loads(text.strip().split(b"\n\n")[-1].removeprefix(b"data: "))["stop"])
        self.assertEqual(self.ask("POST", "/tokenize", "Transfer-Encoding: chunked", body=b"0\r\n\r\n", version="HTTP/1.0"),
                         400)


class OverloadTest(HttpFixture):
    FLAGS = (*PATIENCE, "--max-connections", "3", "--max-body-mib", "1")

    def test_more_connections_than_accepted(self):
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(3)]
        for s in idle:
            s.sendall(request("GET", "/health"))
            self.assertEqual(parts(s.recv(1 << 16))[0], 200)
        # The answer comes whole, though nobody has read the request.
        body = b" " * 100_000
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT_S) as s:
                s.sendall(request("POST", "/tokenize", f"Content-Length: {len(body)}"))
                time.sleep(0.005)
                try:
                    s.sendall(body)
                except ConnectionError:
                    pass
                answer = b""
                while piece := s.recv(1 << 16):
                    answer += piece
            status, fields, text = parts(answer)
            self.assertEqual((status, fields["retry-after"]), (503, "1"))
            self.assertIn("--max-connections", json.loads(text)["error"]["message"])
        for s in idle:
            s.close()
        self.eventually(lambda: self.server.raw(request("GET", "/health", "Connection: close")).startswith(b"HTTP/1.1 200"),
                        "connections are not freed")

    def test_more_of_long_bodies_than_is_held(self):
        """Clients that send long bodies slowly hold memory: so much in all, and short requests do not suffer."""
        server = self.own_server(*PATIENCE, "--max-body-mib", "1")
        long_one = request("POST", "/tokenize", f"Content-Length: {1 << 20}", "Expect: 100-continue")
        slow = []
        # 8 MiB are held of what each has above a quarter of one.
        for _ in range(10):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
            s.sendall(long_one)
            self.assertIn(b"100 Continue", s.recv(1 << 16))
            s.sendall(b" " * ((1 << 20) - 1))
            slow.append(s)

        def first_answer():
            with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as s:
                s.sendall(long_one)
                return s.recv(1 << 16)

        self.eventually(lambda: b" 503 " in first_answer(), "any number of long bodies is held")
        status, fields, _ = parts(first_answer())
        self.assertEqual((status, fields["retry-after"]), (503, "1"))
        answer = server.post("/completion", {"prompt": "The", "n_predict": 2, "ignore_eos": True})
        self.assertEqual(answer["tokens_predicted"], 2)
        for s in slow:
            s.close()
        self.eventually(lambda: b" 100 " in first_answer(), "the room is not given back")
        server.stop()


class LongBodiesTest(ServerFixture):
    """Small chats while long requests are at work: refused by their length alone, and those that are rendered and
    made tokens before it shows that they do not fit."""
    # Sanitizers make all of it many times slower.
    N_BYTES, MOST_S = (18 << 20, 0.5) if "release" in BINARY else (1 << 20, 10)
    SMALL = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "long.gguf"
        subprocess.run([BINARY, "model", "random", *TINY, "--tokenizer-from", DEMO, "-o", model], check=True,
                       timeout=TIMEOUT_S, env=environment())
        cls.server = Server("--parallel", "2")
        # A token of this vocabulary has up to some dozens of bytes, and most have four.
        cls.roomy = Server("--parallel", "2", "-c", str(cls.N_BYTES // 20), model=model)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.roomy.stop()
        cls.folder.cleanup()

    def test_they_keep_nobody_waiting(self):
        text = "the word and another one " * (self.N_BYTES // 25)
        chat = json.dumps({**self.SMALL, "messages": [{"role": "user", "content": text}]})
        completion = json.dumps({"prompt": text, "max_tokens": 1})
        for server, by_length in ((self.server, True), (self.roomy, False)):
            for path, data in ((CHAT, chat), ("/v1/completions", completion)):
                # Others use this machine too; one try that was not disturbed will do.
                waits_s = []
                for _ in range(5):
                    waits_s.append(self.longest_wait_s(server, path, data, by_length))
                    if waits_s[-1] < self.MOST_S:
                        break
                self.assertLess(waits_s[-1], self.MOST_S, (path, by_length, waits_s))

    def longest_wait_s(self, server, path, data, by_length):
        """How long small chats wait at most that come while a long request is at work."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(server.error(path, data)))
        thread.start()
        longest_s = 0
        while thread.is_alive():
            begin = time.monotonic()
            server.post(CHAT, self.SMALL)
            longest_s = max(longest_s, time.monotonic() - begin)
        status, error = answers[0]
        self.assertEqual((status, error["code"]), (400, "context_length_exceeded"))
        self.assertEqual("at least" in error["message"], by_length, error["message"])
        return longest_s


if __name__ == "__main__":
    main()
