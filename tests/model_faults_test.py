#!/usr/bin/env python3
"""Model files that go wrong while they are used: one expert whose scale is no number, and a file that is cut
while it is mapped. What needs them ends with an error that says so; what does not goes on.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

from cli_fixture import BINARY, DEMO, TIMEOUT_S, CliFixture, environment, is_sanitized, main
from server_fixture import Server, in_threads

N_EXPERTS = 64
N_LAYERS = 4
SHAPE = ["--layers", N_LAYERS, "--embd", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32", "--experts",
         N_EXPERTS, "--experts-used", "2", "--expert-width", "32", "--ctx-train", "1000000", "--tokenizer-from", DEMO]
GOOD = [72, 546, 111, 488]
BAD = [300, 17, 911, 45, 260]
NAN = struct.pack("<H", 0x7E00)
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def as_text(ids):
    return ",".join(map(str, ids))


def tensors(path):
    """Offset in the file of each tensor, and how many bytes there are up to the next one."""
    data = path.read_bytes()
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            element, n = take("I"), take("Q")
            return [value(element) for _ in range(n)]
        return take(FORMATS[kind])

    assert data[:4] == b"GGUF"
    at = 8
    n_tensors, n_keys = take("Q"), take("Q")
    alignment = 32
    for _ in range(n_keys):
        key = text()
        found = value(take("I"))
        if key == "general.alignment":
            alignment = found
    offsets = {}
    for _ in range(n_tensors):
        name = text()
        for _ in range(take("I")):
            take("Q")
        take("I")
        offsets[name] = take("Q")
    begin = (at + alignment - 1) // alignment * alignment
    ends = sorted(offsets.values()) + [len(data) - begin]
    return {name: (begin + offset, ends[ends.index(offset) + 1] - offset) for name, offset in offsets.items()}


class ModelFaults(CliFixture):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hotset-faults-"))
        cls.sound = cls.folder / "sound.gguf"
        subprocess.run([BINARY, "model", "random", *map(str, SHAPE), "-o", cls.sound], check=True, timeout=TIMEOUT_S,
                       env=environment(), stderr=subprocess.DEVNULL)

    def routing(self, tokens):
        """By layer, the experts that these tokens need."""
        path = self.folder / "routing.json"
        self.ok("eval", "-m", self.sound, "--tokens", as_text(tokens), "--routing-out", path,
                "--repack", "off", "-t", 1)
        return {int(layer): set(ids) for layer, ids in json.loads(path.read_text()).items()}

    def spoilt(self, layer):
        """A copy of the model in which BAD needs an expert whose scale is NaN, and what GOOD and its reply need not.
        Returns it with the expert and the reply to GOOD."""
        run = self.ok_json("run", "-m", self.sound, "--prompt-tokens", as_text(GOOD), "-n", 8, "--temp", 0,
                           "--repack", "off", "-t", 1, "--ignore-eos")
        good = self.routing(GOOD + run["tokens"])
        bad = self.routing(BAD)
        expert = min(bad[layer] - good[layer])
        path = self.folder / f"spoilt-{layer}.gguf"
        data = bytearray(self.sound.read_bytes())
        begin, n_bytes = tensors(self.sound)[f"blk.{layer}.ffn_down_exps.weight"]
        at = begin + n_bytes // N_EXPERTS * expert
        data[at:at + 2] = NAN
        path.write_bytes(data)
        return path, expert, run["tokens"]

    def server(self, *arguments, model):
        server = Server(*arguments, model=model)

        def end():
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()
            server.process.stdout.close()

        self.addCleanup(end)
        return server

    def test_commands_end_with_an_error(self):
        path, expert, _ = self.spoilt(1)
        what = ("spoilt-1.gguf", "NaN", f"'blk.1.ffn_down_exps.weight', expert {expert}")
        for command in (("run", "--prompt-tokens", as_text(BAD), "-n", 4), ("eval", "--tokens", as_text(BAD))):
            self.fails(1, what, *command, "-m", path, "-t", 1)
        everything = self.folder / "everything.gguf"
        data = bytearray(self.sound.read_bytes())
        begin, n_bytes = tensors(self.sound)["output_norm.weight"]
        data[begin:begin + n_bytes] = struct.pack("<f", float("nan")) * (n_bytes // 4)
        everything.write_bytes(data)
        if is_sanitized():  # which bench refuses to measure
            return
        done = self.hotset("bench", "-m", everything, "-t", 1, "-p", 8, "-n", 2)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"everything.gguf: the model computed numbers that are NaN", done.stderr)

    def test_scores_of_a_router_that_are_no_numbers(self):
        # Sorting them must not lead out of the experts there are.
        path = self.folder / "router.gguf"
        begin, n_bytes = tensors(self.sound)["blk.1.ffn_gate_inp.weight"]
        for experts in ([3], range(0, N_EXPERTS, 2), range(N_EXPERTS)):
            data = bytearray(self.sound.read_bytes())
            for expert in experts:
                at = begin + n_bytes // N_EXPERTS * expert
                data[at:at + 4] = struct.pack("<f", float("nan"))
            path.write_bytes(data)
            for device in ("none", "emu"):
                self.hotset("run", "-m", path, "--prompt-tokens", as_text(BAD * 8), "-n", 4, "-t", 1, "--device",
                            device)

    def test_one_reply_fails_and_the_others_are_as_they_were(self):
        for flash in ("off", "on"):
            path, expert, expected = self.spoilt(1)
            server = self.server("--parallel", 4, "--flash-attn", flash, "--repack", "off", "-c", 512, model=path)
            good = {"prompt": GOOD, "n_predict": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True,
                    "cache_prompt": False}
            bad = {"prompt": BAD, "n_predict": 8, "temperature": 0}

            def ask_good():
                for _ in range(6):
                    self.assertEqual(server.post("/completion", good)["tokens"], expected)

            def ask_bad():
                for _ in range(3):
                    status, error = server.error("/completion", bad)
                    self.assertEqual(status, 500)
                    self.assertIn("NaN", error["message"])
                events = list(server.stream("/v1/completions", {"prompt": BAD, "max_tokens": 8}))
                self.assertIn("NaN", events[-1]["error"]["message"])

            in_threads([ask_good, ask_bad, ask_good, ask_bad])
            ask_good()
            metrics = server.request("GET", "/metrics")[2].decode()
            self.assertIn("\nhotset_not_finite_total 8\n", metrics)
            self.assertIn('\nhotset_choices_total{reason="error"} 8\n', metrics)
            said = server.stop().decode()
            self.assertEqual(said.count(f"'blk.1.ffn_down_exps.weight', expert {expert}"), 8)

    def test_a_file_that_is_cut_ends_run_with_a_message(self):
        path = self.folder / "cut.gguf"
        run = ("run", "--prompt-tokens", as_text(GOOD), "-n", 100000, "-c", 100000, "--ignore-eos")
        for device in ((), ("--device", "emu", "--moe-cache-mib", "0")):
            shutil.copyfile(self.sound, path)
            process = self.start(*run, *device, "-m", path, "-t", 1, "--repack", "off")
            self.assertTrue(process.stdout.read(1), device)
            os.truncate(path, 4096)
            _, stderr = process.communicate(timeout=TIMEOUT_S)
            self.check_end(process.returncode, stderr)
            self.assertEqual(process.returncode, 1, stderr)
            self.assertIn(b"hotset: error: ", stderr)
            self.assertIn(b"cut.gguf: found 4096 bytes, expected ", stderr)

    def test_a_server_outlives_its_file(self):
        path = self.folder / "served.gguf"
        shutil.copyfile(self.sound, path)
        server = self.server("--repack", "off", "-c", 512, model=path)
        ask = {"prompt": GOOD, "n_predict": 4, "temperature": 0}
        self.assertEqual(server.post("/completion", ask)["tokens_predicted"], 4)
        os.truncate(path, 4096)
        for _ in range(2):
            status, error = server.error("/completion", {**ask, "cache_prompt": False})
            self.assertEqual(status, 500)
            self.assertIn("cut while it was in use", error["message"])
        self.assertEqual(server.get("/health"), {"status": "ok"})
        self.assertIn(b"served.gguf: found 4096 bytes", server.stop())


if __name__ == "__main__":
    main()
