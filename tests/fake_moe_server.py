#!/usr/bin/env python3
"""A server for the tests of `hotset tune -- SERVER`, whose speed follows from known rates.

It speaks /health (503 at first), /props and /completion, writes the routing of what it served to
LLAMA_MOE_CACHE_TRACE, and says at its end how many hits and misses its cache had. Its routing is made
up; what its cache does with it, and so what it takes, it learns from `hotset replay --compat-zero-slots`.
"""
import argparse
import csv
import http.server
import io
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading

N_LAYER, N_EXPERT, K = 4, 32, 4
EXPERT_BYTES = 150_000  # of each of two tensors
PROMPT_TOKENS = 40      # more than 32: such lookups leave the reference's cache alone


def header():
    data = b"MCT1" + struct.pack("<III", N_LAYER, K, 1) + struct.pack("<III", 0, N_EXPERT, N_LAYER)
    data += struct.pack(f"<{N_LAYER}I", *range(N_LAYER))
    host = N_LAYER * N_EXPERT * EXPERT_BYTES * 2
    data += struct.pack("<dd", 1.0, 1.0) + struct.pack("<QQQ", host, host, 128)
    return data + struct.pack("<I", 2) + struct.pack("<QQ", EXPERT_BYTES, EXPERT_BYTES)


class Model:
    def __init__(self, flags):
        self.flags = flags
        self.random = random.Random(7)
        self.noise = random.Random(int(os.environ.get("FAKE_SEED", "1")))
        self.trace = bytearray(header())
        self.n_tokens = 0
        self.last = [[] for _ in range(N_LAYER)]
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory()

    def experts(self, layer):
        # Popular experts, and some of the token before.
        kept = [e for e in self.last[layer] if self.random.random() < 0.4]
        while len(kept) < K:
            expert = min(int(self.random.paretovariate(0.7)) - 1, N_EXPERT - 1)
            expert = (expert * 7 + layer * 5) % N_EXPERT
            if expert not in kept:
                kept.append(expert)
        self.last[layer] = kept
        return kept

    def step(self, n_tokens):
        rows = [[self.experts(layer) for layer in range(N_LAYER)] for _ in range(n_tokens)]
        for layer in range(N_LAYER):
            ids = [expert for row in rows for expert in row[layer]]
            self.trace += struct.pack("<iii", layer, K, len(ids)) + struct.pack(f"<{len(ids)}i", *ids)
        self.n_tokens += n_tokens

    def replay(self, skip_tokens):
        path = pathlib.Path(self.folder.name) / "trace.mct"
        path.write_bytes(self.trace)
        done = subprocess.run([os.environ["HOTSET_BINARY"], "replay", path, "--compat-zero-slots",
                               "--policy", "class_lru", "--cache-mib", str(self.flags.moe_cache_mib),
                               "--share", str(self.flags.moe_cache_cpu_share), "--skip-tokens",
                               str(skip_tokens), "--csv"], check=True, capture_output=True, text=True)
        return {k: float(v) for k, v in next(csv.DictReader(io.StringIO(done.stdout))).items()
                if k not in ("trace", "policy", "slots")}

    def complete(self, n):
        with self.lock:
            self.step(PROMPT_TOKENS)
            begin = self.n_tokens
            for _ in range(n - 1):
                self.step(1)
            found = self.replay(begin)
            # The first token comes with the prompt, whose time is not counted here.
            up = found["upload_gib_per_token"] * found["tokens"]
            cpu = found["cpu_gib_per_token"] * found["tokens"]
            ms = (n - 1) * (self.flags.base_ms + (self.flags.split_ms
                                                  if self.flags.moe_cache_cpu_share > 0 else 0))
            ms += up * self.flags.up_ms + cpu * self.flags.cpu_ms
            ms *= 1 + self.flags.noise * self.noise.uniform(-1, 1)
            return {"prompt_n": PROMPT_TOKENS, "prompt_ms": 50.0, "predicted_n": n - 1,
                    "predicted_ms": ms}

    def finish(self):
        found = self.replay(0)
        print(f"llama_moe_cache: ubatch <= 8: hits = {int(found['hits'])}, "
              f"misses = {int(found['uploads'] + found['cpu'])}", flush=True)
        path = os.environ.get("LLAMA_MOE_CACHE_TRACE")
        if path and self.flags.fault != "no-trace":
            pathlib.Path(path).write_bytes(self.trace)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--moe-cache-mib", type=float, required=True)
    parser.add_argument("--moe-cache-cpu-share", type=float, required=True)
    for name, value in (("base", 9.0), ("up", 700.0), ("cpu", 450.0), ("split", 0.6)):
        parser.add_argument(f"--{name}-ms", type=float, default=value)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--fault", default="")
    flags = parser.parse_args()
    if flags.fault == "exit":
        sys.exit("fake: no such model")
    model = Model(flags)
    health = iter([503, 503])

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def answer(self, status, value):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path == "/health":
                self.answer(next(health, 200), {})
            elif self.path == "/props":
                self.answer(200, {"model_path": "/models/fake-moe.gguf", "total_slots": 1})
            else:
                self.answer(404, {})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/completion" or not request["ignore_eos"] or request["cache_prompt"]:
                return self.answer(400, {"error": "not as expected"})
            if flags.fault == "no-timings":
                return self.answer(200, {"content": "x"})
            return self.answer(200, {"content": "x", "timings": model.complete(request["n_predict"])})

    server = http.server.ThreadingHTTPServer((flags.host, flags.port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    model.finish()


if __name__ == "__main__":
    main()
