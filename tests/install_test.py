#!/usr/bin/env python3
"""What `cmake --install` leaves in a folder, used from there: the program, its man page, completions,
the service's unit, the documents.

HOTSET_BUILD is the build folder, HOTSET_CMAKE the cmake that made it, HOTSET_ASSETS_DIR the folder
of the demo model; ctest sets them. (The Debian package: scripts/try_package.)
"""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["HOTSET_BUILD"])
DEMO = pathlib.Path(os.environ["HOTSET_ASSETS_DIR"]).resolve() / "demo-54m-moe.gguf"
TIMEOUT_S = 240

FILES = {
    "bin/hotset", "lib/systemd/system/hotset.service", "share/bash-completion/completions/hotset",
    "share/fish/vendor_completions.d/hotset.fish", "share/man/man1/hotset.1",
    "share/zsh/site-functions/_hotset",
    *(f"share/doc/hotset/{name}" for name in (
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "environment",
        "docs/architecture.md", "docs/flags.md", "docs/server.md"))}


def needs(program):
    return unittest.skipIf(shutil.which(program) is None, f"{program} is not installed")


class Terminal:
    """bash as at a terminal."""

    def __init__(self, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)

    def type_until(self, keys, pattern):
        """Types `keys`; what is shown until it matches `pattern`."""
        os.write(self.fd, keys.encode())
        shown = b""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern.encode(), shown):
            if time.monotonic() > deadline:
                raise AssertionError(f"typed {keys!r}, expected {pattern!r}, found {shown!r}")
            if select.select([self.fd], [], [], 0.2)[0]:
                shown += os.read(self.fd, 4096)
        return shown.decode(errors="replace")

    def end(self):
        os.close(self.fd)  # hangs up
        os.waitpid(self.pid, 0)


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hotset-install-"))
        cls.prefix = cls.folder / "prefix"
        cls.elsewhere = cls.folder / "elsewhere"
        cls.elsewhere.mkdir()
        subprocess.run([os.environ["HOTSET_CMAKE"], "--install", BUILD, "--prefix", cls.prefix],
                       check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        cls.program = cls.prefix / "bin" / "hotset"
        cls.completion = cls.prefix / "share/bash-completion/completions/hotset"

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def ok(self, *command):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTSET_")}
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=TIMEOUT_S,
                              cwd=self.elsewhere, env=kept, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_files_are_those_that_belong_there(self):
        found = {p.relative_to(self.prefix).as_posix() for p in self.prefix.rglob("*") if p.is_file()}
        self.assertLessEqual(FILES, found)
        others = {name for name in found - FILES if not name.startswith("share/doc/hotset/docs/")}
        self.assertEqual(others, set())

    def test_the_program_runs_from_anywhere(self):
        self.assertRegex(self.ok(self.program, "--version"), r"^hotset \d+\.\d+\.\d+$")
        text = self.ok(self.program, "run", "-m", DEMO, "--device", "none", "-n", "4", "-p", "Once")
        self.assertIn("generated 4 tokens", text)
        self.assertIn("ggml's build in use", self.ok(self.program, "--list-devices"))

    def test_what_the_program_says_of_itself_is_the_same_everywhere(self):
        for page in (["reference", "man"], ["reference", "markdown"], ["completion", "zsh"]):
            texts = [subprocess.run([*start, self.program, *page], check=True, capture_output=True,
                                    cwd=cwd, env=env, timeout=TIMEOUT_S).stdout
                     for start, cwd, env in (
                         ([], "/", {}),
                         (["taskset", "-c", "0"] if shutil.which("taskset") else [], self.elsewhere,
                          {"HOTSET_THREADS": "7", "HOTSET_MOE_CACHE_MIB": "5", "HOME": "/nowhere",
                           "LC_ALL": "C"}))]
            self.assertEqual(texts[0], texts[1])

    def test_documents_link_to_what_is_there(self):
        folder = self.prefix / "share/doc/hotset"
        for document in folder.rglob("*.md"):
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
                if "/hotset/" in link:  # a source file
                    continue
                self.assertTrue((document.parent / link).exists(), f"{document.name}: {link}")

    @needs("groff")
    def test_groff_has_nothing_against_the_man_page(self):
        page = self.prefix / "share/man/man1/hotset.1"
        self.assertEqual(self.ok("groff", "-man", "-ww", "-Tutf8", "-z", page), "")
        text = re.sub(r"\x1b\[\d+m", "", self.ok("groff", "-man", "-Tascii", page))
        self.assertRegex(re.sub(r".\x08", "", text), r"\n +-m, --model FILE\n +Model file")

    @needs("mandoc")
    def test_mandoc_has_no_warning_about_the_man_page(self):
        # A date would make the page another one each day.
        text = self.ok("sh", "-c", 'mandoc -T lint -W warning "$0" || true',
                       self.prefix / "share/man/man1/hotset.1")
        self.assertEqual([line for line in text.splitlines() if "missing date" not in line], [])

    def test_bash_completes_at_a_terminal(self):
        self.ok("bash", "-n", self.completion)
        (self.elsewhere / "a model.gguf").touch()
        terminal = Terminal({"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "HOME": "/"})
        self.addCleanup(terminal.end)
        # What is typed is shown as well: the answer is put together by the shell.
        terminal.type_until(f"source {self.completion}; cd {self.elsewhere}; echo rea''dy\n", "ready")
        for keys, shown in (("hotset ser\t", "hotset serve "),
                            ("hotset model \t", "hotset model random "),
                            ("hotset trace syn\t", "hotset trace synth "),
                            ("hotset serve --max-q\t", "--max-queue "),
                            ("hotset run --flash-attn of\t", "--flash-attn off "),
                            ("hotset run --flash-attn=of\t", "--flash-attn=off "),
                            ("hotset completion fi\t", "completion fish "),
                            ("hotset run -m a\t", r"-m a\\ model.gguf "),
                            ("hotset info a\t", r"info a\\ model.gguf ")):
            terminal.type_until(keys, shown)
            terminal.type_until("\x15echo rea''dy\n", "\nready")  # without what is on the line

    @needs("zsh")
    def test_zsh_reads_its_completion(self):
        self.ok("zsh", "-n", self.prefix / "share/zsh/site-functions/_hotset")

    @needs("fish")
    def test_fish_completes(self):
        script = self.prefix / "share/fish/vendor_completions.d/hotset.fish"
        text = self.ok("fish", "--no-config", "-c", f"source {script}; complete -C 'hotset ser'")
        self.assertTrue(text.startswith("serve\t"), text)

    @needs("systemd-analyze")
    def test_systemd_has_nothing_against_the_unit(self):
        text = (self.prefix / "lib/systemd/system/hotset.service").read_text()
        self.assertIn("ExecStart=hotset serve\n", text)
        # systemd knows /usr and /usr/local only.
        unit = self.folder / "hotset.service"
        unit.write_text(text.replace("ExecStart=hotset ", f"ExecStart={self.program} "))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True,
                              text=True, timeout=TIMEOUT_S)
        # This machine's own units may have faults.
        lines = (done.stdout + done.stderr).splitlines()
        self.assertEqual([line for line in lines if "hotset" in line], [])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
