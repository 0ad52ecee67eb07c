"""``python -m batchkeeper.bench.spark``."""

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        sys.exit("this needs Spark: pip install 'batchkeeper[servers,spark]'")

    # It imports Spark, so it must follow the check.
    from .command import main

    sys.exit(main())
