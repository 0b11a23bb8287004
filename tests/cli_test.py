#!/usr/bin/env python3
"""`hotset` as its users start it, right and wrong.

Whatever it is given, it ends with 0 (done), 1 (an error that it reported) or 2 (wrong usage), never
by a signal, and a failure says why in one line on stderr and nothing on stdout.

HOTSET_BINARY is the program, HOTSET_ASSETS_DIR the folder of the demo model; ctest sets both.
"""
import json
import os
import pathlib
import re
import resource
import select
import struct
import subprocess

from cli_fixture import BINARY, DEMO, TIMEOUT_S, TINY, CliFixture, environment, is_sanitized, main

PROSE = pathlib.Path(__file__).parent / "data" / "prose.txt"

# Perplexity of the demo model for prose.txt, as measured with --repack off on the CPU, and how far
# another machine may be from it. Kernels and repacked layouts differ between CPUs, and a rounding
# that lets a token choose another expert moves single logits visibly; the mean over 640 tokens
# moved by less than 0.1% between those tried. A wrong layer, position or weight changes it by much
# more than 2%. The same constant as kPerplexityRelative in tolerances.h.
PROSE_PERPLEXITY = 57.49
PERPLEXITY_RELATIVE = 0.02


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text


class CliTest(CliFixture):
    # --- Wrong usage

    def test_commands(self):
        known = "expected one of: run, eval, info, tokenize, model"
        self.fails(2, ["found no command", known, "hotset --help"])
        self.fails(2, ["found 'nonsense'", known], "nonsense")
        self.fails(2, ["found '--nonsense'", known], "--nonsense")
        self.fails(2, ["found no command, expected one of: random", "hotset model --help"], "model")
        self.fails(2, ["found 'x', expected one of: random"], "model", "x")

    def test_missing_and_unknown_arguments(self):
        self.fails(2, ["--model is required", "hotset run --help"], "run", "-p", "x")
        self.fails(2, ["found '--nope', which nothing takes"], "run", "--nope")
        self.fails(2, ["found '--nope', which nothing takes"], "run", "-m", DEMO, "-p", "x", "--nope")
        self.fails(2, ["found 'extra', which nothing takes"], "run", "-m", DEMO, "-p", "x", "extra")
        self.fails(2, ["one of -p TEXT, -f FILE and --prompt-tokens IDS is required"], "run", "-m", DEMO)
        self.fails(2, ["--prompt excludes --file"], "run", "-m", DEMO, "-p", "x", "-f", "y")
        self.fails(2, ["one of --tokens IDS and -f FILE is required"], "eval", "-m", DEMO)
        self.fails(2, ["excludes"], "eval", "-m", DEMO, "--tokens", "1", "-f", "x")
        self.fails(2, ["--model"], "info")
        self.fails(2, ["TEXT is required"], "tokenize", "-m", DEMO)
        self.fails(2, ["--out is required"], "model", "random")
        self.fails(2, ["--model"], "run", "-p", "x", "-m")

    def test_help_and_version(self):
        self.assertIn(b"hotset run -m MODEL.gguf", self.ok("--help"))
        self.assertRegex(self.ok("--version"), rb"^hotset \d+\.\d+\.\d+\n$")
        for command in (["run"], ["eval"], ["info"], ["tokenize"], ["model"], ["model", "random"]):
            text = self.ok(*command, "--help").decode()
            self.assertIn("Usage: hotset " + " ".join(command), text)

    def test_values_out_of_range(self):
        run = ["run", "-m", DEMO, "-p", "x"]
        for flag, values, expected in (
                ("-t", ("-2", "513", "100000", "x", "nan"), "--threads"),
                ("-c", ("-1", "2147483648", "99999999999"), "--ctx-size"),
                ("-ub", ("0", "-1", "65537"), "--ubatch-size"),
                ("-n", ("-2", "x"), "--predict"),
                ("--temp", ("nan", "-0.1", "101", "inf", "-inf", "warm", ""), "--temp"),
                ("--top-p", ("2", "-1", "nan"), "--top-p"),
                ("--min-p", ("2", "-1", "nan"), "--min-p"),
                ("--top-k", ("-2", "x"), "--top-k"),
                ("--seed", ("-2", "x", "99999999999999999999999"), "--seed"),
                ("-fa", ("maybe", ""), "--flash-attn"),
                ("-ctk", ("q4_0", "f64"), "--cache-type-k"),
                ("-ctv", ("q4_0", "x"), "--cache-type-v"),
                ("--repack", ("yes",), "--repack"),
                ("--load-mode", ("fast",), "--load-mode")):
            for value in values:
                self.fails(2, [expected], *run, f"{flag}={value}")
        self.fails(2, ["--generate: found -1, expected 0 to"], "eval", "-m", DEMO, "--tokens", "1",
                   "--generate", "-1")

    def test_a_quantized_value_cache_needs_flash_attention(self):
        self.fails(1, ["q8_0 with flash attention off"], "run", "-m", self.tiny,
                   "--prompt-tokens", "1", "-fa", "off", "-ctv", "q8_0")

    # --- Bad models

    def test_files_that_are_no_models(self):
        whole = DEMO.read_bytes()
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        cases = {
            self.folder / "absent.gguf": ["absent.gguf", "cannot open", "No such file"],
            self.folder: ["found a directory, expected a regular file"],
            pathlib.Path("/dev/null"): ["found a special file"],
            pathlib.Path("/dev/zero"): ["found a special file"],
            fifo: ["found a special file"],
            self.file("empty.gguf", b""): ["the file is empty"],
            self.file("zeros.gguf", bytes(100000)): ["not a GGUF file", "00 00 00 00"],
            self.file("text.gguf", b"Once upon a time"): ["not a GGUF file", "4f 6e 63 65"],
            self.file("magic.gguf", b"GGUF"): ["the file ends in the version"],
            self.file("head.gguf", whole[:1000]): ["head.gguf"],
            self.file("half.gguf", whole[:len(whole) // 2]): ["half.gguf"],
            self.file("end.gguf", whole[:-100]): ["end.gguf"],
            self.file("nothing.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)):
                ["key 'general.architecture': found nothing"],
        }
        for path, parts in cases.items():
            self.fails(1, parts, "info", path)
            self.fails(1, parts, "run", "-m", path, "-p", "x")
        for path in (self.folder / "absent.gguf", self.folder, self.folder / "half.gguf"):
            self.fails(1, [str(path)], "eval", "-m", path, "--tokens", "1")
            self.fails(1, [str(path)], "tokenize", "-m", path, "x")

    def test_unknown_architecture(self):
        path = self.file("alien.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
                         + gguf_string(b"general.architecture") + struct.pack("<I", 8)
                         + gguf_string(b"alien"))
        self.fails(1, ["found 'alien', expected one of: ", "qwen3moe"], "info", path)

    def test_names_in_files_do_not_command_the_terminal(self):
        path = self.file("escape.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
                         + gguf_string(b"general.architecture") + struct.pack("<I", 8)
                         + gguf_string(b"\x1b[2J\x07"))
        done = self.hotset("info", path)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn(b"\x1b", done.stderr)
        self.assertIn(rb"found '\x1b[2J\x07'", done.stderr)

    def test_names_in_files_do_not_look_like_messages(self):
        name = b"a\nhotset: info: all is well\xc2\x9b" + b"n" * (1 << 20)
        path = self.file("forged.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
                         + gguf_string(b"general.architecture") + struct.pack("<I", 8)
                         + gguf_string(name))
        for command in (["info", path], ["run", "-m", path, "-p", "x"]):
            self.fails(1, [rf"found 'a\x0ahotset: info: all is well\u009bnnn", f"({len(name)} bytes)"],
                       *command)
            self.assertLess(len(self.hotset(*command).stderr), 1000)

    def test_values_in_files_end_where_the_file_says(self):
        whole = DEMO.read_bytes()
        name = gguf_string(b"qwen3moe")
        self.assertEqual(whole.count(name), 1)
        # The header is longer by two bytes, so the data may begin one step of 32 later.
        longer = whole.replace(name, gguf_string(b"qwen3moe\0x"), 1) + bytes(32)
        path = self.file("nul.gguf", longer)
        self.fails(1, [r"'general.architecture': found 'qwen3moe\x00x', expected one of"], "info", path)

    def test_a_broken_tokenizer_is_told_before_weights_are_loaded(self):
        whole = DEMO.read_bytes()
        model = gguf_string(b"tokenizer.ggml.model") + struct.pack("<I", 8) + gguf_string(b"gpt2")
        self.assertEqual(whole.count(model), 1)
        path = self.file("tokenizer.gguf", whole.replace(model, model[:-1] + b"9"))
        parts = ["tokenizer.gguf", "tokenizer.ggml.model: found 'gpt9', expected one of"]
        # A context that no machine has room for is what loading would complain of first.
        too_much = ["-c", "200000000"]
        self.fails(1, parts, "run", "-m", path, "-p", "x", *too_much)
        self.fails(1, parts, "run", "-m", path, "-i", *too_much)
        self.fails(1, parts, "eval", "-m", path, "-f", PROSE, *too_much)
        self.fails(1, parts, "serve", "-m", path, "--port", "0", *too_much)
        if not is_sanitized():  # which bench refuses to measure
            self.fails(1, parts, "bench", "-m", path)
        self.fails(1, parts, "tune", "-m", path, "--device", "emu", "-c", "200000000")

    def test_models_without_a_tokenizer(self):
        self.fails(1, ["tokenizer"], "run", "-m", self.tiny, "-p", "x")
        self.fails(1, ["tokenizer"], "tokenize", "-m", self.tiny, "x")
        self.fails(1, ["tokenizer"], "eval", "-m", self.tiny, "-f", PROSE)
        self.assertRegex(self.ok("run", "-m", self.tiny, "--prompt-tokens", "1,2", "-n", "3"),
                         rb"^\d+,\d+,\d+\n$")

    def test_more_memory_than_there_is(self):
        self.fails(1, ["KV cache", "the machine has"], "run", "-m", DEMO, "-p", "x", "-c",
                   "200000000")
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1"]
        self.fails(1, ["context: found 2147483647, expected 1 to"], *run, "-c", "2147483647")
        self.fails(1, ["compute buffer", "the machine has"], *run, "-c", "1000000", "-fa", "off",
                   "-ub", "65536")

    def test_a_limit_on_memory_is_an_error(self):
        """Whatever `ulimit -v` allows, it ends with a message or does its work."""
        def limited(kib, *arguments):
            done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True,
                                  timeout=TIMEOUT_S, env=environment(OMP_WAIT_POLICY="passive"),
                                  preexec_fn=lambda: resource.setrlimit(
                                      resource.RLIMIT_AS, (kib * 1024, kib * 1024)))
            self.check_end(done.returncode, done.stderr)
            with self.subTest(kib=kib, arguments=arguments):
                self.assertIn(done.returncode, (0, 1), done.stderr)
                if done.returncode == 1:
                    self.assertIn(b"hotset: error: ", done.stderr)
            return done.returncode

        if is_sanitized():
            self.skipTest("a sanitizer needs more addresses than there are")
        run = ["run", "-m", DEMO, "-p", "x", "-n", "2", "-t", "2"]
        cached = [*run, "--device", "emu:mib=64", "--moe-cache-mib", "8"]
        for command in (run, cached, ["info", DEMO], ["tokenize", "-m", DEMO, "x"]):
            ends = [limited(kib, *command) for kib in range(50_000, 300_000, 17_000)]
            self.assertIn(1, ends, "less than it needs")
            self.assertEqual(limited(4_000_000, *command), 0, "enough")

    # --- Bad input

    def test_token_ids(self):
        for command, flag in (("run", "--prompt-tokens"), ("eval", "--tokens")):
            self.fails(2, [flag], command, "-m", self.tiny, f"{flag}=")
            for ids, found in ((" ", "found ''"), ("x", "found 'x'"), ("1,,2", "found ''"),
                               ("1;2", "found '1;2'"), ("1,2.5", "found '2.5'"),
                               ("99999999999", "found '99999999999'")):
                self.fails(1, [flag, found], command, "-m", self.tiny, f"{flag}={ids}")
            for ids in ("64", "1,2,-1", "1,2,3,9999999", "1,-2147483648"):
                for ubatch in ("1", "2", "512"):
                    self.fails(1, [flag, "expected 0 to 63"], command, "-m", self.tiny,
                               f"{flag}={ids}", "-ub", ubatch)
        self.ok("eval", "-m", self.tiny, "--tokens", " 1, 2,\t3 ")

    def test_prompt_files(self):
        run = ["run", "-m", DEMO, "-n", "1"]
        self.fails(1, ["absent.txt", "cannot open"], *run, "-f", self.folder / "absent.txt")
        self.fails(1, ["cannot read", "directory"], *run, "-f", self.folder)
        self.fails(1, ["absent.txt", "cannot open"], "eval", "-m", DEMO, "-f",
                   self.folder / "absent.txt")

    def test_prompts_that_are_no_text(self):
        odd = b"Zero\0byte, \xff\xfe, \xc3, \xed\xa0\x80, \xf0\x9f\x92 and \xf4\x90\x80\x80."
        for content in (odd, bytes(range(256)), b"\0", b"\xff" * 100, b"\n", b""):
            report = self.ok_json("run", "-m", DEMO, "-n", "2", "-f",
                                  self.file("odd.txt", content))
            self.assertEqual(report["n_generated"], 2)
        self.ok("tokenize", "-m", DEMO, "-", stdin=odd)

    def test_long_prompts(self):
        self.fails(1, ["context holds 8", "raise it with -c"], "run", "-m", DEMO, "-c", "8", "-f",
                   PROSE)
        # eval cuts a text into contexts.
        self.assertGreater(self.ok_json("eval", "-m", DEMO, "-c", "256", "-f", PROSE)["n_scored"], 600)

    def test_output_files_that_cannot_be_written(self):
        for flag in ("--logits-out", "--routing-out"):
            for path in (self.folder / "no" / "x", self.folder):
                self.fails(1, [str(path), "cannot create"], "eval", "-m", self.tiny, "--tokens",
                           "1", flag, path)
            self.fails(1, ["/dev/full", "cannot write", "No space left"], "eval", "-m", self.tiny,
                       "--tokens", "1", flag, "/dev/full")

    # --- What run gives

    def test_greedy_text_is_the_same_again(self):
        run = ["run", "-m", DEMO, "-p", "The captain looked at the sea", "-n", "24", "--temp", "0"]
        first = self.ok(*run)
        self.assertGreater(len(first), 20)
        self.assertEqual(self.ok(*run), first)
        report = self.ok_json(*run)
        self.assertEqual(report["text"].encode() + b"\n", first)
        self.assertEqual(self.ok(*run, "--seed", "7"), first)
        self.assertEqual(self.ok(*run, "--echo"), b"The captain looked at the sea" + first)

    def test_report(self):
        report = self.ok_json("run", "-m", DEMO, "-p", "One", "-n", "5", "--seed", "3", "-t", "1")
        for key in ("text", "tokens", "stop", "seed", "n_prompt", "n_generated", "load_ms",
                    "prompt_ms", "generate_ms", "prompt_tokens_per_s", "tokens_per_s", "n_threads",
                    "flash_attention"):
            self.assertIn(key, report)
        self.assertEqual(report["seed"], 3)
        self.assertEqual(report["n_threads"], 1)
        self.assertEqual(len(report["tokens"]), report["n_generated"])
        self.assertIn(report["stop"], ("length", "end"))
        self.assertGreater(report["tokens_per_s"], 0)

    def test_seeds(self):
        run = ["run", "-m", DEMO, "-p", "It was", "-n", "16", "--ignore-eos", "--temp", "1"]
        texts = [self.ok(*run, "--seed", seed) for seed in ("1", "1", "2")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        # Without one, the report says which it was.
        report = self.ok_json(*run)
        self.assertEqual(self.ok_json(*run, "--seed", report["seed"])["tokens"], report["tokens"])

    def test_lengths(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1,2,3,4"]
        self.assertEqual(self.ok_json(*run, "-n", "0")["n_generated"], 0)
        self.assertEqual(self.ok_json(*run, "-n", "7")["stop"], "length")
        full = self.ok_json(*run, "-n", "-1", "-c", "12")
        self.assertEqual(full["stop"], "context")
        self.assertEqual(full["n_generated"], 12 - 4 + 1)  # the last one needs no place
        done = self.hotset(*run, "-c", "4")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"the context of 4 positions is full; raise it with -c", done.stderr)

    def test_standard_input_is_a_prompt(self):
        text = "A prompt — with a dash".encode()
        run = ["run", "-m", DEMO, "-n", "6", "--temp", "0"]
        expected = self.ok(*run, "-p", text.decode())
        self.assertEqual(self.ok(*run, "-f", "-", stdin=text), expected)
        self.assertEqual(self.ok(*run, "-f", self.file("prompt.txt", text)), expected)

    def test_short_flags_in_every_spelling(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1,2,3", "-n", "2", "--temp", "0"]
        for flags in (["-ub", "2", "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"],
                      ["-ub=2", "-fa=on", "-ctk=q8_0", "-ctv=q8_0"],
                      ["--ubatch-size", "2", "--flash-attn", "on", "--cache-type-k", "q8_0",
                       "--cache-type-v=q8_0"],
                      ["-fa", "OFF", "-ctk", "F32", "-ctv", "F16"]):
            self.assertEqual(self.ok_json(*run, *flags)["n_generated"], 2)
        self.assertTrue(self.ok_json(*run, "-fa=on")["flash_attention"])
        self.assertFalse(self.ok_json(*run, "-fa=off")["flash_attention"])

    def test_command_lines_of_other_programs(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1,2,3", "--temp", "0"]
        expected = self.ok_json(*run, "-n", "2")["tokens"]
        for line in ("-n 2 -cmoe -ngl 99 --jinja -b 2048 -ub 512 -fa --no-mmap -np 1 --threads -1",
                     "--n-predict 2 --n-cpu-moe 20 -fa 1 --mlock --numa isolate --prio 2 --seed -1",
                     "-n2 -c256 -t1 -ot .ffn_.*_exps.=CPU --no-warmup -tb 4 --dry-multiplier 0"):
            self.assertEqual(self.ok_json(*run, *line.split())["tokens"], expected, line)
        for bias in ("7=50", "7+50"):
            self.assertEqual(self.ok_json(*run, "-n", "1", "-l", bias)["tokens"], [7])
        self.fails(1, ["--logit-bias: found '7*50'"], *run, "-l", "7*50")
        self.assertNotEqual(self.ok_json(*run, "-n", "1", "-l", f"{expected[0]}-50")["tokens"][0],
                            expected[0])
        done = self.hotset(*run, "-n", "1", "-cmoe", "--jinja")
        self.assertIn(b"info: -cmoe is read as --moe-cache-mib 0: ", done.stderr)
        self.assertIn(b"info: --jinja is ignored: ", done.stderr)
        self.fails(2, ["-md: hotset has no speculative decoding", "hotset run --help"], *run, "-md", "x")
        self.fails(2, ["-hf: hotset downloads nothing"], "serve", "-hf", "x/y")
        self.fails(2, ["--embeddings: hotset makes no embeddings"], "serve", "-m", DEMO, "--embeddings")
        self.fails(2, ["-b: found no value"], *run, "-b")

    def test_misspelt_names(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "1"]
        self.fails(2, ["found '--ctx-siz', which nothing takes; did you mean --ctx-size?"], *run,
                   "--ctx-siz", "9")
        self.fails(2, ["found '-ctx-size'", "did you mean --ctx-size?"], *run, "-ctx-size", "9")
        self.fails(2, ["found '-cx', which nothing takes"], *run, "-cx")
        self.fails(2, ["--drain-seconds", "a flag of hotset serve"], *run, "--drain-seconds", "9")
        self.fails(2, ["found 'serv'", "did you mean serve?"], "serv", "-m", self.tiny)
        self.fails(2, ["found '-m'", "hotset run -m ..."], "-m", self.tiny, "-p", "x")
        self.assertIn(b"warning: HOTSET_CTX_SZE: nothing reads it; did you mean HOTSET_CTX_SIZE?",
                      self.hotset(*run, env={"HOTSET_CTX_SZE": "4"}).stderr)
        self.assertNotIn(b"warning", self.hotset(*run, env={"HOTSET_PARALLEL": "4"}).stderr)
        for line, parts in ((b"ctx-siz = 4", ["did you mean ctx-size?"]),
                            (b"batch-size = 4", ["-ub alone says how many tokens"])):
            self.fails(1, ["no such setting", *parts], *run, "--config", self.file("bad.conf", line))

    def test_environment_variables(self):
        run = ["run", "--prompt-tokens", "1", "-n", "2"]
        model = {"HOTSET_MODEL": str(self.tiny)}
        self.ok(*run, env=model)
        self.assertEqual(json.loads(self.ok(*run, env={**model, "HOTSET_JSON": "1"}))["n_generated"], 2)
        env = {**model, "HOTSET_THREADS": "1", "HOTSET_FLASH_ATTN": "off", "HOTSET_SEED": "5"}
        report = self.ok_json(*run, env=env)
        self.assertEqual((report["n_threads"], report["flash_attention"], report["seed"]),
                         (1, False, 5))
        self.assertTrue(self.ok_json(*run, "-fa", "on", env=env)["flash_attention"])
        # A value that the flag would not take is not passed over, unless the flag wins anyway.
        for name, value in (("HOTSET_THREADS", "abc"), ("HOTSET_TEMP", "hot"), ("HOTSET_SEED", "-3"),
                            ("HOTSET_FLASH_ATTN", "maybe"), ("HOTSET_CTX_SIZE", "-5")):
            done = self.hotset(*run, env={**model, name: value})
            self.assertEqual(done.returncode, 2, name)
        self.fails(2, ["HOTSET_THREADS: found abc, expected 0 to 512"], *run,
                   env={**model, "HOTSET_THREADS": "abc"})
        self.ok(*run, "-t", "1", env={**model, "HOTSET_THREADS": "abc"})
        # What to work on comes from the command line only.
        self.ok(*run, env={**model, "HOTSET_PROMPT": "x", "HOTSET_FILE": "/absent"})
        self.ok(*run, env={**model, "HOTSET_TEMP": ""})

    # --- Devices

    def test_devices_that_are_none(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "1"]
        for device, parts in (("nonsense", ["device 'nonsense' does not exist", "emu"]),
                              ("emu:x=1", ["found key 'x', expected one of: mib"]),
                              ("emu:", ["found key ''"]),
                              ("emu:mib=0", ["mib: found '0'"]),
                              ("emu:mib=99999999999999999999", ["mib: found '9999"]),
                              ("emu:gbps=nan", ["gbps: found 'nan'"]),
                              ("emu:clock=maybe", ["clock: found 'maybe'"]),
                              ("emu:mib=1,mib=2", ["found key 'mib' twice"])):
            self.fails(1, parts, *run, "--device", device)
        for layers in ("x", "-2", "1.5"):
            self.fails(2, ["--n-gpu-layers", layers], *run, "--device", "emu", f"-ngl={layers}")
        self.assertIn(b"emu", self.ok("--list-devices"))

    # --- The CPU

    def test_more_threads_than_cpus(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "1"]
        n_cpus = int(re.search(rb"CPU: (\d+) to use", self.ok("--list-devices"))[1])
        self.assertNotIn(b"this process may use", self.hotset(*run).stderr)
        self.assertNotIn(b"this process may use", self.hotset(*run, "-t", n_cpus).stderr)
        warned = self.hotset(*run, "-t", n_cpus + 1)
        self.assertEqual(warned.returncode, 0)
        self.assertRegex(warned.stderr.decode(), f"(?m)^hotset: warning: --threads {n_cpus + 1}: this "
                                                 f"process may use {n_cpus} CPUs? \\(")
        self.assertRegex(self.hotset("replay", self.folder / "absent.mct", "-t", "5000").stderr,
                         b"hotset: warning: --threads 5000: this process may use")

    def test_affinity_is_the_default_number_of_threads(self):
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, {min(allowed)})
        report = self.ok_json("run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "1")
        self.assertEqual(report["n_threads"], 1)
        self.assertIn(b"CPU: 1 to use, 1 core", self.ok("--list-devices"))

    def test_builds_of_the_cpu_backend(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1,2,3", "-n", "2", "--temp", "0"]
        named = re.search(rb"HOTSET_CPU_VARIANT takes one of: (.*)", self.ok("--list-devices"))
        if not named:
            self.skipTest("this ggml was built for one kind of CPU")
        names = named[1].decode().split()
        for name in {names[0], names[-1]}:
            env = {"HOTSET_CPU_VARIANT": name}
            self.assertIn(f"build in use: {name}\n".encode(), self.ok("--list-devices", env=env))
            self.assertEqual(self.ok_json(*run, env=env)["n_generated"], 2)
        self.ok(*run, env={"HOTSET_CPU_VARIANT": ""})
        for name in ("none", "../" + names[0], names[0].upper()):
            self.fails(1, [f"HOTSET_CPU_VARIANT: found '{name}', expected one that this CPU can "
                           f"execute: {', '.join(names)}"], *run, env={"HOTSET_CPU_VARIANT": name})

    def test_devices_that_fail(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1,2,3", "--json", "-n", "3", "--temp",
               "0", "-c", "256", "--device"]
        expected = json.loads(self.ok(*run, "emu:clock=virtual"))["tokens"]
        self.assertEqual(json.loads(self.ok(*run, "emu:late_us=2000"))["tokens"], expected)
        self.assertEqual(json.loads(self.ok(*run, "emu:refuse_pinned=1"))["tokens"], expected)
        for fault in ("fail_copy=1", "fail_copy=5", "short_copy=2", "fail_graph=1", "fail_graph=3",
                      "vanish=1", "vanish=7", "refuse_allocation=1", "refuse_allocation=2"):
            self.fails(1, ["emu"], *run, f"emu:{fault}")

    # --- The end of a run from outside

    def test_interrupt_while_generating(self):
        run = ["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "-1", "-c", "100000"]
        stdout, _ = self.interrupt_when_generating(self.start(*run, "--json"))
        report = json.loads(stdout)
        self.assertEqual(report["stop"], "interrupted")
        self.assertEqual(len(report["tokens"]), report["n_generated"])
        process = self.start(*run)
        self.assertTrue(select.select([process.stdout], [], [], TIMEOUT_S)[0])
        stdout, stderr = self.interrupt_when_generating(process)
        self.assertRegex(stdout, rb"^\d+(,\d+)*\n$")
        self.assertIn(b"stopped by Ctrl-C", stderr)
        self.assertIn(b"tokens/s", stderr)

    def test_interrupt_while_reading_the_prompt(self):
        ids = ",".join(["1", "2", "3"] * 30000)
        path = self.folder / "long.txt"
        path.write_text(ids)
        # One token at a time, so that the prompt takes long.
        process = self.start("run", "-m", self.tiny, "--prompt-tokens", ids[:120000], "-c", "100000",
                             "-ub", "1", "--json")
        stdout, _ = self.interrupt_when_generating(process)
        report = json.loads(stdout)
        self.assertEqual(report["stop"], "interrupted")
        self.assertEqual(report["n_generated"], 0)

    def test_nobody_reads_the_output(self):
        process = self.start("run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "-1", "-c",
                             "100000")
        self.assertEqual(len(process.stdout.read(10)), 10)
        process.stdout.close()
        stderr = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(TIMEOUT_S), 1, stderr)
        self.assertIn(b"standard output: cannot write: Broken pipe", stderr)

    def test_output_that_cannot_be_written(self):
        commands = (["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "3"],
                    ["run", "-m", self.tiny, "--prompt-tokens", "1", "-n", "3", "--json"],
                    ["eval", "-m", self.tiny, "--tokens", "1,2"],
                    ["eval", "-m", self.tiny, "--tokens", "1,2", "--json"],
                    ["info", self.tiny], ["info", self.tiny, "--json"], ["info", self.tiny, "--tensors"],
                    ["tokenize", "-m", DEMO, "some text"], ["--help"], ["run", "--help"])
        for command in commands:
            with self.subTest(command=command), open("/dev/full", "wb") as full:
                done = subprocess.run([BINARY, *map(str, command)], stdout=full,
                                      stderr=subprocess.PIPE, timeout=TIMEOUT_S, env=environment())
                self.check_end(done.returncode, done.stderr)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(b"No space left", done.stderr)

    def test_standard_output_is_closed(self):
        path = self.folder / "logits"
        done = subprocess.run(["/bin/sh", "-c", 'exec "$0" "$@" >&-', BINARY, "eval", "-m",
                               str(self.tiny), "--tokens", "1,2", "--logits-out", str(path)],
                              stderr=subprocess.PIPE, timeout=TIMEOUT_S, env=environment())
        self.check_end(done.returncode, done.stderr)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"cannot write", done.stderr)
        # The report did not go into the file in its place.
        self.assertEqual(path.stat().st_size, 2 * self.logit_bytes)

    # --- The other commands

    def test_eval(self):
        logits = self.folder / "out.logits"
        routing = self.folder / "out.json"
        report = self.ok_json("eval", "-m", self.tiny, "--tokens", "1,2,3,4,5", "--generate", "3",
                              "-ub", "2", "--logits-out", logits, "--routing-out", routing)
        self.assertEqual(set(report), {"n_tokens", "n_scored", "perplexity", "generated", "moe_cache",
                                       "tokens_per_s"})
        self.assertEqual((report["n_tokens"], report["n_scored"]), (5, 4))
        self.assertEqual(len(report["generated"]), 3)
        self.assertEqual(logits.stat().st_size, 8 * self.logit_bytes)
        experts = json.loads(routing.read_text())
        self.assertEqual(list(experts), ["0"])
        self.assertEqual(len(experts["0"]), 8 * 2)
        self.assertTrue(set(experts["0"]) <= {0, 1, 2, 3})
        # The greedy tokens are those of the logits.
        rows = struct.unpack(f"<{8 * 64}f", logits.read_bytes())
        for i, token in enumerate(report["generated"]):
            row = rows[(4 + i) * 64:(5 + i) * 64]
            self.assertEqual(row.index(max(row)), token)
        self.assertIsNone(self.ok_json("eval", "-m", self.tiny, "--tokens", "1")["perplexity"])
        text = self.ok("eval", "-m", self.tiny, "--tokens", "1,2,3").decode()
        self.assertRegex(text, r"^perplexity \d+\.\d+ over 2 tokens")

    def test_perplexity_of_prose(self):
        for repack in ("off", "auto"):
            report = self.ok_json("eval", "-m", DEMO, "-f", PROSE, "--repack", repack)
            self.assertEqual(report["n_scored"], 640)
            self.assertAlmostEqual(report["perplexity"] / PROSE_PERPLEXITY, 1,
                                   delta=PERPLEXITY_RELATIVE, msg=f"--repack {repack}")

    def test_info(self):
        report = self.ok_json("info", DEMO)
        for key, value in (("architecture", "qwen3moe"), ("parts", 1), ("n_layer", 8),
                           ("n_expert", 64), ("n_expert_used", 4), ("n_vocab", 4096),
                           ("file_bytes", DEMO.stat().st_size), ("unused_tensors", [])):
            self.assertEqual(report[key], value, key)
        self.assertEqual(len(report["expert_layers"]), 8)
        for layer in report["expert_layers"]:
            self.assertEqual(layer["bytes"], 64 * layer["expert_bytes"])
        self.assertEqual(report["expert_bytes_total"],
                         sum(layer["bytes"] for layer in report["expert_layers"]))
        self.assertEqual(self.ok("info", DEMO), self.ok("info", "-m", DEMO))
        self.assertIn(b"token_embd.weight", self.ok("info", DEMO, "--tensors"))

    def test_tokenize(self):
        text = "It's 1234 naïve\n\ttests — 'quoted', back\\slash, 日本語 🙂."
        ids = self.ok_json("tokenize", "-m", DEMO, text)
        self.assertTrue(all(isinstance(i, int) for i in ids))
        self.assertEqual(self.ok_json("tokenize", "-m", DEMO, "-", stdin=text.encode()), ids)
        lines = self.ok("tokenize", "-m", DEMO, text).splitlines()
        shown = [re.fullmatch(rb" *(\d+)  '(.*)'", line) for line in lines]
        self.assertEqual([int(match[1]) for match in shown], ids)
        # The pieces are the text.
        escapes = {b"\\n": b"\n", b"\\\\": b"\\", b"\\'": b"'"}
        unescaped = re.sub(rb"\\(x..|.)", lambda m: escapes.get(m[0]) or bytes([int(m[0][2:], 16)]),
                           b"".join(match[2] for match in shown))
        self.assertEqual(unescaped, text.encode())

    def test_tokenize_takes_any_text(self):
        self.assertEqual(self.ok_json("tokenize", "-m", DEMO, ""), [])
        for text in ("-fa", "-ub=3", "-", "--json"):
            if text == "-":
                continue
            lines = self.ok("tokenize", "-m", DEMO, "--", text).splitlines()
            pieces = [re.fullmatch(rb" *\d+  '(.*)'", line)[1] for line in lines]
            self.assertEqual(b"".join(pieces), text.encode())
        plain = self.ok_json("tokenize", "-m", DEMO, "<|im_end|> x")
        self.assertGreater(len(plain), 2)
        self.fails(1, ["found 'nonsense'"], "tokenize", "-m", DEMO, "--pre", "nonsense", "x")

    def test_model_random(self):
        out = self.folder / "made.gguf"
        self.ok("model", "random", *TINY, "--seed", "4", "-o", out)
        first = out.read_bytes()
        self.ok("model", "random", *TINY, "--seed", "4", "-o", out)
        self.assertEqual(out.read_bytes(), first)
        self.ok("model", "random", *TINY, "--seed", "5", "-o", out)
        self.assertNotEqual(out.read_bytes(), first)
        # Given a tokenizer, it can be given text.
        self.ok("model", "random", *TINY, "--tokenizer-from", DEMO, "-o", out)
        self.assertEqual(self.ok_json("run", "-m", out, "-p", "Some text", "-n", "3")["n_generated"], 3)

    def test_model_random_refuses_nonsense(self):
        folder = self.folder / "refused"
        folder.mkdir()
        out = folder / "x.gguf"
        make = ["model", "random", "-o", out]
        for flags, parts in (
                (["--layers", "0"], ["layers: found 0"]),
                (["--layers", "-5"], ["layers: found -5"]),
                (["--layers", "5000"], ["block_count"]),
                (["--embd", "100"], ["rows of 100 values"]),
                (["--experts-used", "17"], ["expert_used_count: found 17"]),
                (["--heads", "5"], ["head_count_kv"]),
                (["--vocab", "99999999999"], ["vocab: found 99999999999"]),
                (["--arch", "alien"], ["found 'alien'", "qwen3moe"]),
                (["--arch", ""], ["architecture"]),
                (["--expert-type", "q9"], ["found 'q9', expected one of"]),
                (["--expert-type", "iq1_s"], ["importance matrix"]),
                (["--dense-type", "i32"], ["i32"]),
                (["--dense-type", "q8_1"], ["q8_1"]),
                (["--layers", "1000", "--embd", "1048576", "--experts", "60000",
                  "--expert-width", "1048576"], ["GiB are free"]),
                (["--tokenizer-from", self.tiny], ["tokenizer.ggml.tokens"]),
                (["--tokenizer-from", "/absent"], ["cannot open"])):
            self.fails(1, parts, *make, *flags)
        self.fails(2, ["--layers"], *make, "--layers", "many")
        self.assertEqual(list(folder.iterdir()), [])
        self.fails(1, ["cannot create"], "model", "random", "-o", folder / "no" / "x.gguf")
        self.fails(1, ["a folder or a special file"], "model", "random", "-o", folder)
        self.fails(1, ["a folder or a special file"], "model", "random", "-o", "/dev/full")


if __name__ == "__main__":
    main()
