"""swapd: one OpenAI-compatible endpoint that starts, swaps and unloads llama-server processes on a GPU box."""

__version__ = "0.1.0"
