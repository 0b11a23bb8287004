#!/usr/bin/env python3
"""Runs the `openai` npm client against a server (openai_client/client_test.mjs)."""
import os
import pathlib
import shutil
import subprocess

from cli_fixture import TIMEOUT_S, main
from server_fixture import ServerFixture

# Where npm has put the packages; the test is copied there, because modules are found from a file's folder.
MODULES = pathlib.Path(os.environ.get("HOTSET_OPENAI_CLIENT", "."))


class OpenaiClientTest(ServerFixture):
    FLAGS = ("--api-key", "sk-test")

    def test_the_client_runs_unmodified(self):
        node = shutil.which("node")
        self.assertIsNotNone(node, "node is missing: scripts/setup installs it with npm")
        script = pathlib.Path(__file__).parent / "openai_client" / "client_test.mjs"
        copy = shutil.copy(script, MODULES)
        done = subprocess.run([node, copy, f"http://127.0.0.1:{self.server.port}/v1", "sk-test"], capture_output=True,
                              timeout=TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr).decode(errors="replace"))
        self.assertEqual(done.stdout.count(b"ok "), 11, done.stdout)
        self.eventually(lambda: not any(s["is_processing"] for s in
                                        self.server.get("/slots", headers={"Authorization": "Bearer sk-test"})),
                        "the request that was given up still runs")


if __name__ == "__main__":
    main()
