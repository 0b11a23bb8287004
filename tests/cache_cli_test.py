#!/usr/bin/env python3
"""The expert cache as its users see it: flags, the verdict line, statistics, SIGUSR1 and traces.

On the emulated device with the virtual clock, so that every count is the same on every machine.
"""
import csv
import io
import json
import os
import re
import signal
import time

from cli_fixture import DEMO, TIMEOUT_S, CliFixture, main

# Latencies of a microsecond, so that the small experts are worth a device.
EMU = ["--device", "emu:clock=virtual,us=1"]
SERIES = "1,2,3,4,5,6,7,8"


class CacheCliTest(CliFixture):
    def run_demo(self, *flags, n=40, env=None):
        """What a run of the demo model reports, and what it says on stderr."""
        done = self.hotset("run", "-m", DEMO, "-p", "The king and the sea", "-n", n, "--temp", "0",
                           "--ignore-eos", "-c", "512", "--json", *EMU, *flags, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr.decode()

    def verdict(self, *flags, model=DEMO):
        done = self.hotset("eval", "-m", model, "--tokens", "1", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stderr.decode().splitlines() if "expert cache o" in line]
        self.assertEqual(len(lines), 1, done.stderr)
        return lines[0].removeprefix("hotset: info: ")

    def test_a_type_that_the_device_cannot_do_is_said(self):
        two = self.folder / "two-types.gguf"
        self.ok("model", "random", "--layers", "4", "--expert-type", "q4_0", "--odd-expert-type", "q8_0", "-o", two)
        flags = ["--device", "emu:clock=virtual,us=1,refuse_type=q8_0", "--moe-cache-mib", "4"]
        self.assertRegex(self.verdict(*flags, model=two),
                         r"^expert cache on: .*; the device's kernels do not multiply experts of type q8_0 by id "
                         r"\(layers 1, 3\), so the CPU computes them; ")
        one = self.folder / "one-type.gguf"
        self.ok("model", "random", "--layers", "2", "--expert-type", "q8_0", "-o", one)
        self.assertRegex(self.verdict(*flags, model=one),
                         r"^expert cache off: the device's kernels do not multiply experts of type q8_0 by id "
                         r"\(layers 0-1\); emu ")
        self.fails(1, ["refuse_type: found 'q9', expected a type of ggml's"], "eval", "-m", one, "--tokens", "1",
                   "--device", "emu:refuse_type=q9")

    # --- Flags

    def test_values_out_of_range(self):
        for flag, values, part in (
                ("--moe-cache-mib", ("-1", "x", "nan", "inf", "1e99", "autom"),
                 "expected auto, or a number from 0 to"),
                ("--moe-cache-cpu-share", ("-0.1", "1.1", "nan", "half"),
                 "expected auto, or a number from 0 to 1"),
                ("--moe-cache-batch", ("0", "-1", "65537", "x"), "--moe-cache-batch"),
                ("--moe-cache-policy", ("nonsense", "belady", "belady-demand", "unbounded", "static"),
                 "expected one of: class_lru, crf, crf-blend, crf-auto, lru"),
                ("--moe-cache-policy", ("crf:0", "crf:x"), "half-life"),
                ("--moe-cache-fills", ("yes", "1"), "expected one of: on, off"),
                ("--moe-cache-rates", ("guessed", "1"), "expected one of: measured, typical"),
                ("--memory-headroom-mib", ("-1", "x", "nan"),
                 "expected auto, or a number from 0 to 67108864")):
            for value in values:
                for command in (["run", "-m", DEMO, "-p", "x"], ["eval", "-m", DEMO, "--tokens", "1"]):
                    self.fails(2, [flag, part, value.removeprefix("-")], *command, f"{flag}={value}")
        self.fails(2, ["HOTSET_MOE_CACHE_MIB: found lots"], "run", "-m", DEMO, "-p", "x",
                   env={"HOTSET_MOE_CACHE_MIB": "lots"})

    def test_flags_and_variables_reach_the_cache(self):
        flags = {"MIB": "4", "CPU_SHARE": "0.25", "BATCH": "7", "POLICY": "crf:8", "FILLS": "off"}
        env = {f"HOTSET_MOE_CACHE_{name}": value for name, value in flags.items()}
        by_env, _ = self.run_demo(n=1, env=env)
        by_flag, _ = self.run_demo(*(f"--moe-cache-{name.lower().replace('_', '-')}={value}"
                                     for name, value in flags.items()), n=1)
        self.assertEqual(by_env["moe_cache"], by_flag["moe_cache"])
        cache = by_flag["moe_cache"]
        self.assertEqual((cache["on"], cache["cpu_share"], cache["max_decode_tokens"],
                          cache["policy"], cache["fills"]), (True, 0.25, 7, "crf:8", False))
        self.assertEqual(cache["total"]["lookups"], 8)
        self.assertNotIn("by_layer", cache)  # that takes --stats
        self.assertEqual(cache["device"], "emu")
        self.assertEqual([(g["experts"], g["slots"], g["resident"]) for g in cache["groups"]],
                         [(512, 74, False)])

    def test_the_text_is_the_same_for_every_setting(self):
        expected, _ = self.run_demo("--moe-cache-mib", "0", "--repack", "off")
        for flags in (["--moe-cache-mib", "1", "--moe-cache-cpu-share", "0"],
                      ["--moe-cache-mib", "4", "--moe-cache-batch", "1"],
                      ["--moe-cache-mib", "4", "--moe-cache-cpu-share", "1", "--stats"],
                      ["--moe-cache-mib", "28", "--stats"]):
            found, _ = self.run_demo("--repack", "off", *flags)
            self.assertEqual(found["tokens"], expected["tokens"], flags)

    # --- The verdict line

    def test_verdicts(self):
        four = self.verdict(*EMU, "--moe-cache-mib", "4")
        for part in ("expert cache on: emu (", "has 74 slots for 512 experts (14.5%) of layers 0-7, ",
                     "copies overlap with computing and come through a pinned ring",
                     "CPU share auto, fills on, policy crf-auto, streamed where it takes less",
                     "8 of 8 layers and the head on the device"):
            self.assertIn(part, four)
        self.assertIn("come from pinned memory",
                      self.verdict(*EMU, "--moe-cache-mib", "4", "--load-mode", "pinned"))
        self.assertIn("from pageable memory", self.verdict("--device", "emu:clock=virtual,refuse_pinned=1",
                                                           "--moe-cache-mib", "4",
                                                           "--moe-cache-cpu-share", "0.5"))
        whole = self.verdict(*EMU, "--moe-cache-mib", "28")
        self.assertIn("has all 512 experts of layers 0-7 resident", whole)
        self.assertIn("nothing is copied while it works", whole)
        part = self.verdict(*EMU, "--moe-cache-mib", "4", "-ngl", "2")
        self.assertIn("of layers 6-7", part)
        self.assertIn("2 of 8 layers on the device", part)

    def test_verdicts_of_a_cache_that_is_off(self):
        self.assertIn("expert cache off: no device in use", self.verdict("--device", "none"))
        self.assertIn("expert cache off: no device in use", self.verdict(*EMU, "-ngl", "0"))
        self.assertIn("expert cache off: --moe-cache-mib 0; emu (",
                      self.verdict(*EMU, "--moe-cache-mib", "0"))
        # A device that computes resident experts more slowly than the CPU computes all of them.
        slow = self.verdict("--device", "emu:clock=virtual,us=100", "--moe-cache-mib", "4")
        self.assertRegex(slow, r"expert cache off: emu takes \d+ us for the 4 experts of a layer and "
                               r"token, the CPU \d+ us; emu \(")
        little = self.verdict(*EMU, "--moe-cache-mib", "0.2")
        self.assertIn("expert cache off: 204.8 KiB are less than 4 experts, a token's, need "
                      "(--moe-cache-mib 1 or more)", little)
        self.assertIn("expert cache on", self.verdict(*EMU, "--moe-cache-mib", "1"))
        report, _ = self.run_demo("--moe-cache-mib", "0.2", "--stats", n=1)
        self.assertEqual(report["moe_cache"]["on"], False)
        self.assertIn("less than 4 experts", report["moe_cache"]["verdict"])

    # --- Statistics

    def totals(self, rows):
        return {key: sum(row[key] for row in rows) for key in rows[0]
                if key not in ("layer", "batch", "hit_rate", "splits", "reasons")}

    def test_statistics(self):
        report, stderr = self.run_demo("--moe-cache-mib", "4", "--stats", "--moe-cache-cpu-share",
                                       "0.5")
        cache = report["moe_cache"]
        total = cache["total"]
        self.assertEqual(total["hits"] + total["uploads"] + total["cpu"] + total["streamed"],
                         total["selected"])
        # 39 steps of a token behind the prompt, whose last layer computes one token as well.
        by_batch = {row["batch"]: row for row in cache["by_batch"]}
        self.assertEqual(by_batch["1"]["lookups"], 39 * 8 + 1)
        self.assertEqual(by_batch["2-8"]["lookups"], 7)
        for rows in (cache["by_batch"], cache["by_layer"]):
            for key, value in self.totals(rows).items():
                self.assertAlmostEqual(value, total[key], msg=key)
        self.assertEqual({row["layer"] for row in cache["by_layer"]}, set(range(8)))
        expert = cache["groups"][0]["expert_bytes"]
        self.assertEqual(total["uploaded_bytes"], expert * total["uploads"])
        self.assertEqual(total["filled_bytes"], expert * total["fills"])
        self.assertEqual(total["cpu_bytes"], expert * total["cpu"])
        for lane in ("upload_us", "cpu_us", "wait_us"):
            self.assertGreater(total[lane], 0)
        # The table says the same.
        lines = stderr.splitlines()
        heads = next(re.split(r"  +", line.strip()) for line in lines if line.startswith("layer  "))
        rows = [line.split() for line in lines if re.match(r" +(\d+|all) +(\d|all)", line)]
        self.assertEqual(len(rows), len(cache["by_layer"]) + len(by_batch) + 1)
        shown = dict(zip(heads, rows[-1]))
        self.assertEqual((shown["layer"], shown["batch"]), ("all", "all"))
        for head, key in (("lookups", "lookups"), ("hits", "hits"), ("uploads", "uploads"),
                          ("cpu", "cpu"), ("streamed", "streamed"), ("fills", "fills"),
                          ("entered", "fills_entered"), ("evicted", "evictions")):
            self.assertEqual(int(shown[head]), total[key], head)
        self.assertEqual(shown["hit %"], f"{100 * total['hit_rate']:.2f}")
        # Beside the best that could be done.
        replayed = cache["replayed"]
        self.assertFalse(replayed["was_cut"])
        self.assertEqual(replayed["lookups"], total["lookups"])
        self.assertEqual(replayed["hit_rate"], total["hit_rate"])
        self.assertGreater(replayed["belady_hit_rate"], replayed["hit_rate"])
        # How the lookups were split, and why.
        for row in cache["by_layer"] + cache["by_batch"] + [total]:
            self.assertEqual(sum(row["splits"].values()), row["lookups"])
            self.assertEqual(sum(row["reasons"].values()), row["lookups"])
        self.assertEqual(total["reasons"]["share"] + total["reasons"]["nothing missing"],
                         total["lookups"])
        self.assertIn("% share", next(line for line in lines if line.startswith("decided by:")))
        self.assertGreater(total["splits"]["both"], 0)
        self.assertIn("the CPU takes 0.5 of the misses, as asked", cache["splits"][0]["reason"])
        self.assertIn("layers 0 to 7: the CPU takes 0.5 of the misses, as asked", stderr)
        self.assertIn(f"hit rate {100 * total['hit_rate']:.2f}% of {total['selected']} experts in "
                      f"{total['lookups']} lookups", stderr)
        self.assertIn(f"Belady with the same slots {100 * replayed['belady_hit_rate']:.2f}%", stderr)

    def test_statistics_of_a_prefill(self):
        done = self.hotset("eval", "-m", DEMO, "--tokens", ",".join(map(str, range(1, 101))),
                           "--generate", "3", "--stats", "--json", *EMU, "--moe-cache-mib", "4",
                           "--moe-cache-batch", "32")
        cache = json.loads(done.stdout)["moe_cache"]
        self.assertGreater(cache["total"]["splits"]["streamed"], 0)
        batches = {row["batch"]: row for row in cache["by_batch"]}
        self.assertEqual(set(batches), {"1", "more"})
        self.assertGreater(batches["more"]["streamed"], 0)
        self.assertEqual(batches["more"]["evictions"], 0)
        self.assertEqual(batches["more"]["tokens"], 8 * 100)

    def test_statistics_where_nothing_is_served(self):
        off, stderr = self.run_demo("--stats", "--moe-cache-mib", "0", n=2)
        self.assertIn("--stats: the expert cache is off", stderr)
        self.assertNotIn("total", off["moe_cache"])
        resident, stderr = self.run_demo("--stats", "--moe-cache-mib", "28", n=2)
        self.assertIn("--stats: the expert cache had no lookup to serve", stderr)
        self.assertEqual(resident["moe_cache"]["total"]["lookups"], 0)

    def test_a_signal_asks_for_statistics(self):
        process = self.start("run", "-m", DEMO, "-p", "The king", "-n", "-1", "-c", "100000",
                             "--ignore-eos", "--stats", "--json", *EMU, "--moe-cache-mib", "4")
        self.wait_until_it_catches(signal.SIGINT, process)
        seen = b""
        os.set_blocking(process.stderr.fileno(), False)
        deadline = time.monotonic() + TIMEOUT_S
        for n_reports in (1, 2):
            process.send_signal(signal.SIGUSR1)
            while seen.count(b"what the expert cache did") < n_reports:
                self.assertLess(time.monotonic(), deadline, seen)
                self.assertIsNone(process.poll(), seen)
                seen += process.stderr.read() or b""
                time.sleep(0.02)
        os.set_blocking(process.stderr.fileno(), True)
        stdout, stderr = self.interrupt_when_generating(process)
        seen += stderr
        self.assertEqual(seen.count(b"what the expert cache did"), 3)
        self.assertEqual(json.loads(stdout)["stop"], "interrupted")
        hit_rates = re.findall(rb"hit rate [\d.]+% of (\d+) experts", seen)
        self.assertEqual(sorted(map(int, hit_rates)), list(map(int, hit_rates)))

    # --- Traces

    def replayed(self, trace, *flags):
        """The one row of a replay's CSV, as text."""
        text = self.ok("replay", trace, "--skip-tokens", "0", "--csv", *flags).decode()
        (row,) = csv.DictReader(io.StringIO(text))
        return row

    def test_a_replay_of_the_trace_counts_the_same(self):
        trace = self.folder / "demo.mct"
        for share in ("0", "0.5", "1", "auto"):
            for fills in ("off", "on"):
                for policy, batch in (("crf-auto", "32"), ("class_lru", "4")):
                    report, _ = self.run_demo(
                        "--moe-cache-mib", "3", "--moe-cache-cpu-share", share, "--moe-cache-fills",
                        fills, "--moe-cache-policy", policy, "--moe-cache-batch", batch, "--stats",
                        "--moe-cache-trace", trace, "--moe-cache-rates", "typical")
                    total = report["moe_cache"]["total"]
                    row = self.replayed(trace, "--cache-mib", "3", "--share", share,
                                        "--moe-cache-fills", fills, "--policy", policy,
                                        "--moe-cache-batch", batch)
                    with self.subTest(share=share, fills=fills, policy=policy):
                        self.assertEqual(row["slots"], str(report["moe_cache"]["groups"][0]["slots"]))
                        self.assertEqual(
                            [int(row[key]) for key in ("lookups", "hits", "uploads", "cpu",
                                                       "evictions", "fills")],
                            [total["lookups"], total["hits"], total["uploads"] + total["streamed"],
                             total["cpu"], total["evictions"], total["fills"]])
                        self.assertEqual(float(row["hit_rate"]), total["hit_rate"])
                        self.assertEqual(float(row["belady_hit_rate"]),
                                         report["moe_cache"]["replayed"]["belady_hit_rate"])
                        if share != "auto":
                            self.assertEqual(total["fills"] > 0, fills == "on" and share != "0")

    def test_traces_of_every_device_are_the_same_routing(self):
        shown = []
        for i, flags in enumerate((["--device", "none"], [*EMU, "--moe-cache-mib", "0"],
                                   [*EMU, "--moe-cache-mib", "28"], [*EMU, "--moe-cache-mib", "4"])):
            trace = self.folder / f"routing{i}.mct"
            self.ok("eval", "-m", DEMO, "--tokens", SERIES, "--generate", "5", "--repack", "off",
                    "--moe-cache-trace", trace, *flags)
            info = json.loads(self.ok("trace", "info", trace, "--json"))[0]
            shown.append(trace.read_bytes()[-4 * (3 + 4) * 8 * 5:])  # the five generated tokens
            self.assertEqual(info["total"]["lookups"], 8 * 6)
        for routing in shown[1:]:
            self.assertEqual(routing, shown[0])

    def test_traces_that_cannot_be_written(self):
        run = ["run", "-m", DEMO, "-p", "x", "-n", "2", *EMU, "--moe-cache-mib", "4"]
        self.fails(1, ["no/x.mct", "cannot be opened"], *run, "--moe-cache-trace",
                   self.folder / "no" / "x.mct")
        self.fails(1, [str(self.folder), "not a regular file"], *run, "--moe-cache-trace",
                   self.folder)
        self.fails(1, ["/dev/full", "not a regular file"], *run, "--moe-cache-trace", "/dev/full")

    def test_a_trace_is_whole_after_ctrl_c(self):
        trace = self.folder / "interrupted.mct"
        process = self.start("run", "-m", DEMO, "-p", "The king", "-n", "-1", "-c", "100000",
                             "--ignore-eos", "--json", *EMU, "--moe-cache-mib", "4",
                             "--moe-cache-trace", trace)
        stdout, _ = self.interrupt_when_generating(process)
        report = json.loads(stdout)
        self.assertEqual(report["stop"], "interrupted")
        row = self.replayed(trace, "--cache-mib", "4", "--policy", "lru")
        # A lookup of each layer for the prompt and each token that was computed.
        self.assertIn(int(row["lookups"]), (8 * report["n_generated"], 8 * (report["n_generated"] + 1)))

    def test_a_trace_is_whole_after_an_error(self):
        trace = self.folder / "failed.mct"
        done = self.hotset("run", "-m", DEMO, "-p", "The king", "-n", "200", "--ignore-eos",
                           "--device", "emu:clock=virtual,vanish=3000", "--moe-cache-mib", "4",
                           "--moe-cache-trace", trace)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"hotset: error: emu", done.stderr)
        row = self.replayed(trace, "--cache-mib", "4", "--policy", "lru")
        self.assertGreater(int(row["lookups"]), 8)


if __name__ == "__main__":
    main()
