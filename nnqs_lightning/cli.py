"""The command line."""

from __future__ import annotations


def main(args: list[str] | None = None) -> None:
    """Entry of ``python -m nnqs_lightning`` and ``nnqs-lightning``."""
    raise NotImplementedError
