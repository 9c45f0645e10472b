#!/usr/bin/python3
"""dockerfile_test.py DOCKERFILE SETUP INSTALL PROGRAM...: checks that the packages, tools and paths in the Dockerfile exist.

PROGRAM are the files that the image runs. Every library of a Debian package that they load must be in a package that the
image installs.
"""
import os
import re
import subprocess
import sys

errors = []


def check(good, message):
    if not good:
        errors.append(message)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def stages_of(text):
    """The instructions of each stage, with joined lines and without comments."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [["FROM" + line if i == 0 else line for i, line in enumerate(stage.splitlines()) if line.strip()]
            for stage in re.split(r"^FROM", text, flags=re.MULTILINE)[1:]]


def packages_of(stage):
    found = re.search(r"apt-get [^&]*\binstall\b([^&]*)", "\n".join(stage))
    return [word for word in found.group(1).split() if not word.startswith("-")] if found else []


def dependencies():
    """The names in the dependencies of each installed package."""
    found = {}
    for line in output("dpkg-query", "-W", "-f", "${Package}\t${Depends},${Pre-Depends}\n").splitlines():
        name, _, text = line.partition("\t")
        found.setdefault(name, set()).update(re.findall(r"(?:^|[,|])\s*([a-z0-9.+-]+)", text))
    return found


def with_dependencies(packages, depends):
    known, left = set(), list(packages)
    while left:
        name = left.pop()
        if name not in known:
            known.add(name)
            left += depends.get(name, ())
    return known


def libraries_of(programs):
    """The libraries of the system that the programs load, as the database of packages names them."""
    found = set()
    for program in programs:
        found |= {os.path.realpath(path) for path in re.findall(r"=> (/(?:usr/)?lib/\S+)", output("ldd", program))}
    return found


def check_packages(packages, setup, programs):
    development = re.search(r"^apt_packages=\(\n(.*?)^\)", setup, re.MULTILINE | re.DOTALL).group(1)
    development = re.findall(r'^\s*"(\S+) \S+"', development, re.MULTILINE)
    check(packages, "the image installs no packages")
    # So the versions in the image are those that tools/setup checks.
    depends = dependencies()
    known = with_dependencies(development, depends)
    for name in packages:
        check(name in known, f"the package {name} does not belong to a package in tools/setup")
    complete = with_dependencies(packages, depends)
    libraries = libraries_of(programs)
    check(libraries, "the programs load no libraries")
    # The database has some paths with /usr and some without it. Names that it does not have are not an error here.
    names = libraries | {path.removeprefix("/usr") for path in libraries}
    owners = {}
    for line in subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True).stdout.splitlines():
        package, _, path = line.partition(": ")
        owners[os.path.realpath(path)] = package.split(":")[0]
    for owner, library in sorted({owners.get(library): library for library in libraries}.items(), key=str):
        check(owner in complete, f"the image lacks the package {owner}, of which its programs load {library}")


def check_paths(stages, setup, install_help):
    text = "\n".join(line for stage in stages for line in stage)
    for tool in re.findall(r"\btools/\w+", text):
        check(os.access(tool, os.X_OK), f"{tool} does not exist or cannot be executed")
    for option in re.findall(r"tools/install\s+(--\w+)", text):
        check(option in install_help, f"unknown option of tools/install: {option}")
    prefix = re.search(r"tools/install --prefix=(\S+)", text).group(1)
    for path in re.findall(rf"COPY --from=builder (.*) \S+$", text, re.MULTILINE):
        for part in path.split():
            below = part[len(prefix) + 1:].rstrip("*") if part.startswith(prefix + "/") else None
            # A path is in the output of --help, or it was made in the first stage.
            check(below in install_help if below else f"mkdir {os.path.dirname(part)}" in text, f"unknown path {part}")
    version = re.search(r"^libtorch_version=(\S+)$", setup, re.MULTILINE).group(1)
    versions = set(re.findall(r"libtorch-([\d.]+\d)", text))
    check(versions == {version}, f"libtorch: got {versions}, expected {version}, which tools/setup installs")
    entry = re.search(r'^ENTRYPOINT \["([^"]+)"', text, re.MULTILINE).group(1)
    check(f"bin/{entry}" in install_help, f"unknown program {entry}")
    for stage in stages:
        check(stage[0].split()[1] == "debian:12-slim", f"got {stage[0]}, expected Debian 12, which tools/setup supports")


def main():
    dockerfile, setup, install, *programs = sys.argv[1:]
    with open(dockerfile, encoding="utf-8") as file:
        stages = stages_of(file.read())
    with open(setup, encoding="utf-8") as file:
        setup = file.read()
    check(len(stages) == 2, f"got {len(stages)} stages, expected a builder and the image")
    check_packages(packages_of(stages[-1]), setup, programs)
    check_paths(stages, setup, output(install, "--help"))
    if errors:
        sys.exit("\n".join(f"{dockerfile}: {error}" for error in errors))


if __name__ == "__main__":
    main()
