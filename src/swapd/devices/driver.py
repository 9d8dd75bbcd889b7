"""What the GPU driver says of itself, for ``swapd doctor``."""

from __future__ import annotations

from pathlib import Path


def driver_lines() -> list[tuple[str, str]]:
    """(what, version) of NVIDIA's and AMD's drivers; why there is none, where there is none. Never raises."""
    return [("NVIDIA driver", _nvidia()), ("amdgpu", _amdgpu())]


def _nvidia() -> str:
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"none ({error})"
    return f"{driver.decode() if isinstance(driver, bytes) else driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"


def _amdgpu(root: Path = Path("/sys/module/amdgpu")) -> str:
    try:
        return (root / "version").read_text().strip() if root.exists() else "none"
    except OSError:
        return "of the kernel"
