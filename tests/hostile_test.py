#!/usr/bin/env python3
"""Malformed and hostile requests, each with the answer that is due, while a stream keeps running: it must
come whole, and as if nothing had happened. And what the server does under load, for a while.
"""
import json
import os
import random
import socket
import struct
import threading
import time

from cli_fixture import TIMEOUT_S, main
from server_fixture import Server, ServerFixture, SingleAnswers, in_threads

CHAT = "/v1/chat/completions"
HI = {"role": "user", "content": "Hi"}


def http(method, path, body=b"", headers=(), version="HTTP/1.1"):
    lines = [f"{method} {path} {version}", "Host: localhost", *headers]
    if body and not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def post(path, value, **options):
    return http("POST", path, value if isinstance(value, bytes) else json.dumps(value).encode(), **options)


def chat(**fields):
    return post(CHAT, {"messages": [HI], "max_tokens": 1, **fields})


def completion(**fields):
    return post("/completion", {"prompt": "Hi", "n_predict": 1, **fields})


# Name, bytes, statuses that are right (None: closed without an answer), and what the answer must say.
REQUESTS = [
    # What is no HTTP.
    ("an empty line", b"\r\n\r\n", (400,), ""),
    ("noise", bytes(range(256)) * 8, (400,), "0x00"),
    ("TLS", bytes.fromhex("16030100a5010000a10303") + b"\0" * 150, (400,), "TLS"),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (505,), "HTTP/1.1"),
    ("no version", b"GET /health\r\n\r\n", (400,), "request line"),
    ("an unknown version", http("GET", "/health", version="HTTP/9.9"), (505,), "HTTP/9.9"),
    ("a line without end", b"GET /" + b"a" * 100000, (414,), "target"),
    ("a long path", http("GET", "/" + "a" * 9000), (414,), "target"),
    ("a long header", http("GET", "/health", headers=["X: " + "a" * 60000]), (431,), "header"),
    ("many headers", http("GET", "/health", headers=[f"X{i}: a" for i in range(500)]), (431,), "header fields"),
    ("a header without colon", http("GET", "/health", headers=["nonsense"]), (400,), "nonsense"),
    ("a null byte in a header", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", (400,), "control character"),
    ("an unknown method", http("BREW", "/health"), (501,), "BREW"),
    ("a path of dots", http("GET", "/../../etc/passwd"), (404, 400), ""),
    ("an encoded path of dots", http("GET", "/%2e%2e/%2e%2e/etc/passwd"), (404, 400), ""),
    ("a broken escape", http("GET", "/%zz%"), (404, 400), ""),
    # Methods and paths.
    ("a path that is none", http("GET", "/v2/chat"), (404,), "no path"),
    ("GET where POST is due", http("GET", CHAT), (405,), "expected POST"),
    ("POST where GET is due", post("/health", {}), (405,), "expected GET"),
    ("DELETE", http("DELETE", "/v1/models/x"), (405,), ""),
    ("a body with GET", http("GET", "/health", b"abc"), (400,), "body"),
    # Lengths.
    ("no length", http("POST", CHAT), (411,), "Content-Length"),
    ("a length that is none", http("POST", CHAT, b"{}", headers=["Content-Length: abc"]), (400,), "Content-Length"),
    ("a negative length", http("POST", CHAT, b"{}", headers=["Content-Length: -2"]), (400,), "Content-Length"),
    ("two lengths", http("POST", CHAT, b"{}", headers=["Content-Length: 2", "Content-Length: 3"]), (400,), "once"),
    ("length and chunks", http("POST", CHAT, b"0\r\n\r\n", headers=["Content-Length: 2", "Transfer-Encoding: chunked"]),
     (400,), "once"),
    ("a length of 2^63", http("POST", CHAT, b"{}", headers=["Content-Length: 9223372036854775808"]), (413,), "at most"),
    ("a length of 100 MB", http("POST", CHAT, b"{}", headers=["Content-Length: 100000000"]), (413,), "at most"),
    ("a body of 100 MB", http("POST", CHAT, b"[" * 100_000_000), (413,), "at most"),
    ("chunks of 100 MB", http("POST", CHAT, b"5f5e100\r\n" + b" " * 100_000_000 + b"\r\n0\r\n\r\n",
                              headers=["Transfer-Encoding: chunked"]), (413,), "more than"),
    ("a broken chunk", http("POST", CHAT, b"zz\r\n{}\r\n0\r\n\r\n", headers=["Transfer-Encoding: chunked"]), (400,), ""),
    ("another coding", http("POST", CHAT, b"{}", headers=["Transfer-Encoding: gzip"]), (400,), "chunked"),
    ("gzip that is none", http("POST", CHAT, b"{}", headers=["Content-Encoding: gzip"]), (400, 415), ""),
    ("a form", http("POST", CHAT, b"--x\r\n\r\n--x--", headers=["Content-Type: multipart/form-data; boundary=x"]),
     (415,), "form"),
    ("expecting too much", http("POST", CHAT, headers=["Content-Length: 100000000", "Expect: 100-continue"]),
     (413,), "at most"),
    # JSON.
    ("an empty body", http("POST", CHAT, headers=["Content-Length: 0"]), (400,), "JSON"),
    ("no JSON", post(CHAT, b"hello"), (400,), "JSON"),
    ("cut off", post(CHAT, b'{"messages": ['), (400,), "JSON"),
    ("10,000 arrays", post(CHAT, b"[" * 10000 + b"]" * 10000), (400,), "deep"),
    ("10,000 objects", post(CHAT, b'{"a":' * 10000 + b"1" + b"}" * 10000), (400,), "deep"),
    ("arrays in messages", post(CHAT, b'{"messages":' + b"[" * 10000 + b"]" * 10000 + b"}"), (400,), "deep"),
    ("no UTF-8", post(CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'), (400,), "JSON"),
    ("half a surrogate", post(CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}'), (400,), "JSON"),
    ("a number too large", post(CHAT, b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}'), (400,), ""),
    ("an array", post(CHAT, []), (400,), "expected an object"),
    ("null", post(CHAT, b"null"), (400,), "expected an object"),
    # Fields.
    ("no messages", post(CHAT, {}), (400,), "messages: found null"),
    ("messages of text", post(CHAT, {"messages": "hi"}), (400,), 'messages: found "hi"'),
    ("a message of text", post(CHAT, {"messages": ["hi"]}), (400,), "messages[0]: found"),
    ("no role", post(CHAT, {"messages": [{"content": "a"}]}), (400,), "messages[0].role"),
    ("content of numbers", post(CHAT, {"messages": [{"role": "user", "content": 5}]}), (400,), "messages[0].content"),
    ("an image", post(CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), (400,), "[0].type"),
    ("a hot temperature", chat(temperature="hot"), (400,), 'temperature: found "hot"'),
    ("a negative temperature", chat(temperature=-1), (400,), "temperature: found -1"),
    ("top_p above 1", chat(top_p=1.5), (400,), "top_p"),
    ("half a token", chat(max_tokens=1.5), (400,), "max_tokens: found 1.5"),
    ("max_tokens of 10^12", chat(max_tokens=10**12), (400,), "max_tokens"),
    ("a thousand choices", chat(n=1000), (400,), "n: found 1000"),
    ("no choice", chat(n=0), (400,), "n: found 0"),
    ("a stream of text", chat(stream="yes"), (400,), "stream: found"),
    ("stop of numbers", chat(stop=[1]), (400,), "stop[0]"),
    ("an empty stop", chat(stop=["a", ""]), (400,), "stop[1]"),
    ("a stop of a megabyte", chat(stop="a" * 2**20), (400,), "stop: found"),
    ("a role that nobody knows", post(CHAT, {"messages": [{"role": "narrator", "content": "a"}]}), (400,),
     "messages[0].role"),
    ("no part", post(CHAT, {"messages": [{"role": "user", "content": []}]}), (400,), "messages[0].content"),
    ("a thousand stops", chat(stop=["a"] * 1000), (400,), "stop: found 1000"),
    ("a seed of text", chat(seed="a"), (400,), "seed"),
    ("a bias of text", chat(logit_bias={"1": "a"}), (400,), "logit_bias"),
    ("a bias for no token", chat(logit_bias={"999999": 1}), (400,), "logit_bias.999999: found 999999"),
    ("a bias for a name", chat(logit_bias={"x": 1}), (400,), "logit_bias"),
    ("top_logprobs alone", chat(top_logprobs=3), (400,), "top_logprobs"),
    ("30 top_logprobs", chat(logprobs=True, top_logprobs=30), (400,), "top_logprobs"),
    ("JSON mode", chat(response_format={"type": "json_object"}), (400,), "response_format"),
    ("what another server would do", chat(guided_json={"type": "object"}), (400,), "guided_json"),
    ("a misspelt field", completion(temprature=0), (400,), "temprature: found 0"),
    ("functions", chat(functions=[{"name": "f"}]), (400,), "functions"),
    ("tools of text", chat(tools="f"), (400,), "tools"),
    ("a tool without a name", chat(tools=[{"type": "function", "function": {}}]), (400,), "tools[0].function.name"),
    ("a tool that is not there", chat(tool_choice={"type": "function", "function": {"name": "f"}}), (400,), "tool_choice"),
    ("variables of text", chat(chat_template_kwargs="x"), (400,), "chat_template_kwargs"),
    ("stream options of text", chat(stream=True, stream_options="x"), (400,), "stream_options"),
    ("too long a chat", chat(messages=[{"role": "user", "content": "word " * 20000}]), (400,), "messages: found"),
    ("no prompt", post("/completion", {}), (400,), "prompt"),
    ("an empty prompt array", completion(prompt=[]), (400,), "prompt"),
    ("two prompts", completion(prompt=["a", "b"]), (400,), "prompt"),
    ("a token that is none", completion(prompt=[1, 99999]), (400,), "prompt[1]: found 99999, expected a token id below 4096"),
    ("a negative token", completion(prompt=[-1]), (400,), "prompt[0]"),
    ("a token that is none in a list of lists", post("/v1/completions", {"prompt": [[1], [1, 2, 99999999]]}), (400,),
     "prompt[1][2]: found 99999999"),
    ("a token of text", completion(prompt=[1, "a"]), (400,), "prompt[1]"),
    ("a prompt of 2,000 tokens", completion(prompt=[5] * 2000), (400,), "2000 tokens, but the context holds 1024"),
    ("a grammar", completion(grammar="root ::= x"), (400,), "grammar"),
    ("100 prompts", post("/v1/completions", {"prompt": ["a"] * 100}), (400,), "prompt: found 100"),
    ("a suffix", post("/v1/completions", {"prompt": "a", "suffix": "b"}), (400,), "suffix"),
    ("tokenizing numbers", post("/tokenize", {"content": 5}), (400,), "content"),
    ("detokenizing text", post("/detokenize", {"tokens": "a"}), (400,), "tokens"),
    ("detokenizing what is none", post("/detokenize", {"tokens": [99999]}), (400,), "99999"),
    ("another origin", http("POST", CHAT, b"{}", headers=["Origin: http://evil.example"]), (403,), "Origin"),
    # What is odd, but right.
    ("all defaults null", chat(temperature=None, stop=None, n=None, logit_bias=None), (200,), ""),
    ("fields that do nothing", chat(user="me", metadata={"a": 1}, service_tier="auto", store=True, min_tokens=0,
                                     typical_p=1, repetition_penalty=1, logit_bias={}, nobody_knows=None), (200,), ""),
    ("chunks", http("POST", "/tokenize", b'e\r\n{"content":"a"\r\n1\r\n}\r\n0\r\n\r\n',
                    headers=["Transfer-Encoding: chunked"]), (200,), "tokens"),
    ("bytes that are no text, escaped", post("/detokenize", {"tokens": [200, 201, 202]}), (200,), "content"),
    ("null bytes in a message", chat(messages=[{"role": "user", "content": "a\0b"}]), (200,), ""),
    ("right-to-left and emoji", chat(messages=[{"role": "user", "content": "שלום 👩‍👩‍👧"}]), (200,), ""),
]


class HostileTest(ServerFixture):
    FLAGS = ("--client-timeout", "1", "--repack", "off", "--parallel", "2")
    BODY = {"prompt": "The history of", "n_predict": 400, "temperature": 0, "ignore_eos": True, "return_tokens": True,
            "cache_prompt": False}

    def stream_tokens(self):
        tokens = []
        for part in self.server.stream("/completion", self.BODY):
            tokens += part["tokens"]
        return tokens

    def test_hostile_requests(self):
        self.assertGreaterEqual(len(REQUESTS), 60)
        alone = self.stream_tokens()
        self.assertEqual(len(alone), 400)
        streamed = []
        ends = threading.Event()
        begun = threading.Event()

        def keep_streaming():
            while not ends.is_set():
                begun.set()
                streamed.append(self.stream_tokens())

        thread = threading.Thread(target=keep_streaming)
        thread.start()
        try:
            begun.wait()
            rss_kib = self.server.rss_kib()
            for name, data, statuses, part in REQUESTS:
                with self.subTest(name):
                    self.check(data, statuses, part)
            # Bodies are dropped as they come.
            self.assertLess(self.server.rss_kib() - rss_kib, 300 * 1024)
        finally:
            ends.set()
            thread.join()
        self.assertGreater(len(streamed), 0)
        for tokens in streamed:
            self.assertEqual(tokens, alone)

    def check(self, data, statuses, part):
        if data.startswith((b"GET", b"POST", b"DELETE", b"BREW", b"OPTIONS")):
            # The connection ends behind the answer.
            data = data.replace(b"\r\nHost: localhost", b"\r\nHost: localhost\r\nConnection: close", 1)
        answer = self.server.raw(data)
        if not answer:
            self.assertIn(None, statuses)
            return
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 "), answer[:200])
        status = int(head.split()[1])
        self.assertIn(status, statuses, answer[:500])
        if status >= 400 and b"Content-Length: 0" not in head:
            error = json.loads(body)["error"]
            self.assertTrue(error["message"])
            self.assertIn("type", error)
        self.assertIn(part.encode(), body.replace(b'\\"', b'"'))

    def test_half_requests_are_closed(self):
        """They end by the limits, and nobody waits for them."""
        half = [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: x\r\n", http("POST", CHAT, headers=["Content-Length: 100"]) + b'{"me']
        sockets = []
        for data in half * 8:
            s = socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT_S)
            s.sendall(data)
            sockets.append(s)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})
        for data, s in zip(half * 8, sockets):
            if data:  # an idle connection may stay
                received = b""
                try:
                    while piece := s.recv(1 << 16):
                        received += piece
                except ConnectionResetError:
                    pass
                if received:
                    self.assertTrue(received.startswith(b"HTTP/1.1 4"), received)
            s.close()

    def test_one_byte_at_a_time(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT_S) as s:
            begin = time.monotonic()
            try:
                for byte in b"GET /health HTTP/1.1\r\nX: " + b"a" * 2000:
                    s.sendall(bytes([byte]))
                    time.sleep(0.05)
                    if time.monotonic() - begin > TIMEOUT_S:
                        self.fail("a header may take forever")
            except (BrokenPipeError, ConnectionResetError):
                return
        self.fail("a header may take forever")

    def test_slow_readers_do_not_hold_others(self):
        body = json.dumps({"prompt": "The", "n_predict": 400, "ignore_eos": True, "stream": True, "n_probs": 20}).encode()
        sockets = []
        for _ in range(2):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", self.server.port))
            s.sendall(http("POST", "/completion", body))
            sockets.append(s)  # never read
        answer = self.server.post("/completion", {"prompt": "The sea", "n_predict": 5})
        self.assertEqual(answer["tokens_predicted"], 5)
        # Their texts are generated whether they read or not; then the server gives up on them.
        self.eventually(self.server.idle, "slow readers keep their slots")
        self.eventually(lambda: b"hotset_connections 1\n" in self.server.request("GET", "/metrics")[2],
                        "slow readers keep their connections")
        for s in sockets:
            s.close()

    def test_resets(self):
        for data in (b"", http("POST", "/completion", b'{"prompt":"The","n_predict":900,"ignore_eos":true}'), b"GET / HT"):
            for _ in range(10):
                s = socket.create_connection(("127.0.0.1", self.server.port))
                s.sendall(data)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
        self.eventually(self.server.idle, "requests of clients that have gone still run")


class LoadTest(ServerFixture):
    # With kernels that round the same for most batch sizes, so that answers can be compared.
    FLAGS = ("--parallel", "8", "--repack", "off")
    # AddressSanitizer keeps what was freed, 256 MiB unless told otherwise, and memory is measured here.
    ENV = {"ASAN_OPTIONS": ":".join([*filter(None, [os.environ.get("ASAN_OPTIONS")]), "quarantine_size_mb=16"])}
    SECONDS = float(os.environ.get("HOTSET_LOAD_SECONDS", "10"))
    CLIENTS = 32

    def test_many_clients(self):
        """Every answer is that of a single request, or differs first where two tokens nearly tied."""
        answers = SingleAnswers(self.server, 24)
        starts = ["The history of", "In the year", "My dear", "London and", "It was", "When the", "She said", "At last"]
        prompts = [f"{a} {b}" for a in starts for b in ("the sea", "a captain", "his son", "that day")]
        answers.learn(prompts)
        counts = {"answers": 0, "same": 0, "tokens": 0}
        lock = threading.Lock()
        warm_kib = []
        end = time.monotonic() + self.SECONDS

        def client(number):
            picks = random.Random(number)
            while time.monotonic() < end:
                prompt = picks.choice(prompts)
                body = answers.body(prompt)
                if picks.random() < 0.5:
                    tokens = [t for part in self.server.stream("/completion", body) for t in part["tokens"]]
                else:
                    tokens = self.server.post("/completion", body)["tokens"]
                same = answers.check(prompt, tokens)
                with lock:
                    counts["answers"] += 1
                    counts["same"] += same
                    counts["tokens"] += len(tokens)
                    if counts["answers"] == 100:
                        warm_kib.append(self.server.rss_kib())

        in_threads([lambda n=n: client(n) for n in range(self.CLIENTS)])
        grown_kib = self.server.rss_kib() - (warm_kib or [self.server.rss_kib()])[0]
        print(f"{counts['answers']} answers, {counts['tokens'] / self.SECONDS:.0f} tokens/s, "
              f"{counts['same']} of {counts['tokens']} tokens as alone, memory grown by {grown_kib} KiB")
        self.assertGreater(counts["answers"], self.CLIENTS)
        self.assertLess(grown_kib, 64 * 1024)
        self.eventually(self.server.idle, "something still runs")


if __name__ == "__main__":
    main()
