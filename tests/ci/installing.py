"""Installs the tools that the scripts of .ci need and the machine does not have."""

import shutil
import subprocess
import sys
from pathlib import Path


def nightly(*components):
    """Installs a nightly compiler with these components, unless it is there with all of them."""
    asked = subprocess.run(["rustup", "+nightly", "component", "list", "--installed"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    has = {line.split("-x86_64")[0].strip() for line in asked.stdout.splitlines()}
    if asked.returncode == 0 and has.issuperset(components):
        return
    print("installing a nightly compiler", flush=True)
    command = ["rustup", "toolchain", "install", "nightly", "--profile", "minimal",
               "--no-self-update", *(f"--component={name}" for name in components)]
    if subprocess.run(command).returncode:
        sys.exit("there is no nightly compiler, and rustup can't install it")


def cargo_tool(name, version):
    """Installs a program of the crates registry, unless there is one of that name."""
    if shutil.which(name):
        return
    print(f"installing {name}", flush=True)
    if subprocess.run(["cargo", "install", "--locked", f"{name}@{version}"]).returncode:
        sys.exit(f"{name} can't be installed; it needs the crates registry")


def debian(*packages, program):
    """Installs packages of Debian, unless the program that is wanted of them is there."""
    # Debian keeps PostgreSQL's programs out of the path.
    if shutil.which(program) or any(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")):
        return
    print(f"installing {', '.join(packages)}", flush=True)
    subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "-yq", *packages]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{program} is missing, and apt-get can't install it")
