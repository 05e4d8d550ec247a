"""``python -m lightning_deba``."""

import sys

from lightning_deba.cli import main

if __name__ == "__main__":
    sys.exit(main())
