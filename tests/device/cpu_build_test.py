#!/usr/bin/env python3
"""Checks that programs of a build without CUDA are not linked with it: cpu_build_test.py PROGRAM..."""
import re
import subprocess
import sys

CUDA = re.compile(r"cuda|cudnn|cublas|nccl|nvrtc|cupti", re.IGNORECASE)
# libtorch_cpu.so of the wheel for CUDA cannot be loaded without them, with or without a GPU.
OF_LIBTORCH = ("libcudart.so.13", "libcupti.so.13")


def needed(program):
    """The shared libraries that a program names."""
    listing = subprocess.run(["readelf", "-d", "-W", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", listing)


def undefined(program):
    """The symbols that a program takes from shared libraries."""
    listing = subprocess.run(["readelf", "-s", "-W", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r" UND (\S+)", listing)


def main(programs):
    problems = []
    for program in programs:
        libraries = needed(program)
        if not any(library.startswith("libtorch_cpu") for library in libraries):
            problems.append(f"{program}: got {libraries}, expected libtorch_cpu among them")
        problems += [f"{program}: needs {library}" for library in libraries
                     if CUDA.search(library) and library not in OF_LIBTORCH]
        symbols = [symbol for symbol in undefined(program) if re.match(r"cuda[A-Z]|cu[A-Z]|nccl[A-Z]", symbol)]
        problems += [f"{program}: takes {symbol} from a library" for symbol in symbols]
    print("\n".join(problems) or f"{len(programs)} programs need no CUDA")
    return 1 if problems or not programs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
