#!/usr/bin/env python3
"""`hotset tune` as its users see it: reports, files, Ctrl-C, --config, and other programs' servers."""
import json
import pathlib
import signal
import sys
import time

from cli_fixture import DEMO, TIMEOUT_S, CliFixture, main

EMU = "emu:clock=virtual,us=1,dev_gbps=40,gbps=1,cpu_gbps=2"
FAKE = pathlib.Path(__file__).resolve().parent / "fake_moe_server.py"


class TuneCliTest(CliFixture):
    def setUp(self):
        self.records = self.folder / self.id()
        self.small = self.tune()

    def tune(self, device=EMU, n="32"):
        return ["tune", "-m", DEMO, "--device", device, "--max-mib", "8", "-c", "256", "-n", n,
                "--warm-up", "16", "-t", "2", "--records", self.records]

    def test_recommends_and_writes_what_run_reads(self):
        config, html = self.folder / "best.conf", self.folder / "report.html"
        start = time.monotonic()
        found = self.ok_json(*self.small, "--apply", config, "--html", html)
        print(f"tune took {time.monotonic() - start:.1f} s", file=sys.stderr)
        self.assertEqual(len(found["runs"]), 8)
        self.assertTrue(found["fit"]["is_physical"])
        best = found["recommendation"]
        self.assertAlmostEqual(best["predicted_tokens_per_s"] / best["measured_tokens_per_s"], 1,
                               delta=0.08)
        self.assertIn(f"--moe-cache-mib {best['cache_mib']:.10g} --moe-cache-cpu-share "
                      f"{best['cpu_share']}", found["command_line"])
        # Threads were given; the load mode was not.
        self.assertEqual(found["thread_trials"], [])
        self.assertEqual([trial["load_mode"] for trial in found["load_mode_trials"]],
                         ["mmap", "pinned"])
        self.assertEqual(found["recommended_load_mode"], "mmap")
        self.assertIn("load-mode = mmap\n", config.read_text())
        # The page has everything in it.
        page = html.read_text()
        self.assertIn("<svg", page)
        for outside in ("http://", "https://", "<script", "<link", "<img", "@import"):
            self.assertNotIn(outside, page.replace("http://www.w3.org/2000/svg", ""))
        # And run does as the file says.
        ran = self.ok_json("run", "--config", config, "-p", "The king", "-n", "4", "--temp", "0")
        cache = ran["moe_cache"]
        self.assertEqual(cache["cpu_share"], best["cpu_share"])
        self.assertEqual(cache["device"], "emu")
        self.assertEqual(ran["n_threads"], 2)
        # A flag wins over the file, the file over the environment.
        ran = self.ok_json("run", f"--config={config}", "-p", "x", "-n", "1", "--moe-cache-mib", "2",
                           env={"HOTSET_MOE_CACHE_MIB": "1", "HOTSET_MOE_CACHE_CPU_SHARE": "0.125"})
        self.assertEqual(ran["moe_cache"]["cpu_share"], best["cpu_share"])
        self.assertLess(ran["moe_cache"]["groups"][0]["slots"], cache["groups"][0]["slots"])
        # The other formats, from the same runs.
        done = self.hotset(*self.small)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"8 earlier runs of the same command are reused", done.stderr)
        for part in ("Runs\n", "Predicted tokens/s", "whole layers", "Recommendation\n"):
            self.assertIn(part, done.stdout.decode())
        self.assertIn("## Recommendation", self.ok(*self.small, "--markdown").decode())

    def test_ctrl_c_keeps_what_was_measured(self):
        process = self.start(*self.tune(n="4096"))
        self.wait_until_it_catches(signal.SIGINT, process)
        deadline = time.monotonic() + TIMEOUT_S
        while not list(self.records.glob("*.json")):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"interrupted: what was measured is kept", stderr)
        self.assertEqual(stdout, b"")
        (record,) = self.records.glob("*.json")
        self.assertGreaterEqual(len(json.loads(record.read_text())["runs"]), 1)

    def test_refuses(self):
        self.fails(2, ["one of --model FILE and -- SERVER"], "tune")
        self.fails(2, ["--n-gen"], *self.tune(n="3"))
        self.fails(1, ["found no device"], *self.tune(device="none"))
        self.fails(1, ["no.gguf"], "tune", "-m", "no.gguf", "--device", EMU)
        self.fails(1, ["cannot be written"], *self.small, "--html", "/no/such/folder/x.html")
        bad = self.file("bad.conf", b"moe-cache-mib 12\n")
        self.fails(1, ["bad.conf: line 1: found 'moe-cache-mib 12', expected 'flag = value'"],
                   "run", "--config", bad, "-p", "x")
        bad = self.file("bad.conf", b"# a comment\nmoe-cash-mib = 12\n")
        self.fails(1, ["bad.conf: moe-cash-mib: hotset run has no such setting"],
                   "run", "--config", bad, "-p", "x")
        bad = self.file("bad.conf", b"moe-cache-mib = lots\n")
        self.fails(2, ["HOTSET_MOE_CACHE_MIB: found lots"], "run", "-m", DEMO, "--config", bad,
                   "-p", "x")
        self.fails(1, ["none.conf"], "run", "-m", DEMO, "--config", "none.conf", "-p", "x")

    # --- Other programs

    def tune_server(self, *flags, mib=8):
        return ["tune", "--max-mib", mib, "-n", "256", "--warm-up", "64", "--records", self.records,
                "--server-timeout", "120", "--json", "--", sys.executable, FAKE, *flags]

    def server_env(self):
        import os
        return {"HOTSET_BINARY": os.environ["HOTSET_BINARY"]}

    def test_recovers_a_servers_rates(self):
        for truth, noise in (({"base": 9.0, "up": 6000.0, "cpu": 1500.0, "split": 0.6}, 0),
                             ({"base": 20.0, "up": 300.0, "cpu": 1500.0, "split": 1.0}, 0.004)):
            with self.subTest(truth=truth):
                flags = [f"--{name}-ms={value}" for name, value in truth.items()]
                done = self.hotset(*self.tune_server(*flags, f"--noise={noise}"),
                                   env=self.server_env())
                self.assertEqual(done.returncode, 0, done.stderr.decode())
                found = json.loads(done.stdout)
                fit = found["fit"]
                self.assertAlmostEqual(fit["base_ms"] / truth["base"], 1, delta=0.05)
                # min(up, cpu) is not one of the server's terms: the two rates as they add up.
                self.assertAlmostEqual(fit["up_ms_per_gib"] / truth["up"], 1, delta=0.05)
                self.assertAlmostEqual(fit["cpu_ms_per_gib"] / truth["cpu"], 1, delta=0.05)
                best = found["recommendation"]
                self.assertAlmostEqual(
                    best["predicted_tokens_per_s"] / best["measured_tokens_per_s"], 1, delta=0.08)
                self.assertEqual(best["cache_mib"], 8)
                self.assertEqual(found["model"], "fake-moe.gguf")
                self.assertIn("--moe-cache-mib 8 --moe-cache-cpu-share", found["command_line"])
                # Its cache works by the rules of the replay, so nothing is warned of.
                self.assertNotIn(b"works by other rules", done.stderr)
                share = best["cpu_share"]
                self.assertTrue(share <= 0.1 if truth["up"] < truth["cpu"] else share >= 0.5, share)

    def test_says_what_is_wrong_with_a_server(self):
        env = self.server_env()
        self.fails(1, ["no such model", "ended before it was ready"],
                   *self.tune_server("--fault=exit"), env=env)
        self.fails(1, ["found status 200", "expected 200 with timings.predicted_n"],
                   *self.tune_server("--fault=no-timings"), env=env)
        self.fails(1, ["LLAMA_MOE_CACHE_TRACE"], *self.tune_server("--fault=no-trace"), env=env)
        self.fails(1, ["no-such-program: cannot be started"], "tune", "--max-mib", "8", "--records",
                   self.records, "--", "no-such-program")
        self.fails(1, ["found no --max-mib"], "tune", "--records", self.records, "--", "true")
        self.fails(1, ["--moe-cache-mib, which tune sets itself"], "tune", "--max-mib", "8",
                   "--records", self.records, "--", "true", "--moe-cache-mib", "4")
        self.fails(1, ["--apply: found a server"], "tune", "--max-mib", "8", "--apply", "x", "--",
                   "true")

    def test_says_that_a_server_needs_no_cache(self):
        done = self.hotset(*self.tune_server(mib=64), env=self.server_env())
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        found = json.loads(done.stdout)
        self.assertTrue(found["all_fit"])
        self.assertIn("no cache is needed", found["why"])


if __name__ == "__main__":
    main()
