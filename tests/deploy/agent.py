"""Runs, as root in the virtual machine, the commands that come down its serial port, one at a time."""

import json
import os
import subprocess
import time
from collections.abc import Iterator

PORT = "/dev/virtio-ports/swapd.test"


def lines(port: int) -> Iterator[bytes]:
    kept = b""
    while True:
        got = os.read(port, 65536)
        if not got:  # nobody is connected
            time.sleep(0.05)
        kept += got
        while b"\n" in kept:
            line, _, kept = kept.partition(b"\n")
            yield line


def run(command: str, timeout_s: float) -> dict[str, object]:
    out = subprocess.PIPE
    try:
        ran = subprocess.run(
            ["/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        return {"code": 124, "text": (error.stdout or b"").decode(errors="replace")}
    return {"code": ran.returncode, "text": ran.stdout.decode(errors="replace")}


def main() -> None:
    while not os.path.exists(PORT):
        time.sleep(0.05)
    port = os.open(PORT, os.O_RDWR)
    for line in lines(port):
        answer = json.dumps(run(**json.loads(line))).encode() + b"\n"
        while answer:
            answer = answer[os.write(port, answer) :]


if __name__ == "__main__":
    main()
