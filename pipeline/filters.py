"""Spark's filters on the paths of a read. Spark 4.1 and newer pass them to a data source."""

from __future__ import annotations

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from .bounds import Bounds
from .reader import StoreReader

__all__ = ["FilteringReader"]


class FilteringReader(StoreReader):
    """A reader that does not read the rows that filters on ``path`` discard.

    It is a class of its own because Spark refuses a reader with ``pushFilters`` if filter pushdown
    is disabled.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Narrow the bounds of the read.

        The bounds need not be exact, because Spark applies all filters itself, too.
        """
        for given in filters:
            if getattr(given, "attribute", None) == ("path",):
                self.bounds = _narrowed(self.bounds, given)
        return filters


def _narrowed(bounds: Bounds, given: Filter) -> Bounds:
    match given:
        case EqualTo(value=str(path)) | EqualNullSafe(value=str(path)):
            return bounds.from_(path).up_to(path).below(path)
        case StringStartsWith(value=str(start)):
            return bounds.starting_with(start)
        case In(value=(str(), *_) as paths) if all(isinstance(path, str) for path in paths):
            return bounds.from_(min(paths)).up_to(max(paths))
        case GreaterThan(value=str(path)) | GreaterThanOrEqual(value=str(path)):
            return bounds.from_(path)
        case LessThan(value=str(path)) | LessThanOrEqual(value=str(path)):
            return bounds.up_to(path)
    return bounds
