"""``python -m batchkeeper``: the command, where no script of that name is on PATH."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
