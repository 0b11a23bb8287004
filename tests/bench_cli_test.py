#!/usr/bin/env python3
"""`hotset bench` as its users see it, and that the README's figures are what the script makes of them."""
import csv
import io
import json
import pathlib
import signal
import subprocess
import sys
import time

from cli_fixture import DEMO, TIMEOUT_S, CliFixture, main

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMU = ["--device", "emu:clock=virtual,us=1"]
SMALL = ["bench", "-m", DEMO, *EMU, "-n", "6", "-p", "0", "-r", "2"]


class BenchCliTest(CliFixture):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.fixture = cls("test_formats")
        done = cls.fixture.hotset(*SMALL)
        cls.refused = done.returncode == 1
        if cls.refused:  # a build that must not be measured: that it says so is what there is to test
            cls.fixture.assertRegex(done.stderr.decode(),
                                    "bench: this is a (build with sanitizers|debug build)")
            cls.fixture.assertEqual(done.stdout, b"")

    def setUp(self):
        if self.refused:
            self.skipTest("a build that hotset bench refuses, as it should")

    def test_formats(self):
        lists = ["--moe-cache-mib", "0,4", "--moe-cache-cpu-share", "0,auto"]
        rows = self.ok_json(*SMALL, *lists)
        self.assertEqual([(r["moe_cache_mib"], r["moe_cache_cpu_share"]) for r in rows],
                         [("0", "0"), ("4", "0"), ("4", "auto")])
        for row in rows:
            self.assertEqual((row["n_prompt"], row["n_gen"], row["n_repetitions"]), (0, 6, 2))
            self.assertEqual(row["tokens"], "text")
            self.assertGreater(row["tokens_per_s"], 0)
            self.assertLess(row["percent_of_bound"], 100)
        self.assertEqual([row["hit_rate"] is None for row in rows], [True, False, False])
        # The virtual clock gives the same numbers in every format.
        table = self.ok(*SMALL, *lists).decode()
        for head in ("build: hotset ", "machine: ", "model: demo-54m-moe.gguf", "flags: ",
                     "tokens: text", "rates: emu, "):
            self.assertEqual(sum(line.startswith(head) for line in table.splitlines()), 1, table)
        found = [line.split() for line in table.splitlines() if line.startswith("tg6 ")]
        self.assertEqual(len(found), 3)
        self.assertIn(f"{rows[1]['tokens_per_s']:.0f}", found[1])
        lines = list(csv.DictReader(io.StringIO(self.ok(*SMALL, *lists, "--csv").decode())))
        self.assertEqual(list(lines[0]), list(rows[0]))
        self.assertEqual([float(line["tokens_per_s"]) for line in lines],
                         [row["tokens_per_s"] for row in rows])
        markdown = self.ok(*SMALL, *lists, "--markdown").decode()
        self.assertEqual(sum(line.startswith("| tg6 |") for line in markdown.splitlines()), 3)

    def test_refuses_what_cannot_be_measured(self):
        self.fails(2, ["--model is required"], "bench")
        self.fails(2, ["--csv", "--json"], *SMALL, "--csv", "--json")
        self.fails(2, ["--repetitions"], *SMALL, "--repetitions", "0")
        self.fails(2, ["--stats"], *SMALL, "--stats")
        self.fails(1, ["nothing to measure"], "bench", "-m", DEMO, *EMU, "-n", "0", "-p", "0")
        self.fails(1, ["--moe-cache-mib: found x"], *SMALL, "--moe-cache-mib", "4,x")
        self.fails(1, ["'gpu9' does not exist"], "bench", "-m", DEMO, "--device", "gpu9")
        self.fails(1, ["no-such.gguf"], "bench", "-m", "no-such.gguf", *EMU)
        self.fails(1, ["empty.txt: found no text"], *SMALL, "--text", self.file("empty.txt", b""))

    def test_random_tokens_are_labelled(self):
        table = self.ok(*SMALL, "--random-tokens").decode()
        self.assertIn("tokens: random, which route unlike text", table)
        text = self.file("own.txt", b"A text of one's own, which is long enough for six tokens.")
        self.assertIn("tokens: text own.txt", self.ok(*SMALL, "--text", text).decode())

    def test_compare(self):
        a = self.file("a.json", self.ok(*SMALL, "--moe-cache-mib", "2,4", "--json"))
        slower = json.loads(a.read_text())[1:]
        slower[0]["tokens_per_s"] /= 2
        b = self.file("b.json", json.dumps(slower).encode())
        text = self.ok("bench", "--compare", a, b).decode()
        self.assertIn("0.500  slower", text)
        self.assertIn("1 rows of A and 0 of B", text)
        self.fails(1, ["no JSON array"], "bench", "--compare", a, DEMO)
        self.fails(1, ["none.json"], "bench", "--compare", a, "none.json")
        self.fails(2, ["--compare"], "bench", "--compare", a)

    def test_ctrl_c_keeps_what_was_measured(self):
        process = self.start("bench", "-m", DEMO, *EMU, "-n", "200", "-p", "0", "-r", "1000",
                             "--moe-cache-mib", "4,8", "--json")
        self.wait_until_it_catches(signal.SIGINT, process)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIsInstance(json.loads(stdout), list)

    def test_the_readme_is_in_step(self):
        script = ROOT / "scripts" / "readme_performance"
        done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True,
                              timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        # The stored figures are of the form that this program writes.
        stored = json.loads((ROOT / "docs" / "bench" / "demo.json").read_text())
        fresh = self.ok_json(*SMALL)
        self.assertEqual(list(stored[0]), list(fresh[0]))


if __name__ == "__main__":
    main()
