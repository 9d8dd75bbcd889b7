"""``python -m swapd.llama.embedded``: llama.cpp's server inside a Python process, through ``xllamacpp``.

Takes llama-server's common flags and speaks its HTTP, on a unix socket or a port, with
``/slots`` and ``/metrics``; runs on the CPU. SIGTERM keeps its default action: the load
holds Python's interpreter lock, so a handler would wait for its end. The same
holds for end of file on stdin; while it loads, the kernel's death signal covers that.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import Any

from swapd.llama import demo
from swapd.llama.embedded_flags import FLAGS, FlagError, Setting, parse


def _apply(engine: Any, settings: Sequence[Setting]) -> Any:
    parameters = engine.CommonParams()
    parameters.n_parallel = 4
    for setting in settings:
        *owners, name = setting.attribute.split(".")
        target = parameters
        for owner in owners:
            target = getattr(target, owner)
        value = setting.value
        if setting.enum:
            try:
                value = getattr(engine, setting.enum)[str(value)]
            except KeyError:
                raise FlagError(f"error: unknown value for {setting.attribute}: {value}") from None
        if (name, value) != ("n_parallel", -1):
            setattr(target, name, value)
    return parameters


def _serve(settings: Sequence[Setting]) -> None:
    import signal

    import xllamacpp

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server = xllamacpp.Server(_apply(xllamacpp, settings))
    sys.stderr.write(f"embedded engine ready on {server.listening_address}\n")
    sys.stderr.flush()
    watched = stat.S_ISFIFO(os.fstat(0).st_mode)
    while not watched or os.read(0, 4096):
        if not watched:
            signal.pause()
    os._exit(1)  # as llama-server does; destructors would wait for running requests


def _usage() -> str:
    lines = [f"{', '.join(flag.names.split())}{'' if flag.convert is None else ' VALUE'}" for flag in FLAGS]
    return "llama.cpp's server inside Python; unix socket: a --host that ends in .sock\n\n" + "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Serve until ended, or say what is wrong and return an exit code."""
    if not demo.engine_available():
        sys.stderr.write(f"the embedded engine is not installed: {demo.INSTALL_ENGINE}\n")
        return 1
    if "--version" in argv:
        from importlib.metadata import version

        sys.stdout.write(f"version: xllamacpp {version(demo.ENGINE_PACKAGE)}\n")
        return 0
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(_usage())
        return 0
    try:
        _serve(parse(argv))
    except (FlagError, RuntimeError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
