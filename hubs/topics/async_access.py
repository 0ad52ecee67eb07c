# async:
# `_sync/access.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Who may create topics, subscribe to them and publish to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, TypeAlias

from ...batching import AsyncMetadataStore
from ...ops.errors import NotFoundError, ValueDecodeError
from ...ops.paths import check_path
from ...ops.results import GetResult
from ..errors import IllegalOperationError
from ..names import name_text
from .async_views import AsyncView
from .region import Rule
from .rules import Action, Rules, check_access, part_of, prefix_of, rules_of

__all__ = ["AsyncAccessRules"]

_Value: TypeAlias = tuple[bytes, Rule | ValueDecodeError]


class AsyncAccessRules:
    """The access rules of a region, per prefix of topics. Close them, or use a context manager.

    Only the rule with the longest matching prefix applies to a topic. It denies everyone it does
    not list. A topic without a matching rule is open to everyone, so a region without rules is
    open. A rule for the empty prefix covers all topics.

    From the first use on, one watch keeps the rules current, so a check sends no request. During an
        outage, the last known rules apply: a hub must stop serving topics when its session may have
        ended. A change by another client takes effect here shortly after it, not at once.

    A prefix is any text or bytes. Text is encoded as UTF-8.

    Args:
        store: the store, with ``"watches"`` and ``"ephemerals"``.
        region: the path of the region.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: AsyncMetadataStore, region: str) -> None:
        self.path = f"{check_path(region)}/access"
        self._store = store
        self._view: AsyncView[_Value, Rules] = AsyncView(
            store, self.path, self._decoded, self._shown
        )

    async def set_rule(self, prefix: str | bytes, rule: Rule) -> None:
        """Set the rule of a prefix, and replace its old rule, if any.

        Raises:
            IllegalOperationError: the prefix or the rule is invalid.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        if not isinstance(rule, Rule):
            raise IllegalOperationError(f"an access rule must be a Rule, not {rule!r:.80}")
        path = self._path(prefix)
        await self._store.put(path, rule.encoded())
        await self._view.refresh(path)

    async def remove_rule(self, prefix: str | bytes) -> None:
        """Remove the rule of a prefix.

        Raises:
            NotFoundError: the prefix has no rule.
            MetadataStoreError: the delete has failed; see its ``outcome``.
        """
        path = self._path(prefix)
        try:
            await self._store.delete(path)
        except NotFoundError as error:
            why = f"there is no access rule for {name_text(prefix)!r:.200}"
            raise NotFoundError(why, path=path) from error
        await self._view.refresh(path)

    async def rules(self, timeout: float | None = None) -> dict[str, Rule]:
        """Return the rules by prefix, sorted.

        To change a rule, use ``dataclasses.replace`` on it, so that it keeps the members that this
        program does not know.

        Raises:
            ValueDecodeError: a rule is damaged. Set it or remove it.
            MetadataStoreError: as with :meth:`check`.
        """
        found = {}
        for prefix, rule in sorted((await self._view.get(timeout)).by_prefix.items()):
            if isinstance(rule, ValueDecodeError):
                raise rule.for_path(rule.path or self.path)
            found[name_text(prefix)] = rule
        return found

    async def check(
        self, action: Action, who: str, topic: str | bytes, timeout: float | None = None
    ) -> None:
        """Return if a client may do something with a topic. Only the first call sends requests.

        Args:
            action: ``"create"``, ``"subscribe"`` or ``"publish"``.
            who: the name of the client, which must already be authenticated.
            topic: the topic.
            timeout: seconds that the first call waits for the rules; the store's
                ``operation_timeout`` by default.

        Raises:
            AccessDeniedError: it is not allowed, or the deciding rule is damaged.
            OperationTimeoutError: the rules did not arrive in that time.
            IllegalOperationError: the topic or the client is invalid.
            StoreClosedError: the rules or the store are closed.
            MetadataStoreError: the store has refused the watch or a read.
        """
        check_access(await self._view.get(timeout), action, who, topic)

    async def close(self) -> None:
        """End the watch. Later calls raise ``StoreClosedError``."""
        self._view.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} of {self._store!r}>"

    def _path(self, prefix: str | bytes) -> str:
        self._view.check_open()
        return f"{self.path}/{part_of(prefix)}"

    def _decoded(self, path: str, found: GetResult) -> _Value | None:
        prefix = prefix_of(path[len(self.path) + 1 :])
        if prefix is None:
            return None
        try:
            return prefix, Rule.decoded(found.value, path)
        except ValueDecodeError as error:
            error.path = path
            return prefix, error

    def _shown(self, values: Mapping[str, _Value]) -> Rules:
        return rules_of(dict(values.values()))
