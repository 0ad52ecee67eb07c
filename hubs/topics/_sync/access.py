# Made from async_access.py by `python tools/faces.py`: change that file, and run this command.
"""Who may create topics, subscribe to them and publish to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, TypeAlias

from ....batching import MetadataStore
from ....ops.errors import NotFoundError, ValueDecodeError
from ....ops.paths import check_path
from ....ops.results import GetResult
from ...errors import IllegalOperationError
from ...names import name_text
from ..region import Rule
from ..rules import Action, Rules, check_access, part_of, prefix_of, rules_of
from .views import View

__all__ = ["AccessRules"]

_Value: TypeAlias = tuple[bytes, Rule | ValueDecodeError]


class AccessRules:
    """The access rules of a region, per prefix of topics. Close them, or use a context manager.

    The rule with the longest prefix of a topic decides about it alone: whom it does not list, it
    denies. A topic that no rule covers is open to everybody, so a region without rules is open. A
    rule for the empty prefix covers all topics.

    One watch keeps the rules current, from the first use on, so a check makes no request. In an
    outage, the rules of before hold: whoever serves topics must stop when its session may have
    ended. A change by another client is seen soon after it, not at once.

    Prefixes are any text or bytes. A text stands for its bytes in UTF-8.

    Args:
        store: the store, with ``"watches"`` and ``"ephemerals"``.
        region: the path of the region.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: MetadataStore, region: str) -> None:
        self.path = f"{check_path(region)}/access"
        self._store = store
        self._view: View[_Value, Rules] = View(store, self.path, self._decoded, self._shown)

    def set_rule(self, prefix: str | bytes, rule: Rule) -> None:
        """Set the rule of a prefix, whatever rule it had.

        Raises:
            IllegalOperationError: an argument is no prefix, or no rule.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        if not isinstance(rule, Rule):
            raise IllegalOperationError(f"an access rule must be a Rule, not {rule!r:.80}")
        path = self._path(prefix)
        self._store.put(path, rule.encoded()).result()
        self._view.refresh(path)

    def remove_rule(self, prefix: str | bytes) -> None:
        """Remove the rule of a prefix.

        Raises:
            NotFoundError: it has none.
            MetadataStoreError: the delete has failed; see its ``outcome``.
        """
        path = self._path(prefix)
        try:
            self._store.delete(path).result()
        except NotFoundError as error:
            why = f"there is no access rule for {name_text(prefix)!r:.200}"
            raise NotFoundError(why, path=path) from error
        self._view.refresh(path)

    def rules(self, timeout: float | None = None) -> dict[str, Rule]:
        """Return the rules by prefix, sorted.

        To change a rule, use ``dataclasses.replace`` on it: then it keeps what this program does
        not know of it.

        Raises:
            ValueDecodeError: a rule is damaged. Set it or remove it.
            MetadataStoreError: as with :meth:`check`.
        """
        found = {}
        for prefix, rule in sorted(self._view.get(timeout).by_prefix.items()):
            if isinstance(rule, ValueDecodeError):
                raise rule.for_path(rule.path or self.path)
            found[name_text(prefix)] = rule
        return found

    def check(
        self, action: Action, who: str, topic: str | bytes, timeout: float | None = None
    ) -> None:
        """Return if somebody may do something with a topic. Only the first call makes requests.

        Args:
            action: ``"create"``, ``"subscribe"`` or ``"publish"``.
            who: the name of the client, whom somebody has authenticated.
            topic: the topic.
            timeout: seconds that the first call waits for the rules; the store's
                ``operation_timeout`` by default.

        Raises:
            AccessDeniedError: it is not allowed, or the rule that decides is damaged.
            OperationTimeoutError: the rules were not there in that time.
            IllegalOperationError: this is no topic, or no client.
            StoreClosedError: the rules or the store are closed.
            MetadataStoreError: the store has refused the watch or a read.
        """
        check_access(self._view.get(timeout), action, who, topic)

    def close(self) -> None:
        """End the watch. Later calls raise ``StoreClosedError``."""
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
