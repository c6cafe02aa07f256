"""Builds fastloop._core; everything else about the package is in pyproject.toml."""

import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import setup_cuda

FLOORS = [f"csrc/{floor}" for floor in ("base", "core", "cpu", "cuda", "python")]
FLOORS += sorted(glob("csrc/co*/*/") + glob("csrc/cpu/*/") + glob("csrc/python/*/"))
FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow"]
FLAGS += ["-Wmissing-prototypes", "-Wconversion"]
# Sums have the same bits whatever the instruction set: no fused operations but those written.
FLAGS += ["-ffp-contract=off"]
# Python's own flags ask for debug information, which would be most of the module.
FLAGS += ["-g0"]
if os.environ.get("FASTLOOP_WERROR") == "1":
    FLAGS.append("-Werror")
# Other people's headers: -isystem keeps our warnings out of them.
FOREIGN = [sysconfig.get_path("include"), numpy.get_include(), "csrc/vendor"]


# Commands that compile; pip calls one of the last two.
COMPILE = {"build", "build_ext", "install", "develop", "bdist_wheel", "editable_wheel"}


def check_compiler() -> None:
    """End with one line unless a program that includes Python.h compiles."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*shlex.split(compiler), "-fsyntax-only", f"-I{FOREIGN[0]}", "-x", "c", "-"]
    try:
        done = subprocess.run(command, input="#include <Python.h>", capture_output=True, text=True)
    except OSError as error:
        why = f"{error}"
    else:
        if done.returncode == 0:
            return
        lines = done.stderr.splitlines()
        why = next((line for line in lines if "error" in line), "".join(lines[:1]))
    sys.exit(
        f"fastloop is written in C, and `{compiler}` does not compile Python.h ({why}): install a "
        "C compiler and Python's headers; on Debian and Ubuntu: apt install gcc python3-dev"
    )


class BuildCore(build_ext):
    """Compiles the files side by side and passes the package's version on to C."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # What decides how it is built has no date: variables, and which compilers there are.
        self.force = True

    def build_extension(self, ext: Extension) -> None:
        version = self.distribution.get_version()
        ext.define_macros.append(("FL_VERSION", f'"{version}"'))
        setup_cuda.add_to(ext, self.build_temp)
        compile_files = self.compiler.compile

        def compile_parallel(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = list(pool.map(lambda source: compile_files([source], **options), sources))
            return [path for part in parts for path in part]

        self.compiler.compile = compile_parallel
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_files
        setup_cuda.drop_runtime_names(self.get_ext_fullpath(ext.name))


if COMPILE.intersection(sys.argv):
    check_compiler()

core = Extension(
    "fastloop._core",
    # setup_cuda adds those of csrc/cuda.
    sources=sorted({*glob("csrc/**/*.c", recursive=True)} - {*glob("csrc/cuda/*.c")}),
    include_dirs=list(FLOORS),
    define_macros=[
        ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),
    ],
    extra_compile_args=[*FLAGS, "-pthread", *(f"-isystem{path}" for path in FOREIGN)],
    extra_link_args=["-pthread"],
    libraries=["m"],
    language="c",
)

setup(ext_modules=[core], cmdclass={"build_ext": BuildCore})
