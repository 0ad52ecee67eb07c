"""``python bench/targets``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder itself was put first, and its modules are those of a package.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

    from targets.command import main

    from batchkeeper.__main__ import repeat_interrupt

    sys.unraisablehook = repeat_interrupt
    sys.exit(main())
