"""``python -m nnqs_lightning``."""

from nnqs_lightning.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
