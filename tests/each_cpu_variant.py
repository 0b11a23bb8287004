#!/usr/bin/env python3
"""Runs a test program once for each build of ggml's CPU backend that this machine can execute, other
than the one that the program takes by itself, with which ctest runs it anyway:

  each_cpu_variant.py all|few PROGRAM [ARGUMENT...]

`few`: builds without AMX, without AVX-512 and without AVX, for what takes long. HOTSET_BINARY says
which builds there are. Exits with 77 where there is no other one.
"""
import os
import re
import subprocess
import sys

# One for each kind of kernels and layouts that ggml has on x86; elsewhere the oldest and the newest.
FEW = ("zen4", "haswell", "sse42")


def variants():
    """The builds that can be executed here, best first, and the one that is used unasked."""
    devices = subprocess.run([os.environ["HOTSET_BINARY"], "--list-devices"], check=True,
                             capture_output=True, text=True, timeout=240).stdout
    used = re.search(r"ggml's build in use: (.*)", devices)
    names = re.search(r"HOTSET_CPU_VARIANT takes one of: (.*)", devices)
    return (names[1].split(), used[1]) if names else ([], None)


def main():
    which, *command = sys.argv[1:]
    names, used = variants()
    others = [name for name in names if name != used]
    if which == "few":
        known = [name for name in others if name in FEW]
        others = known or sorted({*others[:1], *others[-1:]})
    if not others:
        print("this machine executes one build of ggml's CPU backend only")
        return 77
    failed = []
    for name in others:
        print(f"== {name}", flush=True)
        status = subprocess.run(command, env={**os.environ, "HOTSET_CPU_VARIANT": name}).returncode
        if status != 0:
            failed.append(f"{name} (status {status})")
    print(f"used unasked: {used}; run: {', '.join(others)}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
