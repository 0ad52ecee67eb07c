"""The table: made if it is missing, and refused if it is another one's."""

from __future__ import annotations

import time
from typing import Any, Final

from ...ops.errors import (
    AuthenticationError,
    InvalidSettingError,
    MetadataStoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from .cluster import Cluster
from .forms import STATES
from .layout import FAMILY
from .requests import Requests
from .wire.messages import MESSAGES

__all__ = ["prepare"]

# The properties that matter, as a family has them by default: values must stay, and what was
# replaced or removed must not come back.
_WANTED: Final = {
    FAMILY: {
        "VERSIONS": "1",
        "MIN_VERSIONS": "0",
        "TTL": "2147483647",
        "KEEP_DELETED_CELLS": "false",
        "NEW_VERSION_BEHAVIOR": "false",
    }
}


def prepare(cluster: Cluster, deadline: float, *, create: bool) -> None:
    """Check the table, and create it if it is missing and may be.

    Raises:
        InvalidSettingError: it has other properties.
        AuthenticationError: the user may neither see its properties nor read it, or not create it.
        StoreUnavailableError: it is missing, and may not be created.
        MetadataStoreError: it cannot be checked or created.
    """
    namespace, name = cluster.table
    shown = f"{namespace.decode()}:{name.decode()}"
    table = MESSAGES.TableName(namespace=namespace, qualifier=name)
    served = cluster.served(deadline)
    try:
        half = (time.monotonic() + deadline) / 2
        found = _describe(cluster, table, half if served else deadline)
    except (AuthenticationError, StoreUnavailableError) as error:
        # HBase shows its properties only to those who may change them; or there is no master now.
        if isinstance(error, StoreUnavailableError) and not served:
            raise
        try:
            Requests(cluster).read([b"/"], STATES, deadline)
        except UnsupportedError as refusal:
            raise InvalidSettingError(f"the table {shown} cannot be used: {refusal}") from refusal
        return
    if found is None:
        if not create:
            raise StoreUnavailableError(
                f"HBase has no table {shown}, and this call does not create it: check the name, or "
                "write to the store first ('batchkeeper put', or open_store with create=True)"
            )
        try:
            cluster.ask_master(
                "CreateTable",
                MESSAGES.CreateTableRequest(table_schema=_schema(table)),
                MESSAGES.CreateTableResponse,
                deadline,
            )
        except MetadataStoreError as error:
            # Another client may have been faster.
            found = _describe(cluster, table, deadline)
            if found is None and "NamespaceNotFoundException" in str(error):
                remedy = f"HBase's shell creates one with: create_namespace '{namespace.decode()}'"
                raise StoreUnavailableError(f"{shown} has no namespace; {remedy}") from error
            if found is None:
                raise type(error)(f"cannot create the table {shown}: {error}") from error
        found = found or _describe(cluster, table, deadline)
    if found is not None and (different := _differences(found)):
        raise InvalidSettingError(
            f"the table {shown} is not one of batchkeeper's: {'; '.join(different)}"
        )
    cluster.regions(deadline)


def _describe(cluster: Cluster, table: Any, deadline: float) -> Any | None:
    found = cluster.ask_master(
        "GetTableDescriptors",
        MESSAGES.GetTableDescriptorsRequest(table_names=[table]),
        MESSAGES.GetTableDescriptorsResponse,
        deadline,
    )
    return next(iter(found.table_schema), None)


def _schema(table: Any) -> Any:
    return MESSAGES.TableSchema(
        table_name=table,
        column_families=[
            MESSAGES.ColumnFamilySchema(
                name=family,
                attributes=[
                    MESSAGES.BytesBytesPair(first=key.encode(), second=value.encode())
                    for key, value in wanted.items()
                ],
            )
            for family, wanted in _WANTED.items()
        ],
    )


def _differences(found: Any) -> list[str]:
    """Return in what a table differs from one of this client's."""
    families = {
        family.name: {pair.first.decode(): pair.second.decode() for pair in family.attributes}
        for family in found.column_families
    }
    different = []
    for family, wanted in _WANTED.items():
        if family not in families:
            different.append(f"it has no family {family.decode()}")
            continue
        for key, value in wanted.items():
            there = families[family].get(key, value)
            if there.lower() != value:
                different.append(f"{family.decode()} has {key} {there}, not {value}")
    return different
